"""Converts statements into the log rows that ScyllaDB would write, in process and without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa

from headrace.cql import timeuuid
from headrace.cql.blocks import LogBlock
from headrace.cql.language.terms import Parameters
from headrace.cql.log import log_table
from headrace.cql.options import CdcOptions
from headrace.cql.tables import ColumnRole, CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.log_rows import LogRow, LogRowWriter, PartitionImages
from headrace.sources.scylla.capture.mutations import ListKeys, MutationWriter, StatementProperties, ttl_of, whole_number
from headrace.sources.scylla.capture.statements import ChangeStatement, StatementBatch, parse
from headrace.sources.scylla.capture.storage_model import CapturedTables, Key, ListLocation, Partition
from headrace.sources.scylla.capture.stream_ids import Generations, even_generation, token_of

Clock = Callable[[], int]
Given = Sequence[object] | Mapping[str, object]
StateLoader = Callable[[CqlTable, Key, Iterable[Key | None], Iterable[ListLocation]], None]
"""Called before the state of rows (None: static columns) is read, with the lists whose elements will be named, so that it can be loaded."""


def wall_clock() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class StatementWrites:
    """The cells that a statement writes to base tables, by table and partition key, and its log rows."""

    batch: StatementBatch
    timestamps: tuple[int, ...]
    """One per statement of the batch."""
    base: Mapping[TableName, Mapping[Key, Partition]]
    log: tuple[LogRow, ...]


class Capture:
    """Processes statements one after the other and keeps the content of the tables.

    `clock` gives microseconds since 1970: the timestamps of statements that name none (which rise, even if the clock does not), the keys
    of lists, and the moment from which TTLs count. `options` are those of `WITH cdc`, for all tables or table by table. With a seed,
    everything that is random in ScyllaDB's log (the second half of `cdc$time`, list keys' nodes) is the same each time.
    """

    def __init__(
        self,
        tables: Iterable[CqlTable],
        clock: Clock = wall_clock,
        options: CdcOptions | Mapping[TableName, CdcOptions] | None = None,
        *,
        generations: Generations | None = None,
        keyspace: str = "",
        seed: int | None = None,
        node: int | None = None,
    ) -> None:
        self.tables = {table.name: table for table in tables}
        for table in self.tables.values():
            log_table(table)
        self.state = CapturedTables()
        self.generations = generations or Generations((even_generation(),))
        self._clock = clock
        self._options = options if options is not None else CdcOptions(enabled=True)
        self._keyspace = keyspace
        self._random = Random(seed)
        self._last = 0
        self._keys = ListKeys(clock, self._random.getrandbits(62) | 1 << 63 if node is None else node)
        self.state_loader: StateLoader | None = None
        self.default_ttls: dict[TableName, int] = {}
        """`default_time_to_live` of tables, seconds."""

    def options(self, table: TableName) -> CdcOptions:
        return self._options if isinstance(self._options, CdcOptions) else self._options.get(table, CdcOptions(enabled=True))

    def define(self, table: CqlTable) -> None:
        """Set a table's current definition."""
        log_table(table)
        self.tables[table.name] = table

    def log(self, statement: str, parameters: Given = ()) -> list[LogRow]:
        """Execute a statement on the stored content; return its log rows."""
        written = self.write(statement, parameters)
        self.done(written)
        return list(written.log)

    def write(self, statement: str, parameters: Given = ()) -> StatementWrites:
        """Return the effects of a statement without applying them."""
        batch = parse(statement, self._keyspace)
        given = Parameters(parameters)
        default = whole_number(batch.timestamp, given)
        default = self._next_timestamp() if default is None else default
        now = self._clock() // 1_000_000
        base: dict[TableName, dict[Key, Partition]] = {}
        timestamps = []
        for change in batch.changes:
            own = whole_number(change.using.timestamp, given)
            timestamps.append(default if own is None else own)
            for key, partition in self._partitions(change, given, timestamps[-1], now).items():
                base.setdefault(change.table, {}).setdefault(key, Partition()).merge(partition)
        log = [
            row
            for table, partitions in base.items()
            for key, partition in partitions.items()
            for row in self._rows(table, key, partition, now)
        ]
        return StatementWrites(batch, tuple(timestamps), base, tuple(log))

    def done(self, written: StatementWrites) -> None:
        """Apply the effects of a statement to the stored content."""
        for table, partitions in written.base.items():
            self.state.merge(table, partitions)

    def _next_timestamp(self) -> int:
        self._last = max(self._clock(), self._last + 1)
        return self._last

    def table(self, name: TableName) -> CqlTable:
        if name not in self.tables:
            raise DefiniteError(f"table {name} is not captured", place=f"table {name}", hint="name it when the capture begins")
        return self.tables[name]

    def _partitions(self, change: ChangeStatement, given: Parameters, timestamp: int, now: int) -> dict[Key, Partition]:
        table = self.table(change.table)
        if change.verb != "DELETE" and any(given.is_unset(assignment.value) for assignment in change.assignments):
            change = replace(change, assignments=tuple(one for one in change.assignments if not given.is_unset(one.value)))
            if change.verb == "UPDATE" and not change.assignments:
                return {}
        moment = StatementProperties(timestamp, ttl_of(change, given, self.default_ttls.get(table.name, 0)), now)

        def read_list(table: CqlTable, key: Key, clustering: Key | None, column: str) -> list[tuple[bytes, bytes]]:
            self._load_state(table, key, [clustering], [(clustering, column)])
            return self.state.list_elements(table, key, clustering, column, now)

        return MutationWriter(table, self._keys, read_list, given, moment).write(change)

    def _rows(self, name: TableName, key: Key, written: Partition, now: int) -> list[LogRow]:
        table, options = self.tables[name], self.options(name)
        if not options.enabled:
            return []
        wanted = list(written.rows) if table.clustering else [()]
        if options.images:
            self._load_state(table, key, [*wanted, None], _lists_of(table, written))
        images = PartitionImages.read(table, self.state.partition(name, key), wanted, now) if options.images else None
        token = token_of(key)
        return LogRowWriter(table, options, key, lambda at: self.generations.stream(token, at), self._time, images).rows(written)

    def _load_state(self, table: CqlTable, key: Key, rows: Iterable[Key | None], lists: Iterable[ListLocation]) -> None:
        if self.state_loader is not None:
            self.state_loader(table, key, rows, lists)

    def _time(self, timestamp: int) -> bytes:
        return timeuuid.make(timestamp, self._random.getrandbits(64)).bytes


def _lists_of(table: CqlTable, written: Partition) -> list[ListLocation]:
    """Return the lists that the images of a write contain."""
    lists = [column for column in table.cells if column.type.name == "list" and not column.type.is_atomic]
    static = [(None, column.name) for column in lists if column.role is ColumnRole.STATIC and not written.static.is_empty]
    return [*static, *((clustering, column.name) for clustering in written.rows for column in lists if column.role is ColumnRole.REGULAR)]


def log_block(table: CqlTable, rows: Iterable[LogRow], written: int | None = None) -> LogBlock:
    """Return log rows of one base table as a block; `written`: write times, seconds since 1970."""
    listed = list(rows)
    names = [column.name for column in log_table(table).columns]
    columns = [pa.array([row.values.get(name) for row in listed], pa.binary()) for name in names]
    batch = pa.RecordBatch.from_arrays(columns, names)
    return LogBlock(table, batch, pa.array([written] * len(listed), pa.int64()))
