"""Maps columns to Spark: the type of each kind, and its Arrow array in the form that Spark expects.

No value loses precision. Values that Spark has no type for are widened (unsigned integers), or become exact text (decimals of more than 38
digits, UUIDs) or bytes (geometries, addresses).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableSchema

UNSIGNED_64: Final = spark.DecimalType(20, 0)
_WIDEST_DECIMAL: Final = 38

_TYPES: Final[dict[Kind, spark.DataType]] = {
    Kind.INT8: spark.ByteType(),
    Kind.INT16: spark.ShortType(),
    Kind.INT32: spark.IntegerType(),
    Kind.INT64: spark.LongType(),
    Kind.UINT8: spark.ShortType(),
    Kind.UINT16: spark.IntegerType(),
    Kind.UINT32: spark.LongType(),
    Kind.UINT64: UNSIGNED_64,
    Kind.FLOAT32: spark.FloatType(),
    Kind.FLOAT64: spark.DoubleType(),
    Kind.STRING: spark.StringType(),
    Kind.BYTES: spark.BinaryType(),
    Kind.DATE: spark.DateType(),
    Kind.DATETIME: spark.TimestampNTZType(),
    Kind.TIMESTAMP: spark.TimestampType(),
    # A MySQL TIME is a span of up to 838 hours either way, not a time of day.
    Kind.TIME: spark.DayTimeIntervalType(),
    Kind.YEAR: spark.IntegerType(),
    Kind.ENUM: spark.StringType(),
    Kind.SET: spark.StringType(),
    Kind.JSON: spark.StringType(),
    Kind.GEOMETRY: spark.BinaryType(),
    Kind.VECTOR: spark.ArrayType(spark.FloatType(), containsNull=False),
    Kind.UUID: spark.StringType(),
    Kind.INET4: spark.BinaryType(),
    Kind.INET6: spark.BinaryType(),
}


def spark_type(column: Column) -> spark.DataType:
    """Return the Spark type of a column."""
    if column.kind is Kind.DECIMAL:
        wide = column.precision > _WIDEST_DECIMAL
        return spark.StringType() if wide else spark.DecimalType(column.precision, column.scale)
    if column.kind is Kind.BIT:
        return UNSIGNED_64 if column.precision == 64 else spark.LongType()
    found = _TYPES.get(column.kind)
    if found is None:
        raise DefiniteError(f"column {column.name} has type {column.source_type}, which has no type in Spark")
    return found


def row_type(schema: TableSchema) -> spark.StructType:
    """Return the Spark type of one row image."""
    return spark.StructType([spark.StructField(column.name, spark_type(column)) for column in schema.columns])


def to_spark(column: Column, array: pa.Array) -> pa.Array:
    """Return a column's values in the Arrow type of their Spark type."""
    if column.kind is Kind.TIME:
        return array.view(pa.int64()).view(pa.duration("us"))
    if column.kind is Kind.UUID:
        return _uuid_texts(array)
    if column.kind is Kind.DECIMAL and column.precision > _WIDEST_DECIMAL:
        return _decimal_texts(array, column.scale)
    return array.cast(to_arrow_type(spark_type(column), timezone="UTC"))


def _decimal_texts(array: pa.Array, scale: int) -> pa.Array:
    """Return decimals as text with all digits. (Arrow would write small ones with an exponent.)"""
    digits = pa.Array.from_buffers(pa.decimal256(76, 0), len(array), array.buffers(), offset=array.offset).cast(pa.string())
    if not scale:
        return digits
    negative = pc.starts_with(digits, "-")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    sign = pc.if_else(negative, "-", "")
    text = pc.binary_join_element_wise(pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale), ".")
    return pc.binary_join_element_wise(sign, text, "")


def _uuid_texts(array: pa.Array) -> pa.Array:
    """Return UUIDs as text of 36 characters."""
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8, count=16 * len(array), offset=16 * array.offset)
    nibbles = np.stack((raw >> 4, raw & 15), axis=1).reshape(len(array), 32)
    characters = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[nibbles]
    text = np.full((len(array), 36), ord("-"), dtype=np.uint8)
    text[:, [i for i in range(36) if i not in (8, 13, 18, 23)]] = characters
    offsets = pa.py_buffer(np.arange(len(array) + 1, dtype=np.int32) * 36)
    texts = pa.Array.from_buffers(pa.string(), len(array), [None, offsets, pa.py_buffer(text.tobytes())])
    return pc.if_else(array.is_valid(), texts, None)
