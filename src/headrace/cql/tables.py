"""Definitions of CQL tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.cql.types import CqlType
from headrace.model.schema import TableName


class ColumnRole(StrEnum):
    """What a column is to its table's rows."""

    PARTITION = "partition"
    CLUSTERING = "clustering"
    STATIC = "static"
    REGULAR = "regular"


@dataclass(frozen=True, slots=True)
class CqlColumn:
    name: str
    type: CqlType
    role: ColumnRole = ColumnRole.REGULAR
    descending: bool = False
    """A clustering column's order."""


@dataclass(frozen=True, slots=True)
class CqlTable:
    """Partition key columns first, in their order; then clustering columns in theirs; then static ones, then the others, by name."""

    name: TableName
    """`database` is the keyspace."""
    columns: tuple[CqlColumn, ...]

    def _of(self, role: ColumnRole) -> tuple[CqlColumn, ...]:
        return tuple(column for column in self.columns if column.role is role)

    @property
    def partition_key(self) -> tuple[CqlColumn, ...]:
        return self._of(ColumnRole.PARTITION)

    @property
    def clustering(self) -> tuple[CqlColumn, ...]:
        return self._of(ColumnRole.CLUSTERING)

    @property
    def static(self) -> tuple[CqlColumn, ...]:
        return self._of(ColumnRole.STATIC)

    @property
    def regular(self) -> tuple[CqlColumn, ...]:
        return self._of(ColumnRole.REGULAR)

    @property
    def cells(self) -> tuple[CqlColumn, ...]:
        """The columns that are not of the primary key."""
        return self.static + self.regular

    def column(self, name: str) -> CqlColumn:
        return next(column for column in self.columns if column.name == name)

    def to_json(self) -> dict[str, Any]:
        columns = [{"name": c.name, "type": c.type.to_json(), "role": c.role.value, "descending": c.descending} for c in self.columns]
        return {"keyspace": self.name.database, "table": self.name.table, "columns": columns}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> CqlTable:
        columns = (CqlColumn(c["name"], CqlType.from_json(c["type"]), ColumnRole(c["role"]), c["descending"]) for c in raw["columns"])
        return cls(TableName(raw["keyspace"], raw["table"]), tuple(columns))
