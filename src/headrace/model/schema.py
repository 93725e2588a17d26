"""Tables and columns, independent of source and sink.

A `Column` states which values it holds: its `Kind`, described by a `ColumnType`, with parameters. That determines the Arrow type of its
values. Sources fill Arrow arrays of exactly `Column.arrow_type`; sinks choose a storage type for it. Neither depends on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from headrace.model.column_types import COLUMN_TYPES, DATE_FORMS, ColumnType, Kind, ValueForm
from headrace.model.setting_values import ZeroDates

__all__ = ["Column", "ForeignKey", "Index", "Kind", "ReferentialAction", "TableName", "TableSchema", "ZeroDates"]


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
    def is_char(self) -> bool:
        """Whether it is a text of fixed length, which the source shows without trailing spaces."""
        return self.form is ValueForm.TEXT and self.source_type.lower().startswith("char")

    @property
    def arrow_type(self) -> pa.DataType:
        fixed = COLUMN_TYPES[self.kind].arrow
        if fixed is not None:
            return fixed
        wide = self.precision > 38
        return pa.decimal256(self.precision, self.scale) if wide else pa.decimal128(self.precision, self.scale)

    def to_json(self) -> dict[str, Any]:
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**plain, "kind": self.kind.value, "members": list(self.members)}

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


class ReferentialAction(StrEnum):
    """What happens to a child row when its parent row is deleted, or when the referenced columns change."""

    NONE = "none"
    """The child row stays: RESTRICT, NO ACTION, or nothing specified."""
    CASCADE = "cascade"
    """The child row is deleted, or gets the new values."""
    SET_NULL = "set_null"
    SET_DEFAULT = "set_default"
    """InnoDB refuses it."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of a child table."""

    name: str
    columns: tuple[str, ...]
    parent: TableName
    parent_columns: tuple[str, ...]
    on_delete: ReferentialAction = ReferentialAction.NONE
    on_update: ReferentialAction = ReferentialAction.NONE

    @property
    def cascades(self) -> bool:
        """Whether a change of the parent changes child rows."""
        return not self.on_delete is self.on_update is ReferentialAction.NONE

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "columns": list(self.columns),
            "parent": [self.parent.database, self.parent.table],
            "parent_columns": list(self.parent_columns),
            "on_delete": self.on_delete.value,
            "on_update": self.on_update.value,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ForeignKey:
        return cls(
            raw["name"],
            tuple(raw["columns"]),
            TableName(*raw["parent"]),
            tuple(raw["parent_columns"]),
            ReferentialAction(raw["on_delete"]),
            ReferentialAction(raw["on_update"]),
        )


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns in source order, its primary key in key order, its other indexes, and its foreign keys."""

    name: TableName
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    charset: str = ""
    """The character set of new columns that name none."""
    comment: str = ""
    foreign_keys: tuple[ForeignKey, ...] = ()
    """In the order of their names."""

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
            "foreign_keys": [key.to_json() for key in self.foreign_keys],
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
            tuple(ForeignKey.from_json(key) for key in raw.get("foreign_keys", ())),
        )
