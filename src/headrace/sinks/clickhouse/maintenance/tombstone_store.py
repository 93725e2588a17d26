"""The `TombstoneStore` of the ClickHouse sink: purges deletion markers and records it in `headrace.cleanups`.

A purge is `OPTIMIZE … FINAL CLEANUP`, partition by partition. Invariant: a tombstone is purged only when nothing older can be written any
more. So the merge starts while nothing writes, and writing resumes as soon as the merge has taken its parts; later rows are in other parts.
The caller chooses such moments (`pipes.lifecycle.sink_tables`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError
from headrace.model.schema import TableSchema
from headrace.retry import retrying
from headrace.sinks.base import Pause
from headrace.sinks.clickhouse.bookkeeping.dead_letters import count_waiting
from headrace.sinks.clickhouse.bookkeeping.own_tables import MOMENT, OwnTable, OwnTables, format_timestamp, parse_timestamp_us
from headrace.sinks.clickhouse.server.client import fetch_rows, run_long_statement, run_statements
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable

log = logging.getLogger("headrace")


CLEANUPS = OwnTable(
    "cleanups",
    (
        ("target", "String"),
        ("pipe", "String"),
        ("began_at", MOMENT),
        ("ended_at", MOMENT),
        ("deletions", "UInt64"),
        ("outcome", "String"),
    ),
    ("target",),
)
# The merge must not wait for other merges and then take newer parts. On replicas, only the choice of parts is awaited.
_OPTIMIZE_SETTINGS: Final = {"optimize_throw_if_noop": "1", "lock_acquire_timeout": "5", "alter_sync": "0"}
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ClickHouseTombstoneStore:
    scope: TargetScope

    def purge_interval_hours(self, schema: TableSchema) -> float:
        return self.scope.options.of(schema.name).cleanup_hours

    def last_purges(self) -> Mapping[str, float]:
        tables = OwnTables(self.scope)
        tables.ensure(CLEANUPS)
        return {target: parse_timestamp_us(began) / 1e6 for target, began in tables.select(CLEANUPS, ("target", "began_at"))}

    def target(self, schema: TableSchema) -> str | None:
        table = self._table(schema)
        return table.full_name if deletion_column(table) else None

    def purge(self, schema: TableSchema, pipe: str, pause: Pause, may_continue: Callable[[], bool]) -> None:
        """A table with rows in the dead letters is not purged: such a row could be older than a marker."""
        table, tables, began_us = self._table(schema), OwnTables(self.scope), time.time_ns() // 1000
        target = table.full_name

        def record(deletions: int, outcome: str) -> None:
            times = {"began_at": format_timestamp(began_us), "ended_at": format_timestamp(time.time_ns() // 1000)}
            row = {"target": target, "pipe": pipe, **times, "deletions": deletions, "outcome": outcome}
            retrying(lambda: tables.insert(CLEANUPS, [row]))

        letters = count_waiting(tables, target)
        if letters:
            log.warning("deletions in %s are not purged: %d of its rows wait in headrace.errors (headrace retry)", target, letters)
            record(0, f"not done: {letters} rows wait in headrace.errors")
            return
        try:
            purged = TombstoneCleanup(self.scope, table).run(pause, may_continue)
        except HeadraceError as error:
            record(0, f"failed: {error.message}")
            raise
        record(purged, "done")
        log.info("purged %d deletions from %s in %.1f s", purged, target, time.time() - began_us / 1e6)

    def _table(self, schema: TableSchema) -> TargetTable:
        return resolve_tables(self.scope, [schema])[schema.name]


@dataclass(frozen=True, slots=True)
class TombstoneCleanup:
    scope: TargetScope
    target_table: TargetTable

    def run(self, pause: Pause, may_go_on: Callable[[], bool]) -> int:
        """Purge the table and return the number of tombstones. Each partition's merge starts in a pause, if `may_go_on` agrees."""
        name = self.target_table.storage_name
        allowing = allow_cleanup_sql(self.target_table)
        if allowing:
            run_statements(self.scope.target, f"allowing the cleanup of {self.target_table.qualified}", allowing)
        counted = f"SELECT _partition_id, count() FROM {name} WHERE {quote_name(deletion_column(self.target_table))} != 0"
        sql = f"{counted} GROUP BY _partition_id ORDER BY _partition_id"
        purged = 0
        for partition, deletions in fetch_rows(self.scope.target, f"looking for deletions in {name}", sql):
            if self._merge(str(partition), pause, may_go_on):
                purged += int(deletions)
        return purged

    def _merge(self, partition: str, pause: Pause, may_go_on: Callable[[], bool]) -> bool:
        name, target = self.target_table.storage_name, self.scope.target
        statement = f"OPTIMIZE TABLE {name} PARTITION ID {quote_text(partition)} FINAL CLEANUP"
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-cleanup") as executor:
            with pause():
                if not may_go_on():
                    return False
                active = f"active AND {self._here} AND partition_id = {quote_text(partition)}"
                parts = self._column(f"SELECT name FROM system.parts WHERE {active} ORDER BY name")
                merging = executor.submit(run_long_statement, target, f"cleaning up {name}", statement, _OPTIMIZE_SETTINGS)
                while not merging.done() and not self._is_merging(parts):
                    time.sleep(_LOOK_EVERY_S)
            merging.result()
        return True

    def _is_merging(self, parts: list[str]) -> bool:
        """Whether a merge of all these parts is running."""
        listed = ", ".join(map(quote_text, parts))
        return bool(
            self._column(f"SELECT result_part_name FROM system.merges WHERE {self._here} AND hasAll(source_part_names, [{listed}])")
        )

    @property
    def _here(self) -> str:
        database, table = self.target_table.storage_place
        return f"database = {quote_text(database)} AND table = {quote_text(table)}"

    def _column(self, sql: str) -> list[str]:
        return [str(row[0]) for row in fetch_rows(self.scope.target, "looking at merges", sql)]


def can_purge_tombstones(target_table: TargetTable) -> bool:
    """Whether the engine itself can purge tombstones."""
    return target_table.family is EngineFamily.REPLACING and target_table.final_hides_deleted and target_table.has_key


def allow_cleanup_sql(target_table: TargetTable) -> str:
    """Return the ALTER that lets merges purge tombstones; empty if it is allowed or not possible."""
    allowed = dict(target_table.storage.settings).get("allow_experimental_replacing_merge_with_cleanup") in ("1", "true")
    if allowed or not can_purge_tombstones(target_table):
        return ""
    table = f"{target_table.storage_name}{target_table.on_cluster}"
    return f"ALTER TABLE {table} MODIFY SETTING allow_experimental_replacing_merge_with_cleanup = 1"


def deletion_column(target_table: TargetTable) -> str:
    """Return the column by which the engine recognises tombstones; empty if the table is not purged."""
    return target_table.storage.arguments[-1] if can_purge_tombstones(target_table) and len(target_table.storage.arguments) > 1 else ""
