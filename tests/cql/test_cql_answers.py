"""`CqlSession.execute` reads a result of many pages; a result without an end is a definite error in bounded memory and time."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.cql import session as module
from headrace.cql.address import parse_cql_url
from headrace.cql.session import CqlSession
from headrace.errors import DefiniteError

Row = namedtuple("Row", ["name", "more"])
ADDRESS = parse_cql_url("scylla://127.0.0.1/ks")


@dataclass
class Pages:
    """A driver, and its result: pages as a server sends them."""

    page: Callable[[int], list[Any]]
    last: int | None
    number: int = 0

    def execute(self, *_: Any) -> Pages:
        return self

    @property
    def current_rows(self) -> list[Any]:
        return self.page(self.number)

    @property
    def has_more_pages(self) -> bool:
        return self.last is None or self.number < self.last

    def fetch_next_page(self) -> None:
        self.number += 1


def test_all_pages_are_taken() -> None:
    pages = Pages(lambda number: [Row(f"{number}", {"a": [1, number]})] if number != 1 else [], last=3)
    assert CqlSession(ADDRESS, pages).execute("SELECT") == [Row(f"{n}", {"a": [1, n]}) for n in (0, 2, 3)]
    assert CqlSession(ADDRESS, Pages(lambda _: [], last=0)).execute("CREATE TABLE") == []


@pytest.mark.parametrize(
    "row",
    [Row("x" * 10_000, None), Row("", {"k": b"y" * 10_000}), Row("", [("z" * 10_000,)]), Row(None, {frozenset(("w" * 10_000,))})],
    ids=["text", "map", "list", "set"],
)
def test_rows_without_an_end(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESULT_BYTES", 1 << 20)
    pages = Pages(lambda _: [row] * 10, last=None)
    with pytest.raises(DefiniteError, match="its result is not complete after") as caught:
        CqlSession(ADDRESS, pages).execute("SELECT * FROM t")
    assert pages.number < 12
    assert "SELECT * FROM t" in str(caught.value)


def test_many_small_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESULT_BYTES", 1 << 20)
    pages = Pages(lambda _: [Row(None, 1)] * 1000, last=None)
    with pytest.raises(DefiniteError, match="its result is not complete after"):
        CqlSession(ADDRESS, pages).execute("SELECT")
    assert pages.number < 20


def test_empty_pages_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_TIMEOUTS", 0.005)
    with pytest.raises(DefiniteError, match="its result is not complete after 0 rows"):
        CqlSession(ADDRESS, Pages(lambda _: [], last=None)).execute("SELECT")
