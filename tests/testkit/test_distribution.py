"""Tests that share a server stay in one process; the stored durations of a run name every test, with its set-up and tear-down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testkit.machine.distribution import expected_seconds, group_of, long_groups, longest_first

pytest_plugins = ["pytester"]


def test_every_test_is_stored_with_its_whole_duration(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import sys, pathlib
        from testkit.machine.durations import write_durations
        def pytest_terminal_summary(terminalreporter):
            write_durations(terminalreporter.stats, pathlib.Path("build/durations.json"))
        """
    )
    pytester.makepyfile(
        """
        import time, pytest
        @pytest.fixture
        def slow():
            time.sleep(0.2)
        def test_waits(slow): pass
        def test_quick(): pass
        def test_fails(): assert False
        """
    )
    pytester.runpytest("-p", "no:cacheprovider")
    stored = json.loads(Path("build/durations.json").read_text())
    name = "test_every_test_is_stored_with_its_whole_duration.py::"
    assert set(stored) == {name + "test_waits", name + "test_quick", name + "test_fails"}
    assert next(iter(stored)) == name + "test_waits"
    assert stored[name + "test_waits"] >= 0.2


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/test_a.py::test_plain", "tests/unit/test_a.py"),
        ("tests/unit/test_a.py::test_case[mysqlish-1]", "tests/unit/test_a.py"),
        ("tests/unit/test_a.py::test_server[mysql]", "tests/unit/test_a.py mysql"),
        ("tests/unit/test_a.py::test_server[mariadb-a::b-[x]", "tests/unit/test_a.py mariadb"),
        ("tests/unit/test_a.py::test_server[zero-mysql]", "tests/unit/test_a.py mysql"),
    ],
)
def test_tests_of_a_file_on_a_flavour_are_one_group(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


@dataclass
class Item:
    nodeid: str


def test_the_longest_groups_come_first_and_keep_their_order() -> None:
    items: list[Any] = [Item("a::one"), Item("b::two"), Item("b::three"), Item("c::four"), Item("d::five[mysql]")]
    longest_first(items, {"b": 90.0, "d mysql": 20.0})
    assert [item.nodeid for item in items] == ["b::two", "b::three", "d::five[mysql]", "a::one", "c::four"]


def test_long_groups_are_found_in_durations() -> None:
    durations = {"a::one[mysql]": 10.0, "a::two[mysql]": 6.0, "a::one[mariadb]": 14.0, "b::three": 20.4}
    assert long_groups(durations) == {"b": 20, "a mysql": 16}


def test_expected_groups_exist() -> None:
    gone = [group for group in expected_seconds() if not (Path(__file__).parents[2] / group.split()[0]).is_file()]
    assert gone == [], "python -m testkit.machine.distribution rewrites the file"
