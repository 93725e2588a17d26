"""Tables and columns, independent of source and sink.

A `Column` states which values it holds: its `Kind`, described by a `ColumnType`, with parameters. That determines the Arrow type of its
values. Sources fill Arrow arrays of exactly `Column.arrow_type`; sinks choose a storage type for it. Neither depends on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.model.column_types import COLUMN_TYPES, DATE_FORMS, ColumnType, Kind, ValueForm
from headrace.model.zero_dates import ZeroDates

__all__ = ["Column", "Index", "Kind", "TableName", "TableSchema", "ZeroDates"]


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
    def type(self) -> ColumnType:
        return COLUMN_TYPES[self.kind]

    @property
    def form(self) -> ValueForm:
        return COLUMN_TYPES[self.kind].form

    @property
    def arrow_type(self) -> pa.DataType:
        fixed = COLUMN_TYPES[self.kind].arrow
        if fixed is not None:
            return fixed
        wide = self.precision > 38
        return pa.decimal256(self.precision, self.scale) if wide else pa.decimal128(self.precision, self.scale)

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
            replace(column, nullable=True) if column.form in DATE_FORMS and column.name not in self.row_key else column
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
