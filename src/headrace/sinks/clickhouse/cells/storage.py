"""How a base table's cells are kept: two tables of merging columns.

A *cell* is one string that sorts as the servers settle ties: its timestamp (8 bytes, most significant first, the sign turned), its rank
(1 byte: 0 alive, 1 expiring, 2 deleted), of an expiring one its expiry (8 bytes, seconds) and its TTL (4 bytes, turned: the shorter wins),
then the serialised value. The greatest string wins: `max`, and `maxMap` over the elements of a collection. A *tombstone* that covers cells
is a timestamp and the byte 255: greater than every cell that it deletes, less than any other. No string at all is no cell and no tombstone.

Every column of the two tables has a prefix that tells what it is, so that no name of the source's can be taken for another:

 - `key:X` the value of a key's column; `sort:X` what is sorted by instead where ClickHouse's equality is not CQL's
 - `cell:X` an atomic column, or a collection's elements by their keys; `field:N:X` a user type's field
 - `all:X` the tombstone of all of a collection or user type; `base:X` a list as a snapshot saw it
 - `row:marker`, `row:deleted`, `row:order` (the clustering key as bytes that sort as its server sorts)
 - `part:deleted`, `part:ranges` in the table of partitions, which is there if there are clustering columns
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.cql.log import key_type
from headrace.cql.tables import CqlColumn, CqlTable, Role
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.types import FieldNaming, is_exact, is_plain, nullable_type, value_type
from headrace.sinks.clickhouse.server.quoting import quote_name

MARKER, ROW_DELETED, ORDER = "row:marker", "row:deleted", "row:order"
PART_DELETED, RANGES = "part:deleted", "part:ranges"
_MAX: Final = "SimpleAggregateFunction(max, {})"
_MAX_MAP: Final = "SimpleAggregateFunction(maxMap, Map(String, {}))"
CELLS_SUFFIX, PARTITIONS_SUFFIX = "__cells", "__partitions"


class CellForm(StrEnum):
    """How a column that is not of the key is kept."""

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
    """A column that is not of the key, and where it is kept."""

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
        """What tells elements apart."""
        return key_type(self.column.type)

    @property
    def element_kind(self) -> CqlType | None:
        """What elements hold besides their keys; a set's hold nothing."""
        return None if self.form is CellForm.SET else self.kind.args[-1]

    @property
    def typed_parts(self) -> tuple[CqlType, ...]:
        """What elements carry beside their bytes, because SQL cannot make it of them: the key, what it holds, or both."""
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
        case _:
            yield cell_column.cell, _MAX_MAP.format(element_type(cell_column))
    yield cell_column.all, _MAX.format("String")


def sort_name(column: CqlColumn) -> str:
    """The column that rows are sorted by for a column of the key."""
    return f"key:{column.name}" if is_exact(column.type) else f"sort:{column.name}"


@dataclass(frozen=True, slots=True)
class Storage:
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
        """Name and type of every column of the rows' table."""
        order = [(ORDER, _MAX.format("String"))] if self.is_clustered else []
        own = [(MARKER, _MAX.format("String")), (ROW_DELETED, _MAX.format("String"))]
        cells = [one for cell_column in self.regular for one in _columns_of(cell_column)]
        return [*self._keys(Role.PARTITION, Role.CLUSTERING), *order, *own, *cells]

    def partition_columns(self) -> list[tuple[str, str]]:
        """Name and type of every column of the partitions' table."""
        own = [(PART_DELETED, _MAX.format("String")), (RANGES, _MAX_MAP.format("String"))]
        cells = [one for cell_column in self.static for one in _columns_of(cell_column)]
        return [*self._keys(Role.PARTITION), *own, *cells]

    def sort_key(self, *roles: Role) -> list[str]:
        return [sort_name(column) for column in self.table.columns if column.role in roles]

    def _keys(self, *roles: Role) -> Iterator[tuple[str, str]]:
        for column in self.table.columns:
            if column.role in roles:
                kind = value_type(column.type, FieldNaming.INDEXED)
                yield f"key:{column.name}", kind if is_exact(column.type) else _MAX.format(kind)
                if not is_exact(column.type):
                    yield sort_name(column), "String"


def columns_sql(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{quote_name(name)} {kind}" for name, kind in columns)
