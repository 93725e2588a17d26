"""Turns blocks of row images into rows of a typed frame: one row per change, with the images before and after it.

A block with all before images has the two images of an update next to each other (the kernel never ends a block between them). So the
before image is one place before the after image.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.spark.frames.column_types import row_type, to_spark

TRUNCATE: Final = "truncate"
_OP_NAMES: Final = pa.array([op.name.lower() for op in Op])


def frame_type(schema: TableSchema) -> spark.StructType:
    """Return the columns of the frame of a table's changes."""
    row = row_type(schema)
    return spark.StructType(
        [
            spark.StructField("_op", spark.StringType(), nullable=False),
            spark.StructField("_version", spark.LongType(), nullable=False),
            spark.StructField("_ts", spark.TimestampType()),
            spark.StructField("_transaction", spark.StringType()),
            spark.StructField("before", row),
            spark.StructField("after", row),
        ]
    )


def pair_images(block: ChangeBlock) -> pa.RecordBatch:
    """Return the changes of a block that has all before images."""
    op = block.op.to_numpy()
    at = np.flatnonzero(op != Op.BEFORE)
    kind = op[at]
    update = kind == Op.UPDATE
    if not (op[at[update] - 1] == Op.BEFORE).all():
        raise DefiniteError(f"an update of {block.schema.name} came without its before image", hint="please report it")
    columns = [to_spark(column, array) for column, array in zip(block.schema.columns, block.images.columns, strict=True)]
    schema = to_arrow_schema(frame_type(block.schema), timezone="UTC")
    before = _rows(schema.field("before").type, columns, at - update, missing=~(update | (kind == Op.DELETE)))
    after = _rows(schema.field("after").type, columns, at, missing=kind == Op.DELETE)
    chosen = pa.array(at)
    transaction = pa.nulls(len(at), pa.string()) if block.transaction is None else block.transaction.take(chosen).cast(pa.string())
    return pa.RecordBatch.from_arrays(
        [
            _OP_NAMES.take(pa.array(kind)),
            _as_long(block.version.take(chosen)),
            block.commit_ts.take(chosen).cast(schema.field("_ts").type),
            transaction,
            before,
            after,
        ],
        schema=schema,
    )


def truncation(schema: TableSchema, version: int) -> pa.RecordBatch:
    """Return the row that marks a TRUNCATE of the table."""
    arrow = to_arrow_schema(frame_type(schema), timezone="UTC")
    return pa.RecordBatch.from_pylist([{"_op": TRUNCATE, "_version": version}], schema=arrow)


def _rows(kind: pa.StructType, columns: list[pa.Array], at: np.ndarray, missing: np.ndarray) -> pa.StructArray:
    chosen = pa.array(at, mask=missing)
    return pa.StructArray.from_arrays([column.take(chosen) for column in columns], fields=list(kind), mask=pa.array(missing))


def _as_long(version: pa.UInt64Array) -> pa.Int64Array:
    try:
        return version.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DefiniteError("versions after 31 changes of the source server do not fit Spark's long", hint="start a new query") from error
