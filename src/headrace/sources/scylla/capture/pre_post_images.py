"""Preimages and postimages: a row as read before a write, and after the write's log rows.

Values are those of the log's columns. As in ScyllaDB, deltas are applied to what was read, without comparing timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.cql.decode.value_order import elements, parts
from headrace.cql.language.value_encoder import collection, in_order, tuple_of
from headrace.cql.log import key_type
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.sources.scylla.capture.storage_model import NEVER, Cell, ClusteringOrder, Collection, Key, Partition, RangeTombstone
from headrace.sources.scylla.capture.table_state import Elements, as_logged, is_marked, seen_cells

Values = dict[str, bytes | None]


@dataclass(slots=True)
class PartitionImages:
    """Rows of one partition, as far as a write touches them."""

    table: CqlTable
    static: Values = field(default_factory=dict)
    rows: dict[Key, Values] = field(default_factory=dict)
    """Existing rows."""
    static_was_written: bool = False

    @classmethod
    def read(cls, table: CqlTable, partition: Partition, wanted: Iterable[Key], now: int) -> PartitionImages:
        """Return the row before the write."""
        order = ClusteringOrder(table)
        found = cls(table, _logged(table.static, seen_cells(table.static, partition.static, partition.deleted, now)))
        for clustering in wanted:
            row = partition.rows.get(clustering)
            if row is None:
                continue
            deleted = order.deleted(partition, clustering)
            cells = seen_cells(table.regular, row, deleted, now)
            if cells or is_marked(row, deleted, now):
                found.rows[clustering] = _logged(table.regular, cells)
        return found

    def write(self, clustering: Key | None, cells: dict[str, Cell], collections: dict[str, Collection]) -> None:
        """Apply the columns of a delta row; without a clustering key, they are static."""
        if clustering is None:
            self.static_was_written = True
        row = self.static if clustering is None else self.rows.setdefault(clustering, {})
        for name, cell in cells.items():
            row[name] = cell.value
        for name, change in collections.items():
            row[name] = merged(self.table.column(name), row.get(name), change)

    def delete_row(self, clustering: Key) -> None:
        self.rows.pop(clustering, None)

    def delete_range(self, gone: RangeTombstone) -> None:
        order = ClusteringOrder(self.table)
        self.rows = {key: row for key, row in self.rows.items() if not order.covers(gone, key)}

    def delete_partition(self) -> None:
        self.rows.clear()


def _logged(columns: Iterable[CqlColumn], cells: Mapping[str, Cell | Elements]) -> Values:
    return {column.name: as_logged(column, cells[column.name]) for column in columns if column.name in cells}


def merged(column: CqlColumn, before: bytes | None, change: Collection) -> bytes | None:
    """Return a non-atomic column after a delta: cleared, then elements added and removed."""
    previous = None if change.tombstone != NEVER else before
    added = {key: cell.value for key, cell in change.cells.items() if cell.value is not None}
    gone = {key for key, cell in change.cells.items() if cell.value is None}
    if column.type.name == "udt":
        fields = list(parts(previous or b"")) + [None] * len(column.type.fields)
        for key, value in added.items():
            fields[int.from_bytes(key, "big")] = value
        for key in gone:
            fields[int.from_bytes(key, "big")] = None
        return tuple_of(fields[: len(column.type.fields)])
    if not added and not (gone and previous is not None):
        return None
    return _merged_elements(column, previous or b"", added, gone)


def _merged_elements(column: CqlColumn, previous: bytes, added: dict[bytes, bytes], gone: set[bytes]) -> bytes:
    items = elements(previous)
    is_set = column.type.name == "set"
    held = dict.fromkeys(items, b"") if is_set else dict(zip(items[::2], items[1::2], strict=True))
    pairs = [pair for pair in in_order(key_type(column.type), {**held, **added}.items()) if pair[0] not in gone]
    if is_set:
        return collection([key for key, _ in pairs], len(pairs))
    return collection([part for pair in pairs for part in pair], len(pairs))
