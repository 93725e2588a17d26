"""Verification finds every difference in keys and values, and none where there is none."""

from __future__ import annotations

import math
import struct
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.verify.row_compare import MOST_REPORTED, Comparison, Difference, compare

NAME = TableName("shop", "t")
SCHEMA = TableSchema(
    NAME,
    (
        Column("b", Kind.STRING, nullable=False),
        Column("n", Kind.INT32),
        Column("a", Kind.INT64, nullable=False),
        Column("e", Kind.ENUM),
    ),
    ("a", "b"),
)


def table(*rows: tuple[Any, ...], schema: TableSchema = SCHEMA) -> pa.Table:
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) if rows else [()] * len(schema.columns)
    arrays = []
    for column, values in zip(schema.columns, columns, strict=True):
        named = column.kind in (Kind.ENUM, Kind.SET)
        arrays.append(pa.array(values, pa.string()).dictionary_encode() if named else pa.array(values, column.arrow_type))
    return pa.table(arrays, schema=schema.arrow_schema)


def one_column(column: Column, array: Any) -> tuple[TableSchema, pa.Table]:
    schema = TableSchema(NAME, (Column("id", Kind.INT32, nullable=False), column), ("id",))
    return schema, pa.table([pa.array(range(len(array)), pa.int32()), array], schema=schema.arrow_schema)


def test_equal_rows_in_any_order_do_not_differ() -> None:
    rows = [("x", 1, 1, "p"), ("y", None, 1, None), ("x", 3, 2, "q")]
    assert compare(SCHEMA, table(*rows), table(*reversed(rows))) == Comparison(3, 0, ())


def test_rows_without_a_key_are_compared_as_often_as_they_occur() -> None:
    keyless = TableSchema(NAME, SCHEMA.columns, ())
    twice = [("x", 1, 1, "p"), ("y", None, 1, None), ("x", 1, 1, "p"), ("y", None, 1, None), ("x", 1, 1, "p")]
    assert compare(keyless, table(*twice), table(*reversed(twice))) == Comparison(5, 0, ())
    found = compare(keyless, table(*twice), table(*twice[:3], ("z", 1, 1, "p")))
    assert found.total == 3
    assert found.differences == (
        Difference(("x", 1, 1, "p"), "missing"),
        Difference(("y", None, 1, None), "missing"),
        Difference(("z", 1, 1, "p"), "extra"),
    )
    assert compare(keyless, table(), table()) == Comparison(0, 0, ())


def test_missing_extra_and_different() -> None:
    source = table(("x", 1, 1, "p"), ("x", 2, 2, None), ("x", 3, 3, "q"))
    target = table(("x", 1, 1, "p"), ("x", None, 3, "r"), ("X", 9, 3, "q"))
    found = compare(SCHEMA, source, target)
    assert found.total == 4
    assert found.differences == (
        Difference((2, "x"), "missing"),
        Difference((3, "X"), "extra"),
        Difference((3, "x"), "different", "n", 3, None),
        Difference((3, "x"), "different", "e", "q", "r"),
    )


def test_a_duplicate_row_is_extra() -> None:
    row = ("x", 1, 1, "p")
    assert compare(SCHEMA, table(row), table(row, row)).differences == (Difference((1, "x"), "extra"),)
    assert compare(SCHEMA, table(row, row), table(row)).differences == (Difference((1, "x"), "missing"),)


@pytest.mark.parametrize(("source_rows", "target_rows"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_empty_and_single_tables(source_rows: int, target_rows: int) -> None:
    row = ("x", 1, 1, "p")
    found = compare(SCHEMA, table(*[row] * source_rows), table(*[row] * target_rows))
    assert (found.rows, found.total) == (source_rows, abs(source_rows - target_rows))


def test_null_is_not_zero_and_not_empty() -> None:
    for column, null_side, value_side in (
        (Column("n", Kind.INT32), pa.array([None], pa.int32()), pa.array([0], pa.int32())),
        (Column("s", Kind.STRING), pa.array([None], pa.string()), pa.array([""])),
    ):
        schema, nulls = one_column(column, null_side)
        _, values = one_column(column, value_side)
        assert compare(schema, nulls, values).total == compare(schema, values, nulls).total == 1
        assert compare(schema, nulls, nulls).total == 0


def test_floats_are_compared_by_their_bits() -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    bits = np.array([math.nan, 0.0, 0.1], dtype=np.float64)
    changed = np.array([other_nan, -0.0, np.nextafter(0.1, 1)], dtype=np.float64)
    schema, source = one_column(Column("f", Kind.FLOAT64), pa.array(bits, from_pandas=False))
    _, target = one_column(Column("f", Kind.FLOAT64), pa.array(changed, from_pandas=False))
    assert compare(schema, source, source).total == 0
    assert compare(schema, source, target).total == 3


def test_dictionaries_are_equal_when_their_strings_are() -> None:
    left = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int32()), pa.array(["p", "q"]))
    right = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int32()), pa.array(["q", "p", "unused"]))
    schema, source = one_column(Column("e", Kind.SET), left)
    _, target = one_column(Column("e", Kind.SET), right)
    assert compare(schema, source, target).total == 0


def test_values_that_python_cannot_hold_are_reported_readably() -> None:
    micros = pa.array([-3_020_399_000_000, 90_000_000_000], pa.int64())
    schema, source = one_column(Column("t", Kind.TIME), micros.view(pa.time64("us")))
    _, target = one_column(Column("t", Kind.TIME), pa.array([1, 90_000_000_000], pa.int64()).view(pa.time64("us")))
    [difference] = compare(schema, source, target).differences
    assert (difference.source, difference.target) == (-timedelta(hours=838, minutes=59, seconds=59), timedelta(microseconds=1))
    schema, source = one_column(Column("d", Kind.DATE), pa.array([-719_528], pa.int32()).cast(pa.date32()))
    _, target = one_column(Column("d", Kind.DATE), pa.array([-719_500], pa.int32()).cast(pa.date32()))
    [difference] = compare(schema, source, target).differences
    assert (difference.source, difference.target) == ("0000-01-01", "0000-01-29")
    schema, source = one_column(Column("d", Kind.DATETIME), pa.array([-719_528 * 86_400_000_000 + 1], pa.timestamp("us")))
    _, target = one_column(Column("d", Kind.DATETIME), pa.array([0], pa.timestamp("us")))
    assert compare(schema, source, target).differences[0].source == "0000-01-01 00:00:00.000001"


def test_wide_decimals_as_key_and_value() -> None:
    big = Decimal("9" * 35 + "." + "9" * 30)
    schema = TableSchema(NAME, (Column("k", Kind.DECIMAL, False, 65, 30), Column("v", Kind.DECIMAL, True, 65, 30)), ("k",))
    source = table((big, big), (Decimal(1), None), schema=schema)
    target = table((Decimal(1), None), (big, big.copy_negate()), schema=schema)
    assert compare(schema, source, source).total == 0
    assert compare(schema, source, target).differences == (Difference((big,), "different", "v", big, big.copy_negate()),)


def test_the_list_is_bounded_and_the_count_is_not() -> None:
    source = table(*[("x", 1, i, "p") for i in range(5000)])
    found = compare(SCHEMA, source, table())
    assert (found.total, len(found.differences)) == (5000, MOST_REPORTED)
    both = found + compare(SCHEMA, table(), source)
    assert (both.rows, both.total, len(both.differences)) == (5000, 10000, MOST_REPORTED)


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(DefiniteError, match="the target's rows do not have the columns"):
        compare(SCHEMA, table(), table().select(["a", "b"]))


cells = st.tuples(
    st.sampled_from(["", "x", "X", "é"]), st.none() | st.integers(-2, 2), st.integers(0, 3), st.none() | st.sampled_from(["p", "q"])
)
rows_by_key = st.dictionaries(st.tuples(st.integers(0, 3), st.sampled_from(["", "x", "X", "é"])), cells, max_size=12)


@given(rows_by_key, rows_by_key)
def test_agrees_with_a_comparison_row_by_row(left: dict[tuple[int, str], Any], right: dict[tuple[int, str], Any]) -> None:
    source = {key: (key[1], row[1], key[0], row[3]) for key, row in left.items()}
    target = {key: (key[1], row[1], key[0], row[3]) for key, row in right.items()}
    expected = {(key, "missing", "") for key in source.keys() - target.keys()} | {
        (key, "extra", "") for key in target.keys() - source.keys()
    }
    for key in source.keys() & target.keys():
        expected |= {(key, "different", name) for name, at in (("n", 1), ("e", 3)) if source[key][at] != target[key][at]}
    found = compare(SCHEMA, table(*source.values()), table(*target.values()))
    assert {(d.key, d.kind, d.column) for d in found.differences} == expected
    assert found.total == len(expected)
