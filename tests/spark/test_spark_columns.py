"""Types that Spark does not have arrive as exact text, interval or wider number; before and after images are paired."""

from __future__ import annotations

import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.spark.frames.table_frame import frame_type, pair_images, spark_type, to_spark, truncation
from testkit.generators.kind_values import block_of_rows

SCHEMA = TableSchema(TableName("shop", "t"), (Column("id", Kind.INT32, False), Column("big", Kind.UINT64)), ("id",))


def wide_decimals(scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**65) + 1, 10**65 - 1).map(lambda digits: Decimal(f"{digits}E-{scale}"))


@pytest.mark.parametrize("scale", [0, 1, 30])
@given(st.data())
def test_wide_decimals_keep_every_digit(scale: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | wide_decimals(scale), min_size=1, max_size=8))
    column = Column("d", Kind.DECIMAL, precision=65, scale=scale)
    array = pa.array([None, *values], column.arrow_type)
    assert to_spark(column, array.slice(1)).to_pylist() == [None if value is None else f"{value:.{scale}f}" for value in values]


@given(st.lists(st.none() | st.uuids(), min_size=1, max_size=8))
def test_uuids_are_written_as_usual(values: list[uuid.UUID | None]) -> None:
    column = Column("u", Kind.UUID)
    array = pa.array([b"\xff" * 16, *(None if value is None else value.bytes for value in values)], column.arrow_type)
    assert to_spark(column, array.slice(1)).to_pylist() == [None if value is None else str(value) for value in values]


def test_every_kind_has_a_type_and_an_array() -> None:
    for kind in Kind:
        column = Column("c", kind, precision=12, scale=2, members=("a",))
        spark_type(column)
        assert len(to_spark(column, pa.nulls(3, column.arrow_type))) == 3


def block_of(images: list[tuple[Op, int, int | None]], first_version: int = 100) -> ChangeBlock:
    count = len(images)
    rows, ops = [row for _, *row in images], [op for op, *_ in images]
    moments = [1_000_000 * i for i in range(count)]
    return block_of_rows(SCHEMA, rows, ops, versions=range(first_version, first_version + count), commit_us=moments)


def test_images_become_changes() -> None:
    top = 2**64 - 1
    images = [(Op.DELETE, 1, None), (Op.BEFORE, 2, top), (Op.UPDATE, 3, 0), (Op.INSERT, 4, 4), (Op.BEFORE, 5, 5), (Op.UPDATE, 5, None)]
    rows = pair_images(block_of(images)).to_pylist()
    assert [(row["_op"], row["_version"], row["before"], row["after"]) for row in rows] == [
        ("delete", 100, {"id": 1, "big": None}, None),
        ("update", 102, {"id": 2, "big": Decimal(top)}, {"id": 3, "big": Decimal(0)}),
        ("insert", 103, None, {"id": 4, "big": Decimal(4)}),
        ("update", 105, {"id": 5, "big": Decimal(5)}, {"id": 5, "big": None}),
    ]
    [truncated] = truncation(SCHEMA, 7).to_pylist()
    assert (truncated["_op"], truncated["_version"], truncated["before"], truncated["after"]) == ("truncate", 7, None, None)
    assert frame_type(SCHEMA).fieldNames() == ["_op", "_version", "_ts", "_transaction", "before", "after"]


def test_what_cannot_be_paired_or_numbered() -> None:
    for images in ([(Op.UPDATE, 1, 1)], [(Op.INSERT, 1, 1), (Op.UPDATE, 1, 2)]):
        with pytest.raises(DefiniteError, match="without its before image"):
            pair_images(block_of(images))
    with pytest.raises(DefiniteError, match="do not fit Spark's long"):
        pair_images(block_of([(Op.INSERT, 1, 1)], first_version=2**63))
