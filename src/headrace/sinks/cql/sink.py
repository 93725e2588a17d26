"""The sink of replay: a log's rows reproduce the source's tables on another cluster, cell for cell.

Timestamps and expiries are those of the source, so the cluster merges what comes as the source did: any order, any duplication, same data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.cql.address import CqlAddress
from headrace.cql.session import shared_session
from headrace.cql.tables import CqlTable
from headrace.sinks.cql import targets
from headrace.sinks.cql.choices import Dropped, Missing, ReplayChoices
from headrace.sinks.cql.lists import keys_table
from headrace.sinks.cql.writer import ReplayWriter, takes_list_keys


@dataclass(frozen=True, slots=True)
class ReplaySink:
    """Picklable. With a keyspace in the address, all tables go there; without, each to the keyspace of its source's name."""

    address: CqlAddress
    choices: ReplayChoices = field(default_factory=ReplayChoices)

    def __str__(self) -> str:
        return str(self.address)

    def target(self, table: CqlTable) -> CqlTable:
        """The table of a source's table here."""
        return targets.moved(table, self.address.keyspace or table.name.database)

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Make what is missing, check what is there; raises before anything is written."""
        self.choices.check()
        targets.prepare(shared_session(self.address), self._with_lists(tables), create=self._creates)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Follow a change of the source's table."""
        session = shared_session(self.address)
        targets.alter(session, self.target(old), self.target(new), create=self._creates, drop=self._drops)
        before, after = keys_table(self.target(old)), keys_table(self.target(new))
        if after is None or takes_list_keys(session):
            return
        if before is None:
            targets.prepare(session, [after], create=self._creates)
        else:
            targets.alter(session, before, after, create=self._creates, drop=self._drops)

    def writer(self) -> ReplayWriter:
        return ReplayWriter(shared_session(self.address), self.target, self.choices.concurrency)

    @property
    def _creates(self) -> bool:
        return self.choices.missing is Missing.CREATE

    @property
    def _drops(self) -> bool:
        return self.choices.dropped is Dropped.DROP

    def _with_lists(self, tables: Iterable[CqlTable]) -> list[CqlTable]:
        """The targets, and on Apache Cassandra what stands beside those with lists."""
        found = [self.target(table) for table in tables]
        beside = [kept for table in found if (kept := keys_table(table)) is not None]
        return found if not beside or takes_list_keys(shared_session(self.address)) else found + beside
