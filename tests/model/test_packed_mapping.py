"""Mappings that tasks carry as bytes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headrace.model.packed_mapping import PackedMapping

NAMES = {"a": (1, 2), "b": (3,)}


class Counted:
    """A value that counts how often it is unpickled."""

    loads = 0

    def __reduce__(self) -> tuple[type[Counted], tuple[()]]:
        return _Loaded, ()


class _Loaded(Counted):
    def __init__(self) -> None:
        Counted.loads += 1


def test_a_copy_equals_its_original() -> None:
    packed = PackedMapping(NAMES)
    copy = pickle.loads(pickle.dumps(packed))
    assert copy == packed == NAMES
    assert (copy["b"], list(copy), len(copy), "c" in copy) == ((3,), ["a", "b"], 2, False)
    assert pickle.loads(pickle.dumps(copy)) == NAMES


def test_a_process_unpickles_equal_bytes_once() -> None:
    message = pickle.dumps(PackedMapping({"one": Counted()}))
    first, second = pickle.loads(message), pickle.loads(message)
    # Nothing is unpickled before a task needs it.
    assert Counted.loads == 0
    assert first["one"] is second["one"]
    assert Counted.loads == 1


def test_the_original_is_pickled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed = PackedMapping({"path": tmp_path})
    message = pickle.dumps(packed)

    def refuse(*_: object) -> bytes:
        raise AssertionError("pickled again")

    monkeypatch.setattr("headrace.model.packed_mapping.pickle.dumps", refuse)
    assert packed.__reduce__()[1][1] in message


def test_a_process_keeps_the_last_few_only() -> None:
    copies = [pickle.loads(pickle.dumps(PackedMapping({"n": number}))) for number in range(40)]
    assert [copy["n"] for copy in copies] == list(range(40))
