"""Rows survive JSON, for extreme values of every kind of column."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.types.row_json import row_to_json, rows_from_json

_DAY_US = 86_400_000_000
_DECIMAL = Decimal((0, (9,) * 65, -30))
VALUES: dict[Kind, list[Any]] = {
    Kind.INT8: [-128, 127],
    Kind.INT16: [-32768, 32767],
    Kind.INT32: [-(2**31), 2**31 - 1],
    Kind.INT64: [-(2**63), 2**63 - 1],
    Kind.UINT8: [0, 255],
    Kind.UINT16: [0, 65535],
    Kind.UINT32: [0, 2**32 - 1],
    Kind.UINT64: [0, 2**64 - 1],
    Kind.FLOAT32: [3.4028234663852886e38, 1.401298464324817e-45, -0.0, np.float32(0.1), float("inf"), float("nan")],
    Kind.FLOAT64: [1.7976931348623157e308, 5e-324, -0.0, 0.1, float("-inf"), float("nan")],
    Kind.DECIMAL: [_DECIMAL, _DECIMAL.copy_negate(), Decimal("0.000000000000000000000000000001"), Decimal(0)],
    Kind.STRING: ["", "a\x00b", "\u2028漢字😀\ufffd\U0010ffff", "\"\\/'\t\n"],
    Kind.BYTES: [b"", bytes(range(256))],
    Kind.DATE: [-719_528, 2_932_896, 0, -1, -719_163, -719_162, 2_932_897, -2_000_000],
    Kind.DATETIME: [-719_528 * _DAY_US, 2_932_897 * _DAY_US - 1, 0, -1, 1, -719_162 * _DAY_US - 1, -(2**62)],
    Kind.TIMESTAMP: [0, 1, 4_294_967_295_999_999, 2_932_897 * _DAY_US],
    Kind.TIME: [-3_020_399_000_000, 3_020_399_999_999, 0, -1, 1],
    Kind.YEAR: [0, 1901, 2155],
    Kind.ENUM: ["", "b'c", "漢"],
    Kind.SET: ["", "a,b"],
    Kind.BIT: [0, 2**64 - 1],
    Kind.JSON: ["{}", '{"a": [1, 2.50, "é\\n"]}', "null"],
    Kind.GEOMETRY: [b"\x00" * 25, b"\xff\x01"],
    Kind.VECTOR: [[], [1.5, -0.0, 3.4028234663852886e38, np.float32(0.1)]],
    Kind.UUID: [b"\x00" * 16, bytes(range(16))],
    Kind.INET4: [b"\x00" * 4, b"\xff\x01\x02\x03"],
    Kind.INET6: [b"\x00" * 16, b"\x00" * 10 + b"\xff\xff\x01\x02\x03\x04", bytes(range(16))],
}


def test_every_kind_is_here() -> None:
    assert set(VALUES) == set(Kind)


def array_of(column: Column, values: list[Any]) -> Any:
    match column.kind:
        case Kind.ENUM | Kind.SET:
            return pa.array(values, pa.string()).dictionary_encode()
        case Kind.DATE:
            return pa.array(values, pa.int32()).view(pa.date32())
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return pa.array(values, pa.int64()).view(column.arrow_type)
        case Kind.FLOAT32:
            return pa.array(np.array([0 if v is None else v for v in values], np.float32), mask=np.array([v is None for v in values]))
    return pa.array(values, column.arrow_type)


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
    images = pa.record_batch([array_of(column, [*VALUES[kind], None])], schema=schema.arrow_schema)
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
