"""Checks that a block could come from a server: its arrays are valid, and no value is outside of its column's type.

Without a checksum, damage may turn a value into another valid one, but not into one that the column cannot hold.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableSchema

_LONGEST_TIME = (838 * 3600 + 59 * 60 + 59) * 1_000_000 + 999_999
_OPS = {int(op) for op in Op}


def check_block(block: ChangeBlock) -> None:
    versions = np.asarray(block.version)
    assert len(np.unique(versions)) == len(versions), "two images of one version"
    assert set(block.op.to_pylist()) <= _OPS
    check_batch(block.schema, block.images)


def check_batch(schema: TableSchema, batch: pa.RecordBatch) -> None:
    assert batch.schema == schema.arrow_schema
    for column, array in zip(schema.columns, batch.columns, strict=True):
        # A time column carries times that are no time of day, which Arrow's own check refuses.
        array.validate(full=column.kind is not Kind.TIME)
        assert column.nullable or array.null_count == 0, f"NULL in {column.name}, which has none"
        if array.null_count < len(array):
            _check_range(column, array)


def _check_range(column: Column, array: pa.Array) -> None:
    if column.kind is Kind.BIT:
        assert not pc.max(array).as_py() >> column.precision, f"bits beyond {column.name}"
    elif column.kind is Kind.TIME:
        extremes = pc.min_max(array.view(pa.int64())).as_py()
        assert -_LONGEST_TIME <= extremes["min"] <= extremes["max"] <= _LONGEST_TIME, f"time beyond what {column.name} holds"
    elif column.kind is Kind.YEAR:
        assert pc.max(array).as_py() <= 2155, f"year beyond what {column.name} holds"
