"""The sink of replay: a log's rows reproduce the source's tables on another cluster, cell for cell.

Timestamps and expiries are those of the source, so the cluster merges what comes as the source did: any order, any duplication, same data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cql.address import CqlAddress
from headrace.cql.session import shared_session
from headrace.cql.tables import CqlTable
from headrace.sinks.cql import targets
from headrace.sinks.cql.execution import CONCURRENCY
from headrace.sinks.cql.lists import keys_table
from headrace.sinks.cql.writer import ReplayWriter, takes_list_keys


@dataclass(frozen=True, slots=True)
class ReplaySink:
    """Picklable. With a keyspace in the address, all tables go there; without, each to the keyspace of its source's name."""

    address: CqlAddress
    create: bool = True
    """Whether missing tables, types and columns are made."""
    concurrency: int = CONCURRENCY
    """Statements that are under way at a time, for each task."""

    def __str__(self) -> str:
        return str(self.address)

    def target(self, table: CqlTable) -> CqlTable:
        """The table of a source's table here."""
        return targets.moved(table, self.address.keyspace or table.name.database)

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Make what is missing, check what is there; raises before anything is written."""
        targets.prepare(shared_session(self.address), self._with_lists(tables), create=self.create)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Follow a change of the source's table."""
        session = shared_session(self.address)
        targets.alter(session, self.target(old), self.target(new))
        before, after = keys_table(self.target(old)), keys_table(self.target(new))
        if after is None or takes_list_keys(session):
            return
        if before is None:
            targets.prepare(session, [after], create=True)
        else:
            targets.alter(session, before, after)

    def writer(self) -> ReplayWriter:
        return ReplayWriter(shared_session(self.address), self.target, self.concurrency)

    def _with_lists(self, tables: Iterable[CqlTable]) -> list[CqlTable]:
        """The targets, and on Apache Cassandra what stands beside those with lists."""
        found = [self.target(table) for table in tables]
        beside = [kept for table in found if (kept := keys_table(table)) is not None]
        return found if not beside or takes_list_keys(shared_session(self.address)) else found + beside
