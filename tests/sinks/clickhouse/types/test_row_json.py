"""Rows survive JSON, for extreme values of every kind of column."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.types.scalar_values import row_to_json, rows_from_json
from testkit.generators.kind_values import VALUES, array_of

_DAY_US = 86_400_000_000
_MORE: dict[Kind, list[Any]] = {
    Kind.FLOAT32: [float("inf"), float("nan")],
    Kind.FLOAT64: [float("-inf"), float("nan")],
    Kind.DECIMAL: [Decimal(0)],
    Kind.DATE: [-719_163, -719_162, 2_932_897, -2_000_000],
    Kind.DATETIME: [-719_162 * _DAY_US - 1, -(2**62)],
    Kind.TIMESTAMP: [2_932_897 * _DAY_US],
    Kind.TIME: [3_020_399_999_999],
}


def bits(array: Any) -> list[Any]:
    """Return an array's values, floats as bits."""
    if pa.types.is_floating(array.type):
        integer = pa.int32() if array.type == pa.float32() else pa.int64()
        return list(array.view(integer).to_pylist())
    if pa.types.is_temporal(array.type):
        return list(array.view(pa.int32() if array.type == pa.date32() else pa.int64()).to_pylist())
    if pa.types.is_list(array.type):
        return [None if not one.is_valid else bits(one.values) for one in array]
    return list(array.to_pylist())


@pytest.mark.parametrize("kind", list(Kind))
def test_a_value_of_every_kind_comes_back_bit_for_bit(kind: Kind) -> None:
    column = Column("v", kind, True, 65 if kind is Kind.DECIMAL else 6, 30 if kind is Kind.DECIMAL else 0, ("", "b'c", "漢", "a", "b"))
    schema = TableSchema(TableName("d", "t"), (column,), ())
    images = pa.record_batch([array_of(column, [*VALUES[kind], *_MORE.get(kind, ()), None])], schema=schema.arrow_schema)
    rows = [json.loads(json.dumps(row_to_json(images, schema, row))) for row in range(images.num_rows)]
    again = rows_from_json(schema, rows)
    assert again.schema == images.schema
    assert bits(again.column(0)) == bits(images.column(0))


@given(st.integers(-719_528, 2_932_896), st.integers(0, _DAY_US - 1))
def test_every_day_and_microsecond_has_a_text_that_is_read_back(day: int, clock: int) -> None:
    columns = (Column("d", Kind.DATE), Column("t", Kind.DATETIME, precision=6))
    schema = TableSchema(TableName("d", "t"), columns, ())
    images = pa.record_batch([array_of(columns[0], [day]), array_of(columns[1], [day * _DAY_US + clock])], schema=schema.arrow_schema)
    values = row_to_json(images, schema, 0)
    assert all(isinstance(value, str) for value in values.values())
    again = rows_from_json(schema, [values])
    assert [bits(column) for column in again.columns] == [[day], [day * _DAY_US + clock]]
