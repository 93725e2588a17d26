"""A block of images as rows of a typed frame: one row per change, with what was before and what is after.

A block read with every before image has an update's two images next to each other (the kernel never ends a block between them), so
pairing is a matter of indices: the after image is where the change is, the before image one place earlier.
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
    """The columns of a table's frame of changes."""
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
    """The changes of a block that holds every before image."""
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
    """The one row that says: all rows of the table are gone."""
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
