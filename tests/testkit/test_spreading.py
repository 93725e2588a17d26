"""How `make test` spreads tests over processes: what shares a server stays together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from testkit.machine.distribution import group_of, longest_first


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


class Config:
    def getini(self, name: str) -> str:
        assert name == "timeout"
        return "300"


@dataclass
class Item:
    nodeid: str
    timeout: float | None = None
    config: Any = field(default_factory=Config)

    def get_closest_marker(self, name: str) -> Any:
        assert name == "timeout"
        return pytest.mark.timeout(self.timeout).mark if self.timeout is not None else None


def test_files_that_may_take_longest_come_first_and_keep_their_order() -> None:
    items: list[Any] = [Item("a::one"), Item("b::two"), Item("b::three", 900), Item("c::four", 20), Item("d::five[mysql]", 400)]
    longest_first(items)
    assert [item.nodeid for item in items] == ["b::two", "b::three", "d::five[mysql]", "a::one", "c::four"]
