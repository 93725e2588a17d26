"""The `TombstoneStore` of the ClickHouse sink: purges deletion markers and records it in `headrace.cleanups`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.model.schema import TableSchema
from headrace.retry import retrying
from headrace.sinks.base import Pause
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, parse_timestamp_us
from headrace.sinks.clickhouse.dead_letters.dead_letters import count_waiting
from headrace.sinks.clickhouse.maintenance.tombstone_cleanup import (
    CLEANUPS,
    TombstoneCleanup,
    deletion_column,
    last_cleanups,
    record_cleanup,
)
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import TargetTable

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class ClickHouseTombstoneStore:
    """The deletion markers in the tables of one server."""

    scope: TargetScope

    def purge_interval_hours(self, schema: TableSchema) -> float:
        return self.scope.options.of(schema.name).cleanup_hours

    def last_purges(self) -> Mapping[str, float]:
        tables = OwnTables(self.scope)
        tables.ensure(CLEANUPS)
        return {target: parse_timestamp_us(began) / 1e6 for target, began in last_cleanups(tables).items()}

    def target(self, schema: TableSchema) -> str | None:
        table = self._table(schema)
        return f"{table.database}.{table.table}" if deletion_column(table) else None

    def purge(self, schema: TableSchema, pipe: str, pause: Pause, may_continue: Callable[[], bool]) -> None:
        """A table with rows in the dead letters is not purged: such a row could be older than a marker."""
        table, tables, began_us = self._table(schema), OwnTables(self.scope), time.time_ns() // 1000
        target = f"{table.database}.{table.table}"
        letters = count_waiting(tables, target)
        if letters:
            log.warning("deletions in %s are not purged: %d of its rows wait in headrace.errors (headrace retry)", target, letters)
            retrying(lambda: record_cleanup(tables, target, pipe, began_us, 0, f"not done: {letters} rows wait in headrace.errors"))
            return
        try:
            purged = TombstoneCleanup(self.scope, table).run(pause, may_continue)
        except HeadraceError as error:
            reason = f"failed: {error.message}"
            retrying(lambda: record_cleanup(tables, target, pipe, began_us, 0, reason))
            raise
        retrying(lambda: record_cleanup(tables, target, pipe, began_us, purged, "done"))
        log.info("purged %d deletions from %s in %.1f s", purged, target, time.time() - began_us / 1e6)

    def _table(self, schema: TableSchema) -> TargetTable:
        return resolve_tables(self.scope, [schema])[schema.name]
