"""Converts writes to a partition into log rows.

A write is split by timestamp; within a timestamp by TTL, by static and clustered rows, by kind, and where a row marker meets elements of a
collection that was not cleared. All rows of a timestamp share one `cdc$time`; they are numbered from 0, and the last one is marked. A
collection cleared at T appears at T + 1.

Preimages and postimages show a row as read before the write, and after the write's log rows. As in ScyllaDB, deltas are applied to what was
read, without comparing timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.cql.language.value_encoder import collection, in_order
from headrace.cql.log import END, OPERATION, SEQUENCE, STREAM, TIME, TTL, Operation, deleted, deleted_elements, key_type
from headrace.cql.options import CdcOptions
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.sources.scylla.capture.storage_model import (
    NEVER,
    Cell,
    ClusteringOrder,
    Collection,
    Elements,
    Key,
    Partition,
    RangeTombstone,
    StoredRow,
    as_logged,
    is_marked,
    join_value,
    seen_cells,
    split_value,
)

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
    if column.type.name != "udt" and not added and not (gone and previous is not None):
        return None
    pairs = {**dict(split_value(column.type, previous or b"")), **added}.items()
    return join_value(column.type, in_order(key_type(column.type), (pair for pair in pairs if pair[0] not in gone)))


TRUE = b"\x01"


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row of a base table's log."""

    table: CqlTable
    """The base table."""
    timestamp: int
    """The microseconds of its `cdc$time`."""
    values: Mapping[str, bytes]
    """The log table's columns that are not null, serialised."""

    @property
    def operation(self) -> Operation:
        return Operation(int.from_bytes(self.values[OPERATION], "big", signed=True))


@dataclass(frozen=True, slots=True)
class _Upsert:
    clustering: Key | None
    """None: static columns."""
    ttl: int
    part: StoredRow
    """The cells and collections of one timestamp and TTL."""
    is_insert: bool = False


@dataclass(slots=True)
class _Batch:
    """All changes of one timestamp."""

    static: list[_Upsert] = field(default_factory=list)
    inserts: list[_Upsert] = field(default_factory=list)
    updates: list[_Upsert] = field(default_factory=list)
    rows: list[Key] = field(default_factory=list)
    ranges: list[RangeTombstone] = field(default_factory=list)
    partition: bool = False

    def touched(self, table: CqlTable) -> dict[Key, set[str]]:
        """Return the columns of each row that the changes name."""
        every = {column.name for column in table.regular}
        found: dict[Key, set[str]] = {clustering: set(every) for clustering in self.rows}
        if self.partition and not table.clustering:
            found[()] = set(every)
        for one in (*self.inserts, *self.updates):
            found.setdefault(one.clustering or (), set()).update(one.part.cells, one.part.collections)
        return found


def split(table: CqlTable, written: Partition) -> dict[int, _Batch]:
    """Return the changes of a write by timestamp, in ascending order."""
    order = ClusteringOrder(table)
    found: dict[int, _Batch] = {}

    def at(timestamp: int) -> _Batch:
        return found.setdefault(timestamp, _Batch())

    for (timestamp, ttl), part in _parts(written.static).items():
        at(timestamp).static.append(_Upsert(None, ttl, part))
    for clustering in order.sorted(list(written.rows)):
        row = written.rows[clustering]
        _split_row(clustering, row, at)
        if row.deleted != NEVER:
            at(row.deleted).rows.append(clustering)
    for one in order.disjoint(written.ranges):
        at(one.timestamp).ranges.append(one)
    if written.deleted != NEVER:
        at(written.deleted).partition = True
    return dict(sorted(found.items()))


def _split_row(clustering: Key, row: StoredRow, at: Callable[[int], _Batch]) -> None:
    marker = (row.marker.timestamp, row.marker.ttl) if row.marker is not None else None
    parts = _parts(row)
    if marker is not None:
        parts.setdefault(marker, StoredRow())
    for place in sorted(parts):
        part, (timestamp, ttl) = parts[place], place
        if place != marker:
            at(timestamp).updates.append(_Upsert(clustering, ttl, part))
            continue
        # An INSERT cannot add elements to a collection without clearing it: those are an update of their own.
        unreplaced = {name: one for name, one in part.collections.items() if one.tombstone == NEVER}
        cleared = {name: one for name, one in part.collections.items() if one.tombstone != NEVER}
        at(timestamp).inserts.append(_Upsert(clustering, ttl, StoredRow(cells=part.cells, collections=cleared), is_insert=True))
        if unreplaced:
            at(timestamp).updates.append(_Upsert(clustering, ttl, StoredRow(collections=unreplaced)))


def _parts(row: StoredRow) -> dict[tuple[int, int], StoredRow]:
    """Group a row's cells by timestamp and TTL; the clearing of a collection has no TTL."""
    found: dict[tuple[int, int], StoredRow] = {}

    def at(timestamp: int, ttl: int) -> StoredRow:
        return found.setdefault((timestamp, ttl), StoredRow())

    for name, cell in row.cells.items():
        at(cell.timestamp, cell.ttl).cells[name] = cell
    for name, held in row.collections.items():
        if held.tombstone != NEVER:
            at(held.tombstone + 1, 0).collection(name).tombstone = held.tombstone
        for key, cell in held.cells.items():
            at(cell.timestamp, cell.ttl).collection(name).cells[key] = cell
    return dict(sorted(found.items()))


def is_split(batch: _Batch, order: ClusteringOrder) -> bool:
    """Return whether changes of one timestamp are of several kinds. If not, they stay in the order of their rows."""
    upserts = batch.inserts + batch.updates
    kinds = [bool(batch.static), bool(upserts), bool(batch.rows), bool(batch.ranges), batch.partition]
    if sum(kinds) > 1 or len({one.ttl for one in (*batch.static, *upserts)}) > 1:
        return True
    marked: set[Key] = {one.clustering or () for one in batch.inserts}
    adding: set[Key] = {one.clustering or () for one in upserts if _adds(one.part)}
    seen = False
    for clustering in order.sorted(list(marked | adding)):
        seen = seen or clustering in marked
        if seen and clustering in adding:
            return True
    return False


def _adds(part: StoredRow) -> bool:
    return any(cell.value is not None for held in part.collections.values() for cell in held.cells.values())


@dataclass(slots=True)
class LogRowWriter:
    """Writes the log rows of one partition's write."""

    table: CqlTable
    options: CdcOptions
    partition_key: Key
    stream: Callable[[int], bytes]
    """Returns the stream of this partition at a timestamp."""
    time: Callable[[int], bytes]
    """Returns a new timeuuid of a timestamp."""
    images: PartitionImages | None = None
    """The rows before the write, if images are enabled."""
    _done: list[dict[str, bytes]] = field(default_factory=list)

    def rows(self, written: Partition) -> list[LogRow]:
        batches = split(self.table, written)
        whole = len(batches) == 1 and not is_split(next(iter(batches.values())), ClusteringOrder(self.table))
        found = []
        for timestamp, batch in batches.items():
            self._done = []
            self._write(batch, in_row_order=whole)
            if not self._done:
                continue
            self._done[-1][END] = TRUE
            head = {STREAM: self.stream(timestamp), TIME: self.time(timestamp)}
            found += [LogRow(self.table, timestamp, {**head, SEQUENCE: i.to_bytes(4, "big"), **row}) for i, row in enumerate(self._done)]
        return found

    def _write(self, batch: _Batch, *, in_row_order: bool) -> None:
        order = ClusteringOrder(self.table)
        touched = batch.touched(self.table)
        static = {name for one in batch.static for name in (*one.part.cells, *one.part.collections)}
        images: list[tuple[Key | None, set[str]]] = [(None, static)] if static else []
        images += [(clustering, touched[clustering]) for clustering in order.sorted(list(touched))]
        if self.options.preimage != "false":
            for clustering, columns in images:
                self._image(Operation.PREIMAGE, clustering, columns)
        self._deltas(batch, order, in_row_order=in_row_order)
        if self.options.postimage:
            for clustering, columns in images:
                self._image(Operation.POSTIMAGE, clustering, columns)

    def _deltas(self, batch: _Batch, order: ClusteringOrder, *, in_row_order: bool) -> None:
        upserts = batch.inserts + batch.updates
        if in_row_order:
            place = {clustering: i for i, clustering in enumerate(order.sorted([one.clustering or () for one in upserts]))}
            upserts.sort(key=lambda one: place[one.clustering or ()])
        for one in (*batch.static, *upserts):
            self._upsert(one)
        for clustering in batch.rows:
            self._row(Operation.ROW_DELETE, clustering)
            if self.images is not None:
                self.images.delete_row(clustering)
        for gone in batch.ranges:
            start, end = gone.start, gone.end
            self._row(Operation.RANGE_START_INCLUSIVE if start.inclusive else Operation.RANGE_START_EXCLUSIVE, start.prefix)
            self._row(Operation.RANGE_END_INCLUSIVE if end.inclusive else Operation.RANGE_END_EXCLUSIVE, end.prefix)
            if self.images is not None:
                self.images.delete_range(gone)
        if batch.partition:
            self._row(Operation.PARTITION_DELETE, ())
            if self.images is not None:
                self.images.delete_partition()

    def _row(self, operation: Operation, clustering: Key | None) -> dict[str, bytes]:
        keys = zip(self.table.partition_key, self.partition_key, strict=True)
        row = {column.name: value for column, value in keys}
        row |= {column.name: value for column, value in zip(self.table.clustering, clustering or (), strict=False)}
        row[OPERATION] = int(operation).to_bytes(1, "big", signed=True)
        self._done.append(row)
        return row

    def _upsert(self, one: _Upsert) -> None:
        row = self._row(Operation.INSERT if one.is_insert else Operation.UPDATE, one.clustering)
        if one.ttl:
            row[TTL] = one.ttl.to_bytes(8, "big")
        if self.options.delta == "full":
            for name, cell in one.part.cells.items():
                _put(row, name, cell.value)
            for name, held in one.part.collections.items():
                row |= collection_columns(self.table.column(name), held)
        if self.images is not None:
            self.images.write(one.clustering, one.part.cells, one.part.collections)

    def _image(self, operation: Operation, clustering: Key | None, touched: set[str]) -> None:
        if self.images is None:
            return
        held = self.images.static if clustering is None else self.images.rows.get(clustering)
        if held is None or (clustering is None and not held and not self.images.static_was_written):
            return
        row = self._row(operation, clustering)
        columns = self.table.static if clustering is None else self.table.regular
        is_whole = operation is Operation.POSTIMAGE or self.options.preimage == "full"
        for column in columns:
            if is_whole or column.name in touched:
                value = held.get(column.name)
                if value is not None:
                    row[column.name] = value
                elif operation is Operation.PREIMAGE:
                    row[deleted(column.name)] = TRUE


def _put(row: dict[str, bytes], name: str, value: bytes | None) -> None:
    if value is None:
        row[deleted(name)] = TRUE
    else:
        row[name] = value


def collection_columns(column: CqlColumn, held: Collection) -> dict[str, bytes]:
    """Return the log columns for the change of a non-atomic column."""
    found = {deleted(column.name): TRUE} if held.tombstone != NEVER else {}
    keys = key_type(column.type)
    added = in_order(keys, ((key, cell.value) for key, cell in held.cells.items() if cell.value is not None))
    gone = in_order(keys, ((key, b"") for key, cell in held.cells.items() if cell.value is None))
    if added or column.type.name == "udt":
        found[column.name] = join_value(column.type, added)
    if gone:
        found[deleted_elements(column.name)] = collection([key for key, _ in gone], len(gone))
    return found
