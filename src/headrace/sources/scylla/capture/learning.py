"""What a partition holds, learned from a server: its rows, and from the log the keys of its lists.

Apache Cassandra tells values and write times, but not the keys of lists. Those are in the log, as long as its rows live and as long as
every write went through a capture. Where rows and log agree on a list, its keys are known; a list on which they do not is an error as soon
as its elements must be named.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from headrace.cql.log import STREAM, log_table
from headrace.cql.ordering import elements, parts
from headrace.cql.pages import RawValues, read_rows
from headrace.cql.printing import table_name
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlColumn, CqlTable, Role
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.cells import Cell, Key, Partition, Row
from headrace.sources.scylla.capture.recovery import Values, recovered
from headrace.sources.scylla.capture.state import Elements, ListPlace, State, partition_rows
from headrace.sources.scylla.capture.streams import Generations, token_of

_UNNAMED: Final = bytes(8)
"""How keys begin that stand for those of a list which nobody knows; no timeuuid does."""
_MOST: Final = 10_000
"""How many partitions are remembered; the one that was not needed for the longest time is learned again."""


class Learning:
    """Fills a state with partitions of a server as they are needed, and forgets them again."""

    def __init__(self, session: CqlSession, state: State, generations: Callable[[], Generations], clock: Callable[[], int]) -> None:
        self._session, self._state = session, state
        self._generations, self._clock = generations, clock
        self._known: OrderedDict[tuple[TableName, Key], bool] = OrderedDict()

    def __call__(self, table: CqlTable, key: Key, lists: Iterable[ListPlace]) -> None:
        """Make sure that a partition is known, and the keys of lists whose elements will be named."""
        place = (table.name, key)
        if place not in self._known:
            self._state.merge(table.name, {key: self._learn(table, key)})
            self._known[place] = True
        self._known.move_to_end(place)
        while len(self._known) > _MOST:
            self.forget(*next(iter(self._known)))
        now = self._clock() // 1_000_000
        for clustering, column in lists:
            found = self._state.list_elements(table, key, clustering, column, now)
            if any(element.startswith(_UNNAMED) for element, _ in found):
                raise _unknown(table, key, column)

    def knows(self, name: TableName, key: Key) -> bool:
        return (name, key) in self._known

    def forget(self, name: TableName, key: Key) -> None:
        self._known.pop((name, key), None)
        self._state.partitions.get(name, {}).pop(key, None)

    def _learn(self, table: CqlTable, key: Key) -> Partition:
        now = self._clock() // 1_000_000
        held = self._held(table, key, now)
        shown = _lists(table, key, held, now)
        if shown:
            logged = _lists(table, key, recovered(table, self._log_rows(table, key), now).get(key, Partition()), now)
            for place, found in shown.items():
                _name_elements(held, place, found, logged.get(place, ()))
        return held

    def _log_rows(self, table: CqlTable, key: Key) -> Iterator[Values]:
        """The partition's rows of the log, from its stream in every generation."""
        log = log_table(table)
        names = ", ".join(quoted(column.name) for column in log.columns)
        query = f"SELECT {names} FROM {table_name(log.name)} WHERE {quoted(STREAM)} = ?"
        token = token_of(key)
        for stream in dict.fromkeys(generation.stream(token) for generation in self._generations().known):
            for batch in read_rows(self._session, query, RawValues((stream,))):
                for row in batch.to_pylist():
                    if tuple(row[column.name] for column in table.partition_key) == key:
                        yield row

    def _held(self, table: CqlTable, key: Key, now: int) -> Partition:
        """The partition by SELECT; lists with keys that are only good for their order."""
        cells = table.cells
        names = [quoted(column.name) for column in (*table.clustering, *cells)]
        told = [f"{function}({quoted(column.name)})" for column in cells for function in ("WRITETIME", "TTL")]
        where = " AND ".join(f"{quoted(column.name)} = ?" for column in table.partition_key)
        query = f"SELECT {', '.join(names + told)} FROM {table_name(table.name)} WHERE {where}"
        found = Partition()
        for batch in read_rows(self._session, query, RawValues(key)):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                _hold(table, found, row, now)
        return found


def _hold(table: CqlTable, found: Partition, row: tuple[bytes | None, ...], now: int) -> None:
    keys = len(table.clustering)
    clustering = tuple(part for part in row[:keys] if part is not None)
    has_row = len(clustering) == keys
    cells = table.cells
    if has_row:
        # It is there: whether by its marker or by its cells is not told.
        found.row(clustering).marker = Cell(0, b"")
    for i, column in enumerate(cells):
        value, told = row[keys + i], row[keys + len(cells) + 2 * i :]
        if value is None or (column.role is Role.REGULAR and not has_row):
            continue
        held = found.static if column.role is Role.STATIC else found.row(clustering)
        _hold_column(held, column, value, (told[0] or b"", told[1] or b""), now)


def _hold_column(held: Row, column: CqlColumn, value: bytes, told: tuple[bytes, bytes], now: int) -> None:
    if column.type.is_atomic:
        held.put(column.name, _cell(value, told[0], told[1], now))
        return
    times, ttls = elements(told[0]), elements(told[1])
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
    return [(_UNNAMED + i.to_bytes(8, "big"), item) for i, item in enumerate(items)]


def _lists(table: CqlTable, key: Key, partition: Partition, now: int) -> dict[ListPlace, Elements]:
    """The lists that are seen in a partition."""
    names = [column for column in table.cells if column.type.name == "list" and not column.type.is_atomic]
    found: dict[ListPlace, Elements] = {}
    for row in partition_rows(table, key, partition, now):
        for column in names:
            cells = row.cells.get(column.name)
            if cells is not None and not isinstance(cells, Cell):
                found[None if column.role is Role.STATIC else row.clustering, column.name] = cells
    return found


def _name_elements(held: Partition, place: ListPlace, shown: Elements, logged: Elements) -> None:
    """Give the elements of a list the keys that the log knows, if it knows the same elements."""
    if [cell.value for _, cell in shown] == [cell.value for _, cell in logged]:
        clustering, column = place
        row = held.static if clustering is None else held.row(clustering)
        row.collection(column).cells = {key: cell for (key, _), (_, cell) in zip(logged, shown, strict=True)}


def _unknown(table: CqlTable, key: Key, column: str) -> DefiniteError:
    return DefiniteError(
        f"the keys of the elements of {column} are not known: the list was written past the capture, or its log rows have expired",
        place=f"table {table.name}, partition {'.'.join(part.hex() for part in key)}",
        hint=f"overwrite the list as a whole once ({column} = […]); statements that do not name its elements are fine",
    )
