"""Schema registries that attack their client (`testkit.faults.hostile_http`): an error in bounded memory and time, never a traceback."""

from __future__ import annotations

import json
import threading

import pytest

from headrace.errors import DefiniteError, HeadraceError
from headrace.kafka import registry_http
from headrace.kafka.registry_http import HttpRepository
from testkit.faults.hostile_http import HTTP_ATTACKS, Attack, Client, hostile_http
from testkit.faults.hostile_server import bounded
from testkit.machine.wait_condition import wait_until

_MOST_MIB = 300


def _raised(attack: Attack, timeout_s: float = 10.0) -> HeadraceError:
    with bounded(_MOST_MIB), hostile_http(attack) as port, pytest.raises(HeadraceError) as caught:
        HttpRepository(f"http://me:s3cr3t@127.0.0.1:{port}?timeout={timeout_s}", deadline_s=0).by_id(1)
    assert "s3cr3t" not in str(caught.value)
    assert len(str(caught.value)) < 10_000
    return caught.value


@pytest.mark.parametrize("name", HTTP_ATTACKS)
def test_an_attack_is_an_error(name: str) -> None:
    _raised(HTTP_ATTACKS[name], 1.0)
    wait_until(lambda: all(thread.name != "headrace-registry" for thread in threading.enumerate()), 20)


def _document(client: Client, said: object) -> None:
    client.answer(json.dumps(said).encode(), b"Content-Type: application/vnd.schemaregistry.v1+json\r\n")


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"7", b'{"schema": 7}', b'{"schema": {}}', b"[" * 100_000, b'{"schema": "' + b"[" * 100_000 + b'"}'],
    ids=["empty", "null", "list", "number", "schema is a number", "schema is an object", "deep", "deep schema"],
)
def test_an_answer_that_no_registry_gives_is_an_error(body: bytes) -> None:
    assert isinstance(_raised(lambda client: client.answer(body)), DefiniteError)


def test_a_large_answer_is_refused() -> None:
    def large(client: Client) -> None:
        _document(client, {"schema": json.dumps({"type": "string", "doc": "x" * (17 << 20)})})

    raised = _raised(large)
    assert isinstance(raised, DefiniteError)
    assert "more than 16,777,216 bytes" in raised.message


def test_an_answer_within_the_limits_is_taken() -> None:
    schema = json.dumps({"type": "string", "doc": "x" * (15 << 20)})
    with hostile_http(lambda client: _document(client, {"schema": schema})) as port:
        assert HttpRepository(f"http://127.0.0.1:{port}").by_id(1).text


def test_references_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each schema refers to two more: within 20 levels, a million requests."""
    monkeypatch.setattr(registry_http, "_MAX_REFERENCES", 50)
    asked: list[bytes] = []

    def more(client: Client) -> None:
        asked.append(client.request)
        number = len(asked)
        references = [{"name": f"n{number}{side}", "subject": f"s{number}{side}", "version": 1} for side in "ab"]
        _document(client, {"schema": '"string"', "references": references, "subject": "s", "version": 1, "id": number})

    raised = _raised(more)
    assert isinstance(raised, DefiniteError)
    assert len(asked) < 100


def test_a_circle_of_references_is_an_error() -> None:
    references = [{"name": "n", "subject": "s", "version": 1}]
    answer = {"schema": '"string"', "references": references, "subject": "s", "version": 1, "id": 1}
    assert "in a circle" in _raised(lambda client: _document(client, answer)).message
