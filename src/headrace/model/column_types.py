"""The column kinds, and one `ColumnType` per kind: its storage form and its names in Arrow, Kafka Connect, Avro, Spark and DuckDB.

Invariant: code that handles values never lists kinds. It matches `ColumnType.form` exhaustively (`assert_never`) or reads an attribute.
Code names a kind to create a column of it. So a kind with an existing form needs an entry here and the names by which sources know it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from uuid import UUID

import pyarrow as pa


class Kind(StrEnum):
    """The type of a column's values. The enum value is used in settings, state files and messages."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL = "decimal"
    STRING = "string"
    BYTES = "bytes"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    YEAR = "year"
    ENUM = "enum"
    SET = "set"
    BIT = "bit"
    JSON = "json"
    GEOMETRY = "geometry"
    """Spatial reference (four bytes, little-endian), then well-known binary."""
    VECTOR = "vector"
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"


class ValueForm(Enum):
    """How values are stored. Kinds of one form differ only in the attributes of their `ColumnType` and the parameters of their `Column`."""

    INTEGER = "integer"
    """Of `bits` bits, `signed` or not."""
    YEAR = "year"
    BITS = "bits"
    """`Column.precision` bits, as an unsigned integer."""
    FLOAT = "float"
    """Of `bits` bits."""
    DECIMAL = "decimal"
    """Of `Column.precision` digits, `Column.scale` of them after the point."""
    TEXT = "text"
    JSON = "json"
    """A document as text."""
    MEMBERS = "members"
    """Text: one of `Column.members`, or several, joined by commas (`multiple`)."""
    BYTES = "bytes"
    FIXED_BYTES = "fixed bytes"
    """Bytes of one width, which servers print as text (`print_value`)."""
    GEOMETRY = "geometry"
    VECTOR = "vector"
    """A list of 32-bit floats."""
    DATE = "date"
    """Days since 1970."""
    TIMESTAMP = "timestamp"
    """Microseconds since 1970 with `Column.precision` fractional digits; of a wall clock, or `zoned`: an instant."""
    TIME = "time"
    """Microseconds: negative or positive, and not limited to a day."""


DATE_FORMS: Final = frozenset({ValueForm.DATE, ValueForm.TIMESTAMP})
FRACTIONAL_FORMS: Final = frozenset({ValueForm.TIMESTAMP, ValueForm.TIME})
"""Forms whose `Column.precision` is the number of fractional digits of a second."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The attributes of one kind."""

    form: ValueForm
    arrow: pa.DataType | None
    """None if it depends on the parameters of the column."""
    clickhouse: str = ""
    """The type in ClickHouse by default; empty if it depends on the parameters of the column."""
    spark: str = ""
    """The type in Spark, as `DataType.simpleString` prints it; empty if it depends on the parameters of the column."""
    connect: str = ""
    """The type in Kafka Connect, as Debezium sends it by default; empty if it depends on the parameters of the column."""
    semantic: str = ""
    """The name of the schema that Debezium gives to the field, if any."""
    duckdb: str = ""
    """The type of DuckDB whose values become this kind; empty if there is none."""
    sql: str = ""
    """The source type of a column that is computed with the type `duckdb`."""
    bits: int = 0
    signed: bool = False
    zoned: bool = False
    multiple: bool = False
    avro_logical: str = ""
    """FIXED_BYTES: the logical type of its text in Avro."""
    printed_alike: bool = True
    """FIXED_BYTES: whether all servers print a value alike, so that its text identifies it."""
    print_value: Callable[[bytes], str] = bytes.hex
    parse_value: Callable[[str], bytes] = bytes.fromhex
    """FIXED_BYTES: prints and parses a single value. `ValueError`: the text is invalid."""
    display_value: Callable[[bytes], str] | None = None
    """FIXED_BYTES: prints a single value as the source displays it, where that differs from `print_value`."""

    @property
    def value_range(self) -> tuple[int, int]:
        """Return the least and the greatest value of an integer."""
        return (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) if self.signed else (0, (1 << self.bits) - 1)


def _integer(arrow: pa.DataType, spark: str, connect: str, duckdb: str, sql: str) -> ColumnType:
    bits, signed = arrow.bit_width, pa.types.is_signed_integer(arrow)
    clickhouse = f"Int{bits}" if signed else f"UInt{bits}"
    return ColumnType(ValueForm.INTEGER, arrow, clickhouse, spark, connect, "", duckdb, sql, bits=bits, signed=signed)


_MEMBERS: Final = pa.dictionary(pa.int32(), pa.string())
COLUMN_TYPES: Final = {
    Kind.INT8: _integer(pa.int8(), "tinyint", "int16", "TINYINT", "tinyint"),
    Kind.INT16: _integer(pa.int16(), "smallint", "int16", "SMALLINT", "smallint"),
    Kind.INT32: _integer(pa.int32(), "int", "int32", "INTEGER", "int"),
    Kind.INT64: _integer(pa.int64(), "bigint", "int64", "BIGINT", "bigint"),
    Kind.UINT8: _integer(pa.uint8(), "smallint", "int16", "UTINYINT", "tinyint unsigned"),
    Kind.UINT16: _integer(pa.uint16(), "int", "int32", "USMALLINT", "smallint unsigned"),
    Kind.UINT32: _integer(pa.uint32(), "bigint", "int64", "UINTEGER", "int unsigned"),
    # Debezium's default wraps numbers above 9223372036854775807 (`bigint.unsigned.handling.mode=long`).
    Kind.UINT64: _integer(pa.uint64(), "decimal(20,0)", "int64", "UBIGINT", "bigint unsigned"),
    Kind.FLOAT32: ColumnType(ValueForm.FLOAT, pa.float32(), "Float32", "float", "float32", duckdb="FLOAT", sql="float", bits=32),
    Kind.FLOAT64: ColumnType(ValueForm.FLOAT, pa.float64(), "Float64", "double", "float64", duckdb="DOUBLE", sql="double", bits=64),
    Kind.DECIMAL: ColumnType(ValueForm.DECIMAL, None),
    Kind.STRING: ColumnType(ValueForm.TEXT, pa.string(), "String", "string", "string", duckdb="VARCHAR", sql="varchar"),
    Kind.BYTES: ColumnType(ValueForm.BYTES, pa.binary(), "String", "binary", "bytes", duckdb="BLOB", sql="varbinary"),
    Kind.DATE: ColumnType(ValueForm.DATE, pa.date32(), "Date32", "date", duckdb="DATE", sql="date"),
    Kind.DATETIME: ColumnType(ValueForm.TIMESTAMP, pa.timestamp("us"), spark="timestamp_ntz", duckdb="TIMESTAMP", sql="datetime(6)"),
    Kind.TIMESTAMP: ColumnType(
        ValueForm.TIMESTAMP,
        pa.timestamp("us", "UTC"),
        spark="timestamp",
        connect="string",
        semantic="io.debezium.time.ZonedTimestamp",
        duckdb="TIMESTAMP WITH TIME ZONE",
        sql="timestamp(6)",
        zoned=True,
    ),
    # time64 holds MySQL's negative times and times above 24 h as plain microseconds, not as a time of day.
    Kind.TIME: ColumnType(ValueForm.TIME, pa.time64("us"), spark="interval day to second", duckdb="TIME", sql="time(6)"),
    Kind.YEAR: ColumnType(ValueForm.YEAR, pa.uint16(), "UInt16", "int", "int32", "io.debezium.time.Year", bits=16),
    Kind.ENUM: ColumnType(ValueForm.MEMBERS, _MEMBERS, "", "string", "string", "io.debezium.data.Enum"),
    Kind.SET: ColumnType(ValueForm.MEMBERS, _MEMBERS, "", "string", "string", "io.debezium.data.EnumSet", multiple=True),
    Kind.BIT: ColumnType(ValueForm.BITS, pa.uint64(), "UInt64", bits=64),
    Kind.JSON: ColumnType(ValueForm.JSON, pa.string(), "String", "string", "string", "io.debezium.data.Json", duckdb="JSON", sql="json"),
    Kind.GEOMETRY: ColumnType(ValueForm.GEOMETRY, pa.binary(), "String", "binary", "struct"),
    Kind.VECTOR: ColumnType(
        ValueForm.VECTOR,
        pa.list_(pa.field("item", pa.float32(), nullable=False)),
        "Array(Float32)",
        "array<float>",
        "array",
        "io.debezium.data.FloatVector",
    ),
    Kind.UUID: ColumnType(
        ValueForm.FIXED_BYTES,
        pa.binary(16),
        "UUID",
        "string",
        "string",
        "io.debezium.data.Uuid",
        avro_logical="uuid",
        print_value=lambda raw: str(UUID(bytes=raw)),
        parse_value=lambda text: UUID(text).bytes,
    ),
    # Addresses are in network byte order.
    Kind.INET4: ColumnType(
        ValueForm.FIXED_BYTES,
        pa.binary(4),
        "IPv4",
        "binary",
        "string",
        print_value=lambda raw: str(IPv4Address(raw)),
        parse_value=lambda text: IPv4Address(text).packed,
    ),
    Kind.INET6: ColumnType(
        ValueForm.FIXED_BYTES,
        pa.binary(16),
        "IPv6",
        "binary",
        "string",
        printed_alike=False,
        print_value=lambda raw: str(IPv6Address(raw)),
        parse_value=lambda text: IPv6Address(text).packed,
        display_value=lambda raw: socket.inet_ntop(socket.AF_INET6, raw),
    ),
}
