"""Loads a partition's state from a server: its rows, and the keys of its lists from the log.

Apache Cassandra returns values and write times, but not list keys. The log has those while its rows live, if every write went through a
capture. Where rows and log agree on a list, its keys are known; otherwise an error is raised as soon as its elements must be named.

`replay_log` replays log rows into partitions of cells. Deltas are exact: a collection cleared in a row of time T was cleared at T - 1.
Images add nothing and are skipped. Tests also check with it that the log is complete.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from headrace.cql import timeuuid
from headrace.cql.decode.pages import RawValues, read_rows
from headrace.cql.decode.value_order import elements
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.log import OPERATION, SEQUENCE, STREAM, TIME, TTL, Operation, deleted, deleted_elements, log_table
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.mutations import StatementProperties
from headrace.sources.scylla.capture.storage_model import (
    CapturedTables,
    Cell,
    ClusteringBound,
    Elements,
    Key,
    ListLocation,
    Partition,
    RangeTombstone,
    StoredRow,
    find_row,
    seen_elements,
    split_value,
)
from headrace.sources.scylla.capture.stream_ids import Generations, token_of

Values = Mapping[str, bytes | None]
"""A log row's columns, serialised."""
_STARTS = {Operation.RANGE_START_INCLUSIVE: True, Operation.RANGE_START_EXCLUSIVE: False}
_ENDS = {Operation.RANGE_END_INCLUSIVE: True, Operation.RANGE_END_EXCLUSIVE: False}
_IMAGES = frozenset({Operation.PREIMAGE, Operation.POSTIMAGE})


def replay_log(table: CqlTable, rows: Iterable[Values], written: int) -> dict[Key, Partition]:
    """Return the partitions described by rows of a table's log, with batches in any order. `written`: write times, seconds since 1970."""
    found: dict[Key, Partition] = {}
    starts: dict[tuple[bytes, int], ClusteringBound] = {}
    for row in sorted(rows, key=lambda row: (row[TIME] or b"", row[SEQUENCE] or b"")):
        time, sequence = row[TIME] or b"", int.from_bytes(row[SEQUENCE] or b"", "big")
        moment = StatementProperties(timeuuid.micros(UUID(bytes=time)), int.from_bytes(row.get(TTL) or b"", "big"), written)
        operation = Operation(int.from_bytes(row[OPERATION] or b"", "big", signed=True))
        key = tuple(row[column.name] or b"" for column in table.partition_key)
        partition = found.setdefault(key, Partition())
        if operation in _STARTS:
            starts[time, sequence] = ClusteringBound(_clustering(table, row), _STARTS[operation])
        elif operation in _ENDS:
            start = starts.get((time, sequence - 1))
            if start is None:
                raise DefiniteError("the log has the end of a range without its start", place=f"table {table.name}", hint="report it")
            partition.merge(
                Partition(ranges={RangeTombstone(start, ClusteringBound(_clustering(table, row), _ENDS[operation]), moment.timestamp)})
            )
        elif operation not in _IMAGES:
            _apply(table, partition, operation, row, moment)
    return found


def _clustering(table: CqlTable, row: Values) -> Key:
    return tuple(value for column in table.clustering if (value := row.get(column.name)) is not None)


def _apply(table: CqlTable, partition: Partition, operation: Operation, row: Values, moment: StatementProperties) -> None:
    if operation in (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE):
        partition.merge(Partition(deleted=moment.timestamp))
        return
    clustering = _clustering(table, row)
    if operation in (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE):
        partition.row(clustering).merge(StoredRow(deleted=moment.timestamp))
        return
    is_static = operation is Operation.UPDATE and bool(table.clustering) and not clustering
    held = partition.static if is_static else partition.row(clustering)
    if operation is Operation.INSERT:
        held.merge(StoredRow(marker=moment.live(b"")))
    for column in table.static if is_static else table.regular:
        _apply_column(held, column, row, moment)


def _apply_column(held: StoredRow, column: CqlColumn, row: Values, moment: StatementProperties) -> None:
    value, is_deleted = row.get(column.name), row.get(deleted(column.name)) == b"\x01"
    if column.type.is_atomic:
        if value is not None or is_deleted:
            held.put(column.name, moment.cell(value))
        return
    gone = elements(row.get(deleted_elements(column.name)) or b"")
    added = [(key, part) for key, part in split_value(column.type, value or b"") if part is not None]
    if not (is_deleted or gone or added):
        return
    collection = held.collection(column.name)
    if is_deleted:
        collection.clear(moment.timestamp - 1)
    for key in gone:
        collection.put(key, Cell(moment.timestamp, None))
    for key, part in added:
        collection.put(key, moment.live(part))


_UNNAMED: Final = bytes(8)
"""Prefix of placeholder keys for lists whose keys are unknown; no timeuuid begins with it."""
_SIGNS: Final = 0x8080808080808080
_MOST: Final = 10_000
"""Maximum number of cached lists; the least recently used one is dropped."""
_Place = tuple[TableName, Key, Key | None]


class PartitionStateLoader:
    """Loads the rows that a statement needs. They are loaded again for each statement, because other clients write too."""

    def __init__(
        self, session: CqlSession, state: CapturedTables, generations: Callable[[], Generations], clock: Callable[[], int]
    ) -> None:
        self._session, self._state = session, state
        self._generations, self._clock = generations, clock
        self._fresh: set[_Place] = set()
        self._logged: dict[tuple[TableName, Key], Partition] = {}
        self._lists: OrderedDict[tuple[_Place, str], Elements] = OrderedDict()
        """Lists whose keys are known, as of this session's last write."""

    def begin(self) -> None:
        """Discard the loaded rows before a new statement."""
        self._fresh.clear()
        self._logged.clear()
        self._state.partitions.clear()

    def __call__(self, table: CqlTable, key: Key, rows: Iterable[Key | None], lists: Iterable[ListLocation]) -> None:
        """Load rows (None: static columns), and the keys of lists whose elements will be named."""
        for clustering in rows:
            place = (table.name, key, clustering)
            if place not in self._fresh:
                self._state.merge(table.name, {key: self._load(table, key, clustering)})
                self._fresh.add(place)
        now = self._clock() // 1_000_000
        for clustering, column in lists:
            found = self._state.list_elements(table, key, clustering, column, now)
            if any(element.startswith(_UNNAMED) for element, _ in found):
                raise _unknown(table, key, column)

    def done(self, tables: Mapping[TableName, CqlTable], base: Mapping[TableName, Mapping[Key, Partition]]) -> None:
        """Update the known lists after a statement was executed."""
        now = self._clock() // 1_000_000
        for name, partitions in base.items():
            self._state.merge(name, partitions)
        for name, key, clustering in self._fresh:
            partition = self._state.partition(name, key)
            for place, found in _lists(tables[name], partition, clustering, now).items():
                self._lists[(name, key, place[0]), place[1]] = found
                self._lists.move_to_end(((name, key, place[0]), place[1]))
        while len(self._lists) > _MOST:
            self._lists.popitem(last=False)

    def _load(self, table: CqlTable, key: Key, clustering: Key | None) -> Partition:
        now = self._clock() // 1_000_000
        held = self._stored_lists(table, key, clustering, now)
        for place, found in _lists(table, held, clustering, now).items():
            names = _names(found, self._lists.get(((table.name, key, place[0]), place[1]), ()))
            if names is None:
                names = _names(found, _lists(table, self._from_log(table, key, now), clustering, now).get(place, ()))
            if names is not None:
                row = held.static if clustering is None else held.row(clustering)
                row.collection(place[1]).cells = {name: cell for name, (_, cell) in zip(names, found, strict=True)}
        return held

    def _from_log(self, table: CqlTable, key: Key, now: int) -> Partition:
        if (table.name, key) not in self._logged:
            self._logged[table.name, key] = replay_log(table, self._log_rows(table, key), now).get(key, Partition())
        return self._logged[table.name, key]

    def _log_rows(self, table: CqlTable, key: Key) -> Iterator[Values]:
        """Return the partition's log rows, from its stream in every generation."""
        log = log_table(table)
        names = ", ".join(quoted(column.name) for column in log.columns)
        query = f"SELECT {names} FROM {table_name(log.name)} WHERE {quoted(STREAM)} = ?"
        token = token_of(key)
        for stream in dict.fromkeys(generation.stream(token) for generation in self._generations().known):
            for batch in read_rows(self._session, query, RawValues((stream,))):
                for row in batch.to_pylist():
                    if tuple(row[column.name] for column in table.partition_key) == key:
                        yield row

    def _stored_lists(self, table: CqlTable, key: Key, clustering: Key | None, now: int) -> Partition:
        """Select a row, or the static columns; keys of lists are placeholders that only keep the order."""
        cells = table.static if clustering is None else table.regular
        found = Partition()
        if clustering is None and not cells:
            return found
        keys = [*table.partition_key, *(table.clustering if clustering is not None else ())]
        metadata = [f"{function}({quoted(column.name)})" for column in cells for function in ("WRITETIME", "TTL")]
        names = [quoted(column.name) for column in (table.partition_key[0], *cells)]
        where = " AND ".join(f"{quoted(column.name)} = ?" for column in keys)
        query = f"SELECT {', '.join(names + metadata)} FROM {table_name(table.name)} WHERE {where} LIMIT 1"
        for batch in read_rows(self._session, query, RawValues((*key, *(clustering or ())))):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                _store_row(cells, found.static if clustering is None else found.row(clustering), row[1:], now)
                if clustering is not None:
                    # The row exists; whether by its marker or by its cells is unknown.
                    found.row(clustering).marker = Cell(0, b"")
        return found


def _names(found: Elements, known: Elements) -> list[bytes] | None:
    """Match a list's elements by value and write time with the log's, which may have more (TRUNCATE is not logged); None if unsure."""
    wanted = [(cell.value, cell.timestamp) for _, cell in found]
    pairs = [(key, (cell.value, cell.timestamp)) for key, cell in known]
    first, last = _matched(wanted, pairs), _matched(wanted[::-1], pairs[::-1])
    return first if len(first) == len(wanted) and first == last[::-1] else None


def _matched(wanted: list[tuple[bytes | None, int]], pairs: list[tuple[bytes, tuple[bytes | None, int]]]) -> list[bytes]:
    """Return the first keys whose elements match the wanted ones in order; fewer if some are missing."""
    found: list[bytes] = []
    for key, element in pairs:
        if len(found) < len(wanted) and element == wanted[len(found)]:
            found.append(key)
    return found


def _store_row(columns: Sequence[CqlColumn], held: StoredRow, row: Sequence[bytes | None], now: int) -> None:
    for i, column in enumerate(columns):
        value, times, ttls = row[i], row[len(columns) + 2 * i], row[len(columns) + 2 * i + 1]
        if value is not None:
            _store_column(held, column, value, (times or b"", ttls or b""), now)


def _store_column(held: StoredRow, column: CqlColumn, value: bytes, metadata: tuple[bytes, bytes], now: int) -> None:
    if column.type.is_atomic:
        held.put(column.name, _cell(value, metadata[0], metadata[1], now))
        return
    times, ttls = elements(metadata[0]), elements(metadata[1])
    collection = held.collection(column.name)
    for i, (key, part) in enumerate(_elements(column, value)):
        if part is not None:
            collection.put(key, _cell(part, times[i] if i < len(times) else b"", ttls[i] if i < len(ttls) else b"", now))


def _cell(value: bytes, time: bytes, ttl: bytes, now: int) -> Cell:
    left = int.from_bytes(ttl, "big")
    return Cell(int.from_bytes(time, "big", signed=True), value, left, now + left if left else 0)


def _elements(column: CqlColumn, value: bytes) -> list[tuple[bytes, bytes | None]]:
    if column.type.name != "list":
        return split_value(column.type, value)
    # CQL compares the second half of a timeuuid by signed bytes.
    return [(_UNNAMED + (i ^ _SIGNS).to_bytes(8, "big"), item) for i, item in enumerate(elements(value))]


def _lists(table: CqlTable, partition: Partition, clustering: Key | None, now: int) -> dict[ListLocation, Elements]:
    """Return the lists of a row, or of the static columns."""
    row, gone = find_row(table, partition, clustering)
    if row is None:
        return {}
    columns = table.static if clustering is None else table.regular
    lists = [column for column in columns if column.type.name == "list" and not column.type.is_atomic]
    return {(clustering, column.name): seen for column in lists if (seen := seen_elements(column, row, gone, now))}


def _unknown(table: CqlTable, key: Key, column: str) -> DefiniteError:
    message = f"the keys of the elements of {column} are not known: the list was written without the capture, or its log rows have expired"
    hint = f"overwrite the list as a whole once ({column} = […]); statements that do not name its elements are fine"
    return DefiniteError(message, place=f"table {table.name}, partition {'.'.join(part.hex() for part in key)}", hint=hint)
