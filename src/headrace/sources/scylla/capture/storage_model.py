"""The storage model: cells with timestamps, and how they merge.

Merging is commutative, associative and idempotent, so one form serves for what a statement writes and for all that a partition holds. Ties
are decided as Apache Cassandra and ScyllaDB decide them: dead before live, expiring before lasting, later expiry first, shorter TTL first,
then the greater value by its bytes.

`CapturedTables` provides what ScyllaDB reads before a write (images, lists). Tests use it as an oracle: it is independent of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from itertools import pairwise
from typing import Final

from headrace.cql.decode.value_order import elements, order_key, parts
from headrace.cql.language.value_encoder import collection, in_order, tuple_of
from headrace.cql.log import key_type
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.model.schema import TableName

NEVER: Final = -(1 << 63)
"""A timestamp before all others."""
Key = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A value; None for a deletion."""

    timestamp: int
    value: bytes | None
    ttl: int = 0
    """Seconds; 0: it does not expire."""
    expires: int = 0
    """Expiry, seconds since 1970; 0: never."""

    def is_live(self, after: int, now: int) -> bool:
        """Return whether the cell is live at a time (seconds), given a deletion's timestamp."""
        return self.value is not None and self.timestamp > after and (not self.expires or now < self.expires)

    def rank(self) -> tuple[int, bool, bool, int, int, bytes]:
        """Order of precedence: the greater cell wins."""
        return self.timestamp, self.value is None, self.ttl > 0, self.expires, -self.ttl, self.value or b""


def newer(left: Cell | None, right: Cell | None) -> Cell | None:
    """Return the cell that wins."""
    if left is None or right is None:
        return left or right
    return left if left.rank() >= right.rank() else right


@dataclass(slots=True)
class Collection:
    """A column that is not atomic: elements by their serialised keys."""

    tombstone: int = NEVER
    cells: dict[bytes, Cell] = field(default_factory=dict)

    def put(self, key: bytes, cell: Cell) -> None:
        if cell.timestamp > self.tombstone:
            self.cells[key] = newer(self.cells.get(key), cell) or cell

    def clear(self, timestamp: int) -> None:
        """Delete all elements up to a timestamp, without tombstones."""
        if timestamp > self.tombstone:
            self.tombstone = timestamp
            self.cells = {key: cell for key, cell in self.cells.items() if cell.timestamp > timestamp}

    def merge(self, other: Collection) -> None:
        self.clear(other.tombstone)
        for key, cell in other.cells.items():
            self.put(key, cell)


@dataclass(slots=True)
class StoredRow:
    """A row, or the static columns of a partition."""

    marker: Cell | None = None
    """The row marker of an INSERT; its value is empty."""
    deleted: int = NEVER
    cells: dict[str, Cell] = field(default_factory=dict)
    collections: dict[str, Collection] = field(default_factory=dict)

    def put(self, column: str, cell: Cell) -> None:
        self.cells[column] = newer(self.cells.get(column), cell) or cell

    def collection(self, column: str) -> Collection:
        return self.collections.setdefault(column, Collection())

    def merge(self, other: StoredRow) -> None:
        self.marker = newer(self.marker, other.marker)
        self.deleted = max(self.deleted, other.deleted)
        for name, cell in other.cells.items():
            self.put(name, cell)
        for name, held in other.collections.items():
            self.collection(name).merge(held)

    @property
    def is_empty(self) -> bool:
        return self.marker is None and self.deleted == NEVER and not self.cells and not self.collections


@dataclass(frozen=True, slots=True)
class ClusteringBound:
    """One side of a range: a prefix of the clustering key. An empty, inclusive prefix means no bound."""

    prefix: Key = ()
    inclusive: bool = True


@dataclass(frozen=True, slots=True)
class RangeTombstone:
    """A range of deleted rows, in the order of the table."""

    start: ClusteringBound
    end: ClusteringBound
    timestamp: int


@dataclass(slots=True)
class Partition:
    """The content of a partition, or a write to it."""

    static: StoredRow = field(default_factory=StoredRow)
    rows: dict[Key, StoredRow] = field(default_factory=dict)
    ranges: set[RangeTombstone] = field(default_factory=set)
    deleted: int = NEVER

    def row(self, clustering: Key) -> StoredRow:
        return self.rows.setdefault(clustering, StoredRow())

    def merge(self, other: Partition) -> None:
        self.static.merge(other.static)
        for clustering, row in other.rows.items():
            self.row(clustering).merge(row)
        self.ranges |= other.ranges
        self.deleted = max(self.deleted, other.deleted)


_Edge = tuple[Key, int]
"""A position before (-1) or after (1) everything that begins with a prefix."""


def _start(one: RangeTombstone) -> _Edge:
    return one.start.prefix, -1 if one.start.inclusive else 1


def _end(one: RangeTombstone) -> _Edge:
    return one.end.prefix, 1 if one.end.inclusive else -1


class ClusteringOrder:
    """The order of a table's rows."""

    def __init__(self, table: CqlTable) -> None:
        self._columns = [(order_key(column.type), column.descending) for column in table.clustering]

    def compare(self, left: Key, right: Key) -> int:
        """Compare: below, equal or above. A prefix equals everything that begins with it."""
        for (key, descending), mine, its in zip(self._columns, left, right, strict=False):
            one, other = key(mine), key(its)
            if one != other:
                return -1 if (one < other) != descending else 1
        return 0

    def sorted(self, keys: Sequence[Key]) -> list[Key]:
        return sorted(keys, key=cmp_to_key(self.compare))

    def disjoint(self, ranges: Iterable[RangeTombstone]) -> list[RangeTombstone]:
        """Return the deletions in order and without overlaps: the newest wins, and neighbours of one timestamp are joined."""
        ends = {place for one in ranges for place in (_start(one), _end(one))}
        places = sorted(ends, key=cmp_to_key(self._compare_bounds))
        found: list[RangeTombstone] = []
        for start, end in pairwise(places):
            over = [one.timestamp for one in ranges if self._spans(one, start, end)]
            if not over:
                continue
            piece = RangeTombstone(ClusteringBound(start[0], start[1] < 0), ClusteringBound(end[0], end[1] > 0), max(over))
            if found and found[-1].timestamp == piece.timestamp and _end(found[-1]) == start:
                piece = RangeTombstone(found.pop().start, piece.end, piece.timestamp)
            found.append(piece)
        return found

    def _spans(self, one: RangeTombstone, start: _Edge, end: _Edge) -> bool:
        return self._compare_bounds(_start(one), start) <= 0 and self._compare_bounds(_end(one), end) >= 0

    def _compare_bounds(self, left: _Edge, right: _Edge) -> int:
        order = self.compare(left[0], right[0])
        if order:
            return order
        if len(left[0]) == len(right[0]):
            return left[1] - right[1]
        # The shorter prefix encloses everything that begins with it.
        return left[1] if len(left[0]) < len(right[0]) else -right[1]

    def covers(self, found: RangeTombstone, clustering: Key) -> bool:
        start = self.compare(clustering, found.start.prefix)
        end = self.compare(clustering, found.end.prefix)
        return (start > 0 or (start == 0 and found.start.inclusive)) and (end < 0 or (end == 0 and found.end.inclusive))

    def deleted(self, partition: Partition, clustering: Key) -> int:
        """Return the timestamp up to which the cells of a row are deleted."""
        row = partition.rows.get(clustering)
        found = [one.timestamp for one in partition.ranges if self.covers(one, clustering)]
        return max([partition.deleted, row.deleted if row is not None else NEVER, *found])


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
        row, deleted = find_row(table, partition, clustering)
        seen = seen_elements(table.column(column), row, deleted, now) if row is not None else ()
        return [(key, cell.value or b"") for key, cell in seen]

    def rows(self, table: CqlTable, now: int) -> list[SelectedRow]:
        """Return all rows live at a time (seconds since 1970), by partition key bytes, then in the table's order."""
        found = []
        for key in sorted(self.partitions.get(table.name, {})):
            found += partition_rows(table, key, self.partition(table.name, key), now)
        return found


def find_row(table: CqlTable, partition: Partition, clustering: Key | None) -> tuple[StoredRow | None, int]:
    """Return a row (None: the static columns), and the timestamp up to which its cells are deleted."""
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
    return tuple(in_order(key_type(column.type), live.items()))


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
    return join_value(column.type, [(key, cell.value) for key, cell in found])


def split_value(kind: CqlType, raw: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return the elements of a serialised map, set or user type by their keys, or those of a list as the log stores it."""
    if kind.name == "udt":
        return [(i.to_bytes(2, "big"), part) for i, part in enumerate(parts(raw))]
    items = elements(raw)
    return [(item, b"") for item in items] if kind.name == "set" else list(zip(items[::2], items[1::2], strict=True))


def join_value(kind: CqlType, pairs: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Serialise the elements, which are in order; the inverse of `split_value`."""
    if kind.name == "udt":
        fields = {int.from_bytes(key, "big"): value for key, value in pairs}
        return tuple_of(fields.get(i) for i in range(len(kind.fields)))
    items = (key for key, _ in pairs) if kind.name == "set" else (part or b"" for pair in pairs for part in pair)
    return collection(items, len(pairs))
