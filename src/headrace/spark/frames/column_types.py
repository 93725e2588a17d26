"""Maps columns to Spark: the type of each kind, and its Arrow array in the form that Spark expects.

No value loses precision. Values that Spark has no type for are widened (unsigned integers), or become exact text (decimals of more than 38
digits, UUIDs) or bytes (geometries, addresses).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.model.text_values import fixed_bytes_printer, format_decimals

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


def spark_type(column: Column) -> spark.DataType:
    """Return the Spark type of a column."""
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
