"""Deleted ranges as CQL statements, compared row by row with the range itself, in every mix of clustering orders."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.cql.tables import ColumnRole, CqlColumn
from headrace.cql.types import CqlType
from headrace.sinks.cql.log_row_writes import Bound, Deletion, deletions

SIGNS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
VALUES = range(4)


def clustering(*descending: bool) -> list[CqlColumn]:
    return [CqlColumn(f"c{place}", CqlType("int"), ColumnRole.CLUSTERING, down) for place, down in enumerate(descending)]


def covered(found: list[Deletion], columns: int) -> set[tuple[int, ...]]:
    """Return the rows that the statements delete, by CQL's rules: columns are compared by value, in any clustering order."""
    return {row for row in itertools.product(VALUES, repeat=columns) if any(_is_in(deletion, row) for deletion in found)}


def _is_in(deletion: Deletion, row: tuple[int, ...]) -> bool:
    parts = [re.fullmatch(r"c(\d) (\S+) \?", relation) for relation in deletion.relations]
    return all(part is not None and SIGNS[part[2]](row[int(part[1])], value[0]) for part, value in zip(parts, deletion.values, strict=True))


def _place(bound: Bound, orders: tuple[bool, ...], *, start: bool) -> tuple[tuple[int, ...], int]:
    """A bound as a position between rows, in the table's order."""
    prefix = tuple(-value[0] if down else value[0] for value, down in zip(bound.prefix, orders, strict=False))
    return prefix, (-1 if start else 1) if bound.inclusive else (1 if start else -1)


def expected(orders: tuple[bool, ...], start: Bound, end: Bound) -> set[tuple[int, ...]]:
    rows = set()
    for row in itertools.product(VALUES, repeat=len(orders)):
        sorted_by = tuple(-value if down else value for value, down in zip(row, orders, strict=True))
        after, before = True, True
        for bound, is_start in ((start, True), (end, False)):
            prefix, side = _place(bound, orders, start=is_start)
            mine = sorted_by[: len(prefix)]
            is_after = mine > prefix or (mine == prefix and side < 0)
            if is_start:
                after = is_after
            else:
                before = not is_after
        if after and before:
            rows.add(row)
    return rows


bounds = st.tuples(st.lists(st.sampled_from(VALUES), max_size=3), st.booleans()).map(
    lambda made: Bound(tuple(bytes([value]) for value in made[0]), made[1] or not made[0])
)


@given(st.tuples(st.booleans(), st.booleans(), st.booleans()), bounds, bounds)
def test_any_range_in_any_order(orders: tuple[bool, ...], start: Bound, end: Bound) -> None:
    wanted = expected(orders, start, end)
    found = list(deletions(clustering(*orders), start, end))
    if _place(start, orders, start=True) <= _place(end, orders, start=False):
        assert covered(found, 3) == wanted


def test_the_text_of_values() -> None:
    up, down = clustering(False, False, False), clustering(False, True, False)
    one, five, two = b"\x01", b"\x05", b"\x02"
    assert list(deletions(up, Bound((one, five), False), Bound((one,), True))) == [Deletion(("c0 = ?", "c1 > ?"), (one, five))]
    # `c0 = 1 AND c1 > 5` where c1 descends: the range ends there.
    assert list(deletions(down, Bound((one,), True), Bound((one, five), False))) == [Deletion(("c0 = ?", "c1 > ?"), (one, five))]
    assert list(deletions(up, Bound((), True), Bound((one,), False))) == [Deletion(("c0 < ?",), (one,))]
    assert list(deletions(up, Bound((one,), True), Bound((one,), True))) == [Deletion(("c0 = ?",), (one,))]
    assert list(deletions(down, Bound((one, five), True), Bound((two,), True))) == [
        Deletion(("c0 = ?", "c1 <= ?"), (one, five)),
        Deletion(("c0 > ?", "c0 <= ?"), (one, two)),
    ]
