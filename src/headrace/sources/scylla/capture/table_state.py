"""The content of base tables in the storage model, with the write time of every cell.

It provides what ScyllaDB reads before a write (images, lists). Tests use it as an oracle: it is independent of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.cql.language.value_encoder import collection, in_order, tuple_of
from headrace.cql.log import key_type
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.storage_model import Cell, ClusteringOrder, Key, Partition, StoredRow

Elements = tuple[tuple[bytes, Cell], ...]
"""The live elements of a non-atomic column, in the order of their keys."""

ListLocation = tuple[Key | None, str]
"""A list of a partition: the row's clustering key (None: the static columns), and the column."""


@dataclass(frozen=True, slots=True)
class SelectedRow:
    """A row as SELECT returns it. A partition with only static columns is one row without a clustering key."""

    partition: Key
    clustering: Key | None
    values: Mapping[str, bytes]
    """Non-key columns that are not null, serialised as SELECT returns them."""
    cells: Mapping[str, Cell | Elements]
    """The same, cell by cell."""


@dataclass(slots=True)
class CapturedTables:
    """Partitions by table and key."""

    partitions: dict[TableName, dict[Key, Partition]] = field(default_factory=dict)

    def merge(self, table: TableName, written: Mapping[Key, Partition]) -> None:
        held = self.partitions.setdefault(table, {})
        for key, partition in written.items():
            held.setdefault(key, Partition()).merge(partition)

    def partition(self, table: TableName, key: Key) -> Partition:
        return self.partitions.get(table, {}).get(key, Partition())

    def list_elements(self, table: CqlTable, key: Key, clustering: Key | None, column: str, now: int) -> list[tuple[bytes, bytes]]:
        """Return a list's live elements, in order."""
        partition = self.partition(table.name, key)
        row, deleted = _find_row(table, partition, clustering)
        seen = seen_elements(table.column(column), row, deleted, now) if row is not None else ()
        return [(key, cell.value or b"") for key, cell in seen]

    def rows(self, table: CqlTable, now: int) -> list[SelectedRow]:
        """Return all rows live at a time (seconds since 1970), by partition key bytes, then in the table's order."""
        found = []
        for key in sorted(self.partitions.get(table.name, {})):
            found += partition_rows(table, key, self.partition(table.name, key), now)
        return found


def _find_row(table: CqlTable, partition: Partition, clustering: Key | None) -> tuple[StoredRow | None, int]:
    if clustering is None:
        return partition.static, partition.deleted
    return partition.rows.get(clustering), ClusteringOrder(table).deleted(partition, clustering)


def partition_rows(table: CqlTable, key: Key, partition: Partition, now: int) -> list[SelectedRow]:
    """Return what a SELECT of a partition returns: each row with the static columns, or those alone."""
    order = ClusteringOrder(table)
    static = seen_cells(table.static, partition.static, partition.deleted, now)
    found = []
    for clustering in order.sorted(list(partition.rows)):
        row, deleted = partition.rows[clustering], order.deleted(partition, clustering)
        cells = seen_cells(table.regular, row, deleted, now)
        if cells or is_marked(row, deleted, now):
            found.append(_seen_row(table, key, clustering, static | cells))
    if not found and static:
        found.append(_seen_row(table, key, None, static))
    return found


def _seen_row(table: CqlTable, key: Key, clustering: Key | None, cells: Mapping[str, Cell | Elements]) -> SelectedRow:
    values = {name: as_selected(table.column(name), found) for name, found in cells.items()}
    return SelectedRow(key, clustering, values, cells)


def is_marked(row: StoredRow, deleted: int, now: int) -> bool:
    """Return whether a row exists without any column."""
    return row.marker is not None and row.marker.is_live(deleted, now)


def seen_cells(columns: tuple[CqlColumn, ...], row: StoredRow, deleted: int, now: int) -> dict[str, Cell | Elements]:
    """Return the columns of a row that are not null."""
    found: dict[str, Cell | Elements] = {}
    for column in columns:
        if column.type.is_atomic:
            cell = row.cells.get(column.name)
            if cell is not None and cell.is_live(deleted, now):
                found[column.name] = cell
        elif elements := seen_elements(column, row, deleted, now):
            found[column.name] = elements
    return found


def seen_elements(column: CqlColumn, row: StoredRow, deleted: int, now: int) -> Elements:
    """Return the live elements of a non-atomic column."""
    held = row.collections.get(column.name)
    if held is None:
        return ()
    after = max(deleted, held.tombstone)
    live = {key: cell for key, cell in held.cells.items() if cell.is_live(after, now)}
    ordered = in_order(key_type(column.type), ((key, b"") for key in live))
    return tuple((key, live[key]) for key, _ in ordered)


def as_selected(column: CqlColumn, found: Cell | Elements) -> bytes:
    """Return a column as SELECT does: a list without its keys."""
    if isinstance(found, Cell):
        return found.value or b""
    if column.type.name == "list":
        return collection([cell.value or b"" for _, cell in found], len(found))
    return as_logged(column, found)


def as_logged(column: CqlColumn, found: Cell | Elements) -> bytes:
    """Return a column as the log stores it: a list with its keys."""
    if isinstance(found, Cell):
        return found.value or b""
    if column.type.name == "udt":
        fields = {int.from_bytes(key, "big"): cell.value for key, cell in found}
        return tuple_of(fields.get(i) for i in range(len(column.type.fields)))
    if column.type.name == "set":
        return collection([key for key, _ in found], len(found))
    return collection([part for key, cell in found for part in (key, cell.value or b"")], len(found))
