"""Pages of random cells: columns equal the page, and damage is an error, never a read beyond the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cql.bounded_connection import RawPage
from headrace.cql.decode.pages import as_batch
from headrace.errors import DefiniteError

pytestmark = pytest.mark.scaled

Cell = bytes | None
Rows = list[tuple[Cell, ...]]


def _page(rows: Rows, columns: int, before: bytes) -> RawPage:
    cells = [cell for row in rows for cell in row]
    body = b"".join(b"\xff\xff\xff\xff" if cell is None else len(cell).to_bytes(4, "big") + cell for cell in cells)
    return RawPage([f"c{at}" for at in range(columns)], before + body, len(before), len(rows), ())


def _read(page: RawPage, columns: int) -> list[tuple[Cell, ...]] | None:
    """Parse a page in plain Python; None if it is damaged."""
    at, found = page.start, []
    for _ in range(page.count):
        row: list[Cell] = []
        for _ in range(columns):
            size = int.from_bytes(page.body[at : at + 4], "big", signed=True)
            at += 4
            if at > len(page.body) or size < -1 or at + max(size, 0) > len(page.body):
                return None
            row.append(None if size < 0 else page.body[at : at + size])
            at += max(size, 0)
        found.append(tuple(row))
    return found if at == len(page.body) else None


@st.composite
def pages(draw: st.DrawFn) -> tuple[int, list[tuple[Rows, RawPage]]]:
    columns = draw(st.integers(1, 4))
    row = st.tuples(*[st.none() | st.binary(max_size=70)] * columns)
    tables = draw(st.lists(st.lists(row, max_size=9), min_size=1, max_size=4))
    return columns, [(rows, _page(rows, columns, draw(st.binary(max_size=3)))) for rows in tables]


@given(pages())
def test_columns_say_what_pages_say(made: tuple[int, list[tuple[Rows, RawPage]]]) -> None:
    columns, listed = made
    batch = as_batch([page for _, page in listed])
    batch.validate(full=True)
    wanted = [row for rows, _ in listed for row in rows]
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == wanted
    assert batch.num_columns == columns


@given(pages(), st.data())
def test_damage_is_refused_or_harmless(made: tuple[int, list[tuple[Rows, RawPage]]], data: st.DataObject) -> None:
    columns, [(_, page), *_] = made
    body = bytearray(page.body)
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(("change", "cut", "add"))):
            case "change" if body:
                body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
            case "cut":
                del body[data.draw(st.integers(page.start, max(len(body), page.start))) :]
            case _:
                body += data.draw(st.binary(max_size=6))
    count = data.draw(st.sampled_from((page.count, page.count + 1, max(page.count - 1, 0))))
    damaged = RawPage(page.names, bytes(body), page.start, count, ())
    wanted = _read(damaged, columns)
    try:
        batch = as_batch([damaged])
    except DefiniteError:
        assert wanted is None
    else:
        assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == wanted
