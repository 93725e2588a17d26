"""Converts writes to a partition into log rows.

A write is split by timestamp; within a timestamp by TTL, by static and clustered rows, by kind, and where a row marker meets elements of a
collection that was not cleared. All rows of a timestamp share one `cdc$time`; they are numbered from 0, and the last one is marked. A
collection cleared at T appears at T + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.cql.language.value_encoder import collection, in_order, tuple_of
from headrace.cql.log import END, OPERATION, SEQUENCE, STREAM, TIME, TTL, Operation, deleted, deleted_elements, key_type
from headrace.cql.options import CdcOptions
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.sources.scylla.capture.pre_post_images import PartitionImages
from headrace.sources.scylla.capture.storage_model import (
    NEVER,
    Cell,
    ClusteringOrder,
    Collection,
    Key,
    Partition,
    RangeTombstone,
    StoredRow,
)

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


@dataclass(slots=True)
class _DeltaCells:
    """One delta row's content for a row's columns."""

    cells: dict[str, Cell] = field(default_factory=dict)
    collections: dict[str, Collection] = field(default_factory=dict)

    def collection(self, column: str) -> Collection:
        return self.collections.setdefault(column, Collection())


@dataclass(frozen=True, slots=True)
class _Upsert:
    clustering: Key | None
    """None: static columns."""
    ttl: int
    part: _DeltaCells
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
        parts.setdefault(marker, _DeltaCells())
    for place in sorted(parts):
        part, (timestamp, ttl) = parts[place], place
        if place != marker:
            at(timestamp).updates.append(_Upsert(clustering, ttl, part))
            continue
        # An INSERT cannot add elements to a collection without clearing it: those are an update of their own.
        unreplaced = {name: one for name, one in part.collections.items() if one.tombstone == NEVER}
        cleared = {name: one for name, one in part.collections.items() if one.tombstone != NEVER}
        at(timestamp).inserts.append(_Upsert(clustering, ttl, _DeltaCells(part.cells, cleared), is_insert=True))
        if unreplaced:
            at(timestamp).updates.append(_Upsert(clustering, ttl, _DeltaCells({}, unreplaced)))


def _parts(row: StoredRow) -> dict[tuple[int, int], _DeltaCells]:
    """Group a row's cells by timestamp and TTL; the clearing of a collection has no TTL."""
    found: dict[tuple[int, int], _DeltaCells] = {}

    def at(timestamp: int, ttl: int) -> _DeltaCells:
        return found.setdefault((timestamp, ttl), _DeltaCells())

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


def _adds(part: _DeltaCells) -> bool:
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
        """Return the log rows of a write, timestamp by timestamp."""
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
        touched_rows = order.sorted(list(touched))
        static = {name for one in batch.static for name in (*one.part.cells, *one.part.collections)}
        if self.options.preimage != "false":
            if static:
                self._image(Operation.PREIMAGE, None, static)
            for clustering in touched_rows:
                self._image(Operation.PREIMAGE, clustering, touched[clustering])
        self._deltas(batch, order, in_row_order=in_row_order)
        if self.options.postimage:
            if static:
                self._image(Operation.POSTIMAGE, None, set())
            for clustering in touched_rows:
                self._image(Operation.POSTIMAGE, clustering, set())

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
    if column.type.name == "udt":
        fields = {int.from_bytes(key, "big"): value for key, value in added}
        found[column.name] = tuple_of(fields.get(i) for i in range(len(column.type.fields)))
    elif added and column.type.name == "set":
        found[column.name] = collection([key for key, _ in added], len(added))
    elif added:
        found[column.name] = collection([part for pair in added for part in pair], len(added))
    if gone:
        found[deleted_elements(column.name)] = collection([key for key, _ in gone], len(gone))
    return found
