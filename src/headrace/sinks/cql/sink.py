"""The replay sink: reproduces the source's tables on another cluster, cell for cell.

Timestamps and expiries are those of the source, so the cluster merges writes as the source did, in any order and any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.cql.address import CqlAddress
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.cql import cassandra_lists, target_tables
from headrace.sinks.cql.options import Dropped, Missing, ReplayOptions
from headrace.sinks.cql.target_claims import CqlClaims
from headrace.sinks.cql.writer import ReplayWriter, takes_list_keys


@dataclass(frozen=True, slots=True)
class ReplaySink(LogSink):
    """Picklable. With a keyspace in the address, all tables go there; without, each to the keyspace of its source's name."""

    address: CqlAddress
    choices: ReplayOptions = field(default_factory=ReplayOptions)

    def __str__(self) -> str:
        return str(self.address)

    def target(self, table: CqlTable) -> CqlTable:
        """Return the target of a source's table."""
        return target_tables.moved(table, self.address.keyspace or table.name.database)

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create missing tables and check existing ones, before anything is written."""
        self.choices.check()
        session, wanted = shared_session(self.address), [self.target(table) for table in tables]
        beside = self._beside(session, wanted)
        target_tables.prepare(session, [*wanted, *beside.values()], create=self._creates)
        for table in beside:
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
        """Return the claims on tables of the cluster."""
        return CqlClaims(self.address, self._creates)

    def target_of(self, name: TableName) -> str:
        """Return the name of a table's target."""
        return f"{self.address.keyspace or name.database}.{name.table}"

    def writer(self) -> ReplayWriter:
        return ReplayWriter(shared_session(self.address), self.target, self.choices.concurrency)

    @property
    def _creates(self) -> bool:
        return self.choices.missing is Missing.CREATE

    @property
    def _drops(self) -> bool:
        return self.choices.dropped is Dropped.DROP

    def _beside(self, session: CqlSession, tables: Iterable[CqlTable]) -> dict[CqlTable, CqlTable]:
        """Return the auxiliary tables of tables with lists, on Apache Cassandra."""
        found = {table: beside for table in tables if (beside := cassandra_lists.keys_table(table)) is not None}
        return {} if found and takes_list_keys(session) else found
