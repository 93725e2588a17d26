"""Tables and columns, independent of source and sink.

A `Column` states which values it holds (`Kind` with its parameters). That determines the Arrow type of its values. Sources fill Arrow
arrays of exactly `Column.arrow_type`; sinks choose a storage type for the `Kind`. Neither depends on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

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


SIGNED_INTEGERS: Final = frozenset({Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64})
UNSIGNED_INTEGERS: Final = frozenset({Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64})
INTEGERS: Final = SIGNED_INTEGERS | UNSIGNED_INTEGERS
FLOATS: Final = frozenset({Kind.FLOAT32, Kind.FLOAT64})

_FIXED_ARROW = {
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.UINT8: pa.uint8(),
    Kind.UINT16: pa.uint16(),
    Kind.UINT32: pa.uint32(),
    Kind.UINT64: pa.uint64(),
    Kind.FLOAT32: pa.float32(),
    Kind.FLOAT64: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    # time64 holds MySQL's negative times and times above 24 h as plain microseconds, not as a time of day.
    Kind.TIME: pa.time64("us"),
    Kind.YEAR: pa.uint16(),
    Kind.ENUM: pa.dictionary(pa.int32(), pa.string()),
    Kind.SET: pa.dictionary(pa.int32(), pa.string()),
    Kind.BIT: pa.uint64(),
    Kind.JSON: pa.string(),
    Kind.GEOMETRY: pa.binary(),
    Kind.VECTOR: pa.list_(pa.field("item", pa.float32(), nullable=False)),
    Kind.UUID: pa.binary(16),
    # In network byte order.
    Kind.INET4: pa.binary(4),
    Kind.INET6: pa.binary(16),
}


class ZeroDates(StrEnum):
    """How to read an invalid date: 0000-00-00, 2024-00-10, the 31st of February."""

    HALT = "halt"
    NULL = "null"
    EPOCH = "epoch"
    """1970-01-01, with a warning in the log. It cannot be distinguished from that day."""


DATES = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's full name in its source."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its kind, and its type in the source."""

    name: str
    kind: Kind
    nullable: bool = True
    precision: int = 0
    """DECIMAL: total digits. DATETIME, TIMESTAMP, TIME: fractional digits. BIT: number of bits."""
    scale: int = 0
    """DECIMAL: digits after the point."""
    members: tuple[str, ...] = ()
    """ENUM, SET: the member names, in order."""
    source_type: str = ""
    """The type as the source prints it, for display."""
    charset: str = ""
    """STRING, ENUM, SET: the character set in which the source stores it, if any."""
    generated: str = ""
    """"virtual" or "stored" if the source computes the column."""
    invisible: bool = False
    auto_increment: bool = False
    default: str | None = None
    """The default as the source prints it; None if there is none."""
    comment: str = ""

    @property
    def arrow_type(self) -> pa.DataType:
        if self.kind is Kind.DECIMAL:
            wide = self.precision > 38
            return pa.decimal256(self.precision, self.scale) if wide else pa.decimal128(self.precision, self.scale)
        return _FIXED_ARROW[self.kind]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "nullable": self.nullable,
            "precision": self.precision,
            "scale": self.scale,
            "members": list(self.members),
            "source_type": self.source_type,
            "charset": self.charset,
            "generated": self.generated,
            "invisible": self.invisible,
            "auto_increment": self.auto_increment,
            "default": self.default,
            "comment": self.comment,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Column:
        return cls(**{**raw, "kind": Kind(raw["kind"]), "members": tuple(raw["members"])})


@dataclass(frozen=True, slots=True)
class Index:
    """A secondary index, in the source's order of indexes."""

    name: str
    columns: tuple[str, ...]
    unique: bool
    whole: bool = True
    """Whether it covers whole columns, not prefixes or expressions."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "columns": list(self.columns), "unique": self.unique, "whole": self.whole}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Index:
        return cls(**{**raw, "columns": tuple(raw["columns"])})


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns in source order, its primary key in key order, and its other indexes."""

    name: TableName
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    charset: str = ""
    """The character set of new columns that name none."""
    comment: str = ""

    @property
    def row_key(self) -> tuple[str, ...]:
        """Return the columns that identify a row: the primary key, otherwise the first unique index without NULLs; empty if there is
        neither.
        """
        if self.primary_key:
            return self.primary_key
        required = {column.name for column in self.columns if not column.nullable}
        return next((index.columns for index in self.indexes if index.unique and index.whole and required.issuperset(index.columns)), ())

    def with_zero_dates(self, read_as: ZeroDates) -> TableSchema:
        """Return the schema for this reading of invalid dates. If they are read as NULL, date columns outside the key become nullable."""
        if read_as is not ZeroDates.NULL:
            return self
        columns = [
            replace(column, nullable=True) if column.kind in DATES and column.name not in self.row_key else column
            for column in self.columns
        ]
        return replace(self, columns=tuple(columns))

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.arrow_type, c.nullable) for c in self.columns])

    def to_json(self) -> dict[str, Any]:
        return {
            "database": self.name.database,
            "table": self.name.table,
            "columns": [column.to_json() for column in self.columns],
            "primary_key": list(self.primary_key),
            "indexes": [index.to_json() for index in self.indexes],
            "charset": self.charset,
            "comment": self.comment,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TableSchema:
        return cls(
            TableName(raw["database"], raw["table"]),
            tuple(Column.from_json(column) for column in raw["columns"]),
            tuple(raw["primary_key"]),
            tuple(Index.from_json(index) for index in raw.get("indexes", ())),
            raw.get("charset", ""),
            raw.get("comment", ""),
        )
