"""The replay sink: reproduces the source's tables on another cluster, cell for cell.

Timestamps and expiries are those of the source, so the cluster merges writes as the source did, in any order and any number of times. When
`write` returns, the block is durable and visible at the address's consistency.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from headrace.cql.address import CqlAddress
from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.cql import cassandra_lists, target_tables
from headrace.sinks.cql.execution import run
from headrace.sinks.cql.log_row_writes import LogRows, plan
from headrace.sinks.cql.options import Dropped, Missing, ReplayOptions
from headrace.sinks.cql.snapshot_writes import BaseRows
from headrace.sinks.cql.target_tables import CqlClaims

Clock = Callable[[], float]


class ReplayWriter:
    """Writes blocks to a cluster, and updates lists on Apache Cassandra. Belongs to one task; the session belongs to the process."""

    def __init__(self, session: CqlSession, target: Callable[[CqlTable], CqlTable], concurrency: int, clock: Clock = time.time) -> None:
        self._session, self._target, self._concurrency, self._clock = session, target, concurrency, clock

    def write(self, block: LogBlock | RowBlock) -> None:
        target = self._target(block.table)
        keys_table = cassandra_lists.keys_table(target)
        if keys_table is not None and self._takes_list_keys:
            keys_table = None
        if isinstance(block, LogBlock):
            self._replay(block, target, keys_table)
        else:
            self._restore(block, target, keys_table)

    @functools.cached_property
    def _takes_list_keys(self) -> bool:
        return takes_list_keys(self._session)

    def close(self) -> None:
        """Do nothing: every write was acknowledged."""

    def _replay(self, block: LogBlock, target: CqlTable, keys_table: CqlTable | None) -> None:
        rows = LogRows(block, target, int(self._clock()))
        planned = plan(rows, target, keyed_lists=keys_table is None)
        writes = planned.writes
        if keys_table is not None:
            writes += plan(rows, keys_table, keyed_lists=False, markers=False).writes
        run(self._session, writes, rows.place, self._concurrency)
        if keys_table is not None and len(planned.listed):
            cassandra_lists.follow(self._session, rows, planned.listed.tolist(), target, keys_table)

    def _restore(self, block: RowBlock, target: CqlTable, keys_table: CqlTable | None) -> None:
        now = int(self._clock())
        rows = BaseRows(block, target, now)
        writes = list(rows.writes(keyed_lists=keys_table is None))
        if keys_table is not None:
            writes += BaseRows(block, keys_table, now).map_writes()
        run(self._session, writes, rows.place, self._concurrency)
        if keys_table is not None:
            for scope, keys in rows.listed():
                cassandra_lists.follow_keys(self._session, keys, scope, replace(scope, table=table_name(keys_table.name)), rows.place)


def takes_list_keys(session: CqlSession) -> bool:
    """Return whether the cluster is ScyllaDB, which writes list elements by their keys."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system' AND table_name = 'scylla_local'"
    return bool(session.execute(query))


@dataclass(frozen=True, slots=True)
class ReplaySink(LogSink):
    """Picklable. With a keyspace in the address, all tables are written there; otherwise each to the source's keyspace name."""

    address: CqlAddress
    choices: ReplayOptions = field(default_factory=ReplayOptions)

    def __str__(self) -> str:
        return str(self.address)

    def target(self, table: CqlTable) -> CqlTable:
        return target_tables.moved(table, self.address.keyspace or table.name.database)

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create missing tables and check existing ones, before anything is written."""
        session, wanted = shared_session(self.address), [self.target(table) for table in tables]
        keys_tables = self._keys_tables(session, wanted)
        target_tables.prepare(session, [*wanted, *keys_tables.values()], create=self._creates)
        for table in keys_tables:
            cassandra_lists.check(session, table)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Apply an ALTER TABLE of the source's table."""
        session = shared_session(self.address)
        target_tables.alter(session, self.target(old), self.target(new), create=self._creates, drop=self._drops)
        before, after = cassandra_lists.keys_table(self.target(old)), cassandra_lists.keys_table(self.target(new))
        if after is None or takes_list_keys(session):
            return
        if before is None:
            target_tables.prepare(session, [after], create=self._creates)
        else:
            target_tables.alter(session, before, after, create=self._creates, drop=self._drops)

    def claims(self) -> CqlClaims:
        return CqlClaims(self.address, self._creates)

    def target_of(self, name: TableName) -> str:
        return f"{self.address.keyspace or name.database}.{name.table}"

    def writer(self) -> ReplayWriter:
        return ReplayWriter(shared_session(self.address), self.target, self.choices.concurrency)

    @property
    def _creates(self) -> bool:
        return self.choices.missing is Missing.CREATE

    @property
    def _drops(self) -> bool:
        return self.choices.dropped is Dropped.DROP

    def _keys_tables(self, session: CqlSession, tables: Iterable[CqlTable]) -> dict[CqlTable, CqlTable]:
        """Return the auxiliary tables of tables with lists, on Apache Cassandra."""
        found = {table: keys_table for table in tables if (keys_table := cassandra_lists.keys_table(table)) is not None}
        return {} if found and takes_list_keys(session) else found
