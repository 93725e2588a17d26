"""The frame of a table's changes: its options, its columns, and how blocks of row images become its rows.

No value loses precision. Values that Spark has no type for are widened (unsigned integers), or become exact text (decimals of more than 38
digits, UUIDs) or bytes (geometries, addresses). A row is one change, with the images before and after it. A block with all before images
has the two images of an update next to each other (the kernel never ends a block between them). So the before image is one place before the
after image.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema, ZeroDates
from headrace.model.text_values import fixed_bytes_printer, format_decimals
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, parse_mysql_url

UNSIGNED_64: Final = spark.DecimalType(20, 0)
_WIDEST_DECIMAL: Final = 38

_TYPES: Final = {
    one.simpleString(): one
    for one in (
        spark.ByteType(),
        spark.ShortType(),
        spark.IntegerType(),
        spark.LongType(),
        UNSIGNED_64,
        spark.FloatType(),
        spark.DoubleType(),
        spark.StringType(),
        spark.BinaryType(),
        spark.DateType(),
        spark.TimestampNTZType(),
        spark.TimestampType(),
        # A MySQL TIME is a span of up to 838 hours either way, not a time of day.
        spark.DayTimeIntervalType(),
        spark.ArrayType(spark.FloatType(), containsNull=False),
    )
}
"""By the names that `ColumnType.spark` uses."""

TRUNCATE: Final = "truncate"
_OP_NAMES: Final = pa.array([op.name.lower() for op in Op])
_RELAY_BYTES: Final = 256 << 20
_OPTIONS: Final = {
    "url": "mysql://user@host:port/",
    "table": "DATABASE.TABLE",
    "password": "the user's, if it is neither in the url nor in HEADRACE_SOURCE_PASSWORD",
    "startingPosition": "now, oldest, FILE:OFFSET, GTIDs, or a position of headrace.changes",
    "zeroDates": "error, null or epoch",
    "relayDirectory": "where the log is mirrored while it is read; on a cluster, a directory that all machines share",
    "relayBytes": "how much of it at most",
}
_ZERO_DATES: Final = {"error": ZeroDates.HALT, "null": ZeroDates.NULL, "epoch": ZeroDates.EPOCH}


def spark_type(column: Column) -> spark.DataType:
    if column.form is ValueForm.DECIMAL:
        wide = column.precision > _WIDEST_DECIMAL
        return spark.StringType() if wide else spark.DecimalType(column.precision, column.scale)
    if column.form is ValueForm.BITS:
        return UNSIGNED_64 if column.precision == 64 else spark.LongType()
    return _TYPES[column.type.spark]


def row_type(schema: TableSchema) -> spark.StructType:
    """Return the Spark type of one row image."""
    return spark.StructType([spark.StructField(column.name, spark_type(column)) for column in schema.columns])


def to_spark(column: Column, array: pa.Array) -> pa.Array:
    """Return a column's values in the Arrow type of their Spark type."""
    made = spark_type(column)
    if column.form is ValueForm.TIME:
        return array.view(pa.int64()).view(pa.duration("us"))
    if column.form is ValueForm.FIXED_BYTES and isinstance(made, spark.StringType):
        return fixed_bytes_printer(column)(array)
    if column.form is ValueForm.DECIMAL and isinstance(made, spark.StringType):
        return format_decimals(array, column.precision, column.scale)
    return array.cast(to_arrow_type(made, timezone="UTC"))


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


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The parsed options of a query."""

    address: MySQLAddress
    table: TableName
    start: str
    zero_dates: ZeroDates
    relay_directory: str
    relay_bytes: int

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> TableRequest:
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - {name.lower() for name in _OPTIONS})
        database, _, table = given.get("table", "").partition(".")
        zero_dates, relay_bytes = given.get("zerodates", "error"), given.get("relaybytes", str(_RELAY_BYTES))
        hint = "; ".join(f"{name}: {meaning}" for name, meaning in _OPTIONS.items())
        if unknown:
            raise DefiniteError(f"option {unknown[0]!r} is not known", hint=hint)
        if not given.get("url") or not database or not table or zero_dates not in _ZERO_DATES or not relay_bytes.isdigit():
            raise DefiniteError("the options url and table are needed, and each must be readable", hint=hint)
        address = parse_mysql_url(given["url"])
        if "password" in given:
            address = replace(address, password=given["password"])
        name, start, directory = TableName(database, table), given.get("startingposition", ""), given.get("relaydirectory", "")
        return cls(address, name, start, _ZERO_DATES[zero_dates], directory, int(relay_bytes))

    @property
    def pattern(self) -> str:
        """A glob that matches only this table."""
        return glob.escape(str(self.table))

    def captured(self, connection: Connection[Any]) -> TableSchema:
        schemas = capture_schemas(connection, self.address, self.table.__eq__)
        if not schemas:
            raise DefiniteError(f"the source has no table {self.table}", place=str(self.address), hint="check the option table")
        return schemas[0].with_zero_dates(self.zero_dates)

    def check_frame(self, schema: TableSchema, frame: StructType, place: str) -> None:
        """Raise if rows of `schema` would not fit the frame."""
        if frame_type(schema) != frame:
            columns = ", ".join(f"{column.name} {column.source_type}" for column in schema.columns)
            raise DefiniteError(
                f"table {self.table} has other columns from here on than the frame: {columns}",
                place=place,
                hint="start the query again: a new load() has the table's current columns, and the query continues at its checkpoint "
                "(if the table was changed while the query did not run, load once with .schema(...) as the table was at that position)",
            )


def schema_to_text(schema: TableSchema) -> str:
    """Return a schema as text, for Spark's offsets and partitions."""
    return json.dumps(schema.to_json())


def schema_from_text(text: str) -> TableSchema:
    return TableSchema.from_json(json.loads(text))
