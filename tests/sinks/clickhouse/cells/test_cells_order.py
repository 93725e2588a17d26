"""Clustering keys as bytes sort like the values, for every type, and range bounds are correct."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cql import timeuuid
from headrace.cql.decode.arrow_arrays import Cells
from headrace.cql.tables import ColumnRole, CqlColumn
from headrace.cql.types import CqlType, parse_type
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.key_order import order_column, order_keys, range_keys
from testkit.generators.cql_values import SCALARS, serialised


def encoded(kind: CqlType, values: list[Any], *, descending: bool = False) -> list[bytes]:
    raw = pa.array([None if value is None else serialised(kind, value) for value in values], pa.binary())
    found: list[bytes] = order_column(CqlColumn("c", kind, ColumnRole.CLUSTERING, descending), Cells.of(raw)).to_pylist()
    return found


def _float_order(value: float) -> tuple[float, float]:
    return (value, math.copysign(1, value))


ORDERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "varint", "decimal", "timestamp", "boolean"), lambda value: value),
    "float": _float_order,
    "double": _float_order,
    "text": lambda value: value.encode(),
    "ascii": lambda value: value.encode(),
    "blob": lambda value: value,
    "date": lambda value: value.days_from_epoch,
    "time": lambda value: value.nanosecond_time,
    "timeuuid": timeuuid.order_key,
}


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_bytes_sort_as_values_do(name: str) -> None:
    kind = CqlType(name)

    @given(st.lists(SCALARS[name], min_size=2, max_size=8))
    def check(values: list[Any]) -> None:
        order = ORDERS[name]
        for descending in (False, True):
            made = encoded(kind, values, descending=descending)
            for one, first in zip(made, values, strict=True):
                assert one[:1] != b"\xff"
                for other, second in zip(made, values, strict=True):
                    expected = order(first) < order(second)
                    assert (one > other if descending else one < other) == expected, (first, second)
                    assert (one == other) == (order(first) == order(second))

    check()


def test_made_types_sort_part_by_part() -> None:
    pairs = parse_type("tuple<int, text>")
    values = [(None, "b"), (-1, None), (-1, ""), (-1, "a"), (0, None), (2, "a")]
    assert encoded(pairs, values) == sorted(encoded(pairs, values))
    lists = CqlType("list", (CqlType("int"),), frozen=True)
    numbers: list[list[int]] = [[-1], [-1, 0], [0], [0, -5], [1]]
    assert encoded(lists, numbers) == sorted(encoded(lists, numbers))
    vectors = parse_type("vector<float, 2>")
    points = [[-2.5, 3.0], [-2.5, 4.0], [0.0, -1.0], [1.0, -9.0]]
    assert encoded(vectors, points) == sorted(encoded(vectors, points))


def test_bounds_of_prefixes_lie_around_all_keys_of_the_prefix() -> None:
    columns = [
        CqlColumn("a", CqlType("text"), ColumnRole.CLUSTERING),
        CqlColumn("b", CqlType("int"), ColumnRole.CLUSTERING, descending=True),
    ]

    def keys(*rows: tuple[str | None, int | None]) -> list[bytes]:
        parts = {
            column.name: Cells.of(pa.array([None if row[i] is None else serialised(column.type, row[i]) for row in rows], pa.binary()))
            for i, column in enumerate(columns)
        }
        found: list[bytes] = order_keys(columns, parts.__getitem__)[1].to_pylist()
        return found

    inside = keys(("a", 5), ("a", -5), ("a", 2**31 - 1))
    outside = keys(("", 0), ("a\0", 0), ("aa", 0), ("b", 0))
    (prefix,) = keys(("a", None))
    (made,) = range_keys(pa.array([prefix]), pa.array([False]), pa.array([prefix]), pa.array([True])).to_pylist()
    size = int.from_bytes(made[:4], "big")
    start, end = made[4 : 4 + size], made[4 + size :]
    assert all(start <= key < end for key in inside)
    assert not any(start <= key < end for key in outside)
    assert inside[2] < inside[0] < inside[1]


def test_a_value_of_another_size_is_named() -> None:
    with pytest.raises(DefiniteError, match="3 bytes instead of 4"):
        order_column(CqlColumn("c", CqlType("int"), ColumnRole.CLUSTERING), Cells.of(pa.array([b"abc"], pa.binary())))
