"""The two tables that store a base table's cells in merging columns.

A *cell* is one string that sorts like servers resolve conflicts: timestamp (8 bytes, most significant first, sign inverted), rank (1 byte:
0 live, 1 expiring, 2 deleted), for an expiring cell its expiry (8 bytes, seconds) and TTL (4 bytes, inverted: the shorter wins), then the
serialised value. The greatest string wins: `max`, or `maxMap` over the elements of a collection. A *tombstone* that covers cells is a
timestamp and the byte 255: greater than every cell that it deletes, less than any other. An empty string is no cell and no tombstone.

Every column of the two tables has a prefix that tells its role, so names of the source cannot conflict. Key columns: `key:X` is the value
of a key column; `sort:X` is sorted by instead, where ClickHouse's equality is not CQL's.

Cells: `cell:X` is an atomic column, or a collection's elements by key; `field:N:X` is a user type's field; `all:X` is the tombstone of a
whole collection or user type; `base:X` is a list as a snapshot read it.

Rows table: `row:marker`, `row:deleted`, `row:order` (the clustering key as bytes that sort like the source). Partitions table, if there are
clustering columns: `part:deleted`, `part:ranges`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from headrace.cql.log import key_type
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.types import FieldNaming, is_exact, is_plain, nullable_type, value_type
from headrace.sinks.clickhouse.server.identifiers import quote_name

MARKER, ROW_DELETED, ORDER = "row:marker", "row:deleted", "row:order"
PART_DELETED, RANGES = "part:deleted", "part:ranges"
_MAX: Final = "SimpleAggregateFunction(max, {})"
_MAX_MAP: Final = "SimpleAggregateFunction(maxMap, Map(String, {}))"
CELLS_SUFFIX, PARTITIONS_SUFFIX, ROWS_SUFFIX, LIVE_SUFFIX = "__cells", "__partitions", "__rows", "__live"


class CellForm(StrEnum):
    """How a non-key column is stored."""

    ATOMIC = "atomic"
    MAP = "map"
    SET = "set"
    LIST = "list"
    FIELDS = "fields"


def cell_form_of(kind: CqlType) -> CellForm:
    if kind.is_atomic:
        return CellForm.ATOMIC
    return CellForm.FIELDS if kind.name == "udt" else CellForm(kind.name)


@dataclass(frozen=True, slots=True)
class CellColumn:
    """A non-key column, and the names of the stored columns."""

    column: CqlColumn

    @property
    def kind(self) -> CqlType:
        return self.column.type

    @property
    def form(self) -> CellForm:
        return cell_form_of(self.column.type)

    @property
    def cell(self) -> str:
        return f"cell:{self.column.name}"

    @property
    def all(self) -> str:
        return f"all:{self.column.name}"

    @property
    def base(self) -> str:
        return f"base:{self.column.name}"

    def field(self, index: int) -> str:
        return f"field:{index}:{self.column.name}"

    @property
    def key_kind(self) -> CqlType:
        """The type of the element keys."""
        return key_type(self.column.type)

    @property
    def element_kind(self) -> CqlType | None:
        """The type of the element values; None for a set."""
        return None if self.form is CellForm.SET else self.kind.args[-1]

    @property
    def typed_parts(self) -> tuple[CqlType, ...]:
        """The types that elements store decoded as well, because SQL cannot decode them: the key, the value, or both."""
        return tuple(kind for kind in (self.key_kind, self.element_kind) if kind is not None and not is_plain(kind))


def cell_type(kind: CqlType) -> str:
    return "String" if is_plain(kind) else f"Tuple(String, {nullable_type(kind, FieldNaming.INDEXED)})"


def element_type(cell_column: CellColumn) -> str:
    parts = [nullable_type(kind, FieldNaming.INDEXED) for kind in cell_column.typed_parts]
    return f"Tuple(String, {', '.join(parts)})" if parts else "String"


def _columns_of(cell_column: CellColumn) -> Iterator[tuple[str, str]]:
    match cell_column.form:
        case CellForm.ATOMIC:
            yield cell_column.cell, _MAX.format(cell_type(cell_column.kind))
            return
        case CellForm.FIELDS:
            for index, kind in enumerate(cell_column.kind.args):
                yield cell_column.field(index), _MAX.format(cell_type(kind))
        case CellForm.LIST:
            yield cell_column.cell, _MAX_MAP.format(element_type(cell_column))
            yield cell_column.base, _MAX.format(f"Tuple(String, Array({element_type(cell_column)}))")
        case CellForm.MAP | CellForm.SET:
            yield cell_column.cell, _MAX_MAP.format(element_type(cell_column))
        case unknown:
            assert_never(unknown)
    yield cell_column.all, _MAX.format("String")


def sort_name(column: CqlColumn) -> str:
    """Return the column by which rows are sorted for a key column."""
    return f"key:{column.name}" if is_exact(column.type) else f"sort:{column.name}"


@dataclass(frozen=True, slots=True)
class CellStorage:
    """The tables of one base table."""

    table: CqlTable

    @property
    def is_clustered(self) -> bool:
        return bool(self.table.clustering)

    @property
    def regular(self) -> tuple[CellColumn, ...]:
        return tuple(CellColumn(column) for column in self.table.regular)

    @property
    def static(self) -> tuple[CellColumn, ...]:
        return tuple(CellColumn(column) for column in self.table.static)

    def row_columns(self) -> list[tuple[str, str]]:
        """Return name and type of every column of the rows table."""
        order = [(ORDER, _MAX.format("String"))] if self.is_clustered else []
        own = [(MARKER, _MAX.format("String")), (ROW_DELETED, _MAX.format("String"))]
        cells = [one for cell_column in self.regular for one in _columns_of(cell_column)]
        return [*self._keys(ColumnRole.PARTITION, ColumnRole.CLUSTERING), *order, *own, *cells]

    def partition_columns(self) -> list[tuple[str, str]]:
        """Return name and type of every column of the partitions table."""
        own = [(PART_DELETED, _MAX.format("String")), (RANGES, _MAX_MAP.format("String"))]
        cells = [one for cell_column in self.static for one in _columns_of(cell_column)]
        return [*self._keys(ColumnRole.PARTITION), *own, *cells]

    def sort_key(self, *roles: ColumnRole) -> list[str]:
        return [sort_name(column) for column in self.table.columns if column.role in roles]

    def _keys(self, *roles: ColumnRole) -> Iterator[tuple[str, str]]:
        for column in self.table.columns:
            if column.role in roles:
                kind = value_type(column.type, FieldNaming.INDEXED)
                yield f"key:{column.name}", kind if is_exact(column.type) else _MAX.format(kind)
                if not is_exact(column.type):
                    yield sort_name(column), "String"


def columns_sql(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{quote_name(name)} {kind}" for name, kind in columns)
