"""A deleted range of rows, given by two places in the clustering order, as CQL deletions.

A place is a prefix of the clustering columns' values and whether the rows with that prefix belong to the range. CQL compares one column
at a time, by value and not by the table's order, so a range whose two places differ early becomes several deletions side by side: each
says columns that are equal, then one column that is between. All have one timestamp: together they cover exactly the rows of the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.cql.tables import CqlColumn
from headrace.cql.types import quoted


class Bound(NamedTuple):
    """One end of a range."""

    prefix: tuple[bytes, ...]
    """The values of the first clustering columns; empty: the partition's end."""
    inclusive: bool


class Deletion(NamedTuple):
    """Relations on the clustering columns, and their values."""

    relations: tuple[str, ...]
    values: tuple[bytes, ...]


def deletions(clustering: Sequence[CqlColumn], start: Bound, end: Bound) -> Iterator[Deletion]:
    """Return the range as deletions; empty if no row can lie in it."""
    common = 0
    while common < min(len(start.prefix), len(end.prefix)) and start.prefix[common] == end.prefix[common]:
        common += 1
    if not (_is_reached(start, common) and _is_reached(end, common)):
        return
    yield from _steps(clustering, start, common, after=True)
    yield from _steps(clustering, end, common, after=False)
    # What lies between the two in the first column in which they differ, or all of it if they do not.
    shared = start.prefix[:common]
    relations, values = _equal(clustering, shared), list(shared)
    for bound, after in ((start, True), (end, False)):
        if len(bound.prefix) > common:
            inclusive = bound.inclusive and len(bound.prefix) == common + 1
            relations.append(_compared(clustering[common], after=after, inclusive=inclusive))
            values.append(bound.prefix[common])
    yield Deletion(tuple(relations), tuple(values))


def _is_reached(bound: Bound, common: int) -> bool:
    """Return whether rows with the common prefix are inside a bound: not if the bound is exactly that prefix, exclusive."""
    return len(bound.prefix) > common or bound.inclusive


def _steps(clustering: Sequence[CqlColumn], bound: Bound, common: int, *, after: bool) -> Iterator[Deletion]:
    """Yield deletions of rows that share more than the common prefix with a bound: per longer prefix, those after it in the next column."""
    for depth in range(common + 1, len(bound.prefix)):
        inclusive = bound.inclusive and depth == len(bound.prefix) - 1
        relations = (*_equal(clustering, bound.prefix[:depth]), _compared(clustering[depth], after=after, inclusive=inclusive))
        yield Deletion(relations, bound.prefix[: depth + 1])


def _equal(clustering: Sequence[CqlColumn], values: Sequence[bytes]) -> list[str]:
    return [f"{quoted(column.name)} = ?" for column, _ in zip(clustering, values, strict=False)]


def _compared(column: CqlColumn, *, after: bool, inclusive: bool) -> str:
    """Return the relation for rows after (before) a value in the table's order; a descending column has its greater values first."""
    sign = ">" if after is not column.descending else "<"
    return f"{quoted(column.name)} {sign}{'=' if inclusive else ''} ?"
