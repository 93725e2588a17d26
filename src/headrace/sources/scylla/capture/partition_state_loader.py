"""Loads a partition's state from a server: its rows, and the keys of its lists from the log.

Apache Cassandra returns values and write times, but not list keys. The log has those while its rows live, if every write went through a
capture. Where rows and log agree on a list, its keys are known; otherwise an error is raised as soon as its elements must be named.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from headrace.cql.decode.pages import RawValues, read_rows
from headrace.cql.decode.value_order import elements, parts
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.log import STREAM, log_table
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.log_replay import Values, replay_log
from headrace.sources.scylla.capture.storage_model import Cell, ClusteringOrder, Key, Partition, StoredRow
from headrace.sources.scylla.capture.stream_ids import Generations, token_of
from headrace.sources.scylla.capture.table_state import CapturedTables, Elements, ListLocation, seen_elements

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
    if column.type.name == "udt":
        return [(i.to_bytes(2, "big"), part) for i, part in enumerate(parts(value))]
    items = elements(value)
    if column.type.name == "map":
        return list(zip(items[::2], items[1::2], strict=True))
    if column.type.name == "set":
        return [(item, b"") for item in items]
    # CQL compares the second half of a timeuuid by signed bytes.
    return [(_UNNAMED + (i ^ _SIGNS).to_bytes(8, "big"), item) for i, item in enumerate(items)]


def _lists(table: CqlTable, partition: Partition, clustering: Key | None, now: int) -> dict[ListLocation, Elements]:
    """Return the lists of a row, or of the static columns."""
    row = partition.static if clustering is None else partition.rows.get(clustering)
    if row is None:
        return {}
    gone = partition.deleted if clustering is None else ClusteringOrder(table).deleted(partition, clustering)
    columns = [
        column
        for column in (table.static if clustering is None else table.regular)
        if column.type.name == "list" and not column.type.is_atomic
    ]
    found = {(clustering, column.name): seen_elements(column, row, gone, now) for column in columns}
    return {place: elements for place, elements in found.items() if elements}


def _unknown(table: CqlTable, key: Key, column: str) -> DefiniteError:
    return DefiniteError(
        f"the keys of the elements of {column} are not known: the list was written without the capture, or its log rows have expired",
        place=f"table {table.name}, partition {'.'.join(part.hex() for part in key)}",
        hint=f"overwrite the list as a whole once ({column} = […]); statements that do not name its elements are fine",
    )
