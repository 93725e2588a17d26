"""Purges tombstones with `OPTIMIZE … FINAL CLEANUP`, partition by partition.

Invariant: a tombstone is purged only when nothing older can be written any more. So the merge starts while nothing writes, and writing
resumes as soon as the merge has taken its parts; later rows are in other parts. The caller chooses such moments
(`pipes.lifecycle.tombstone_purger`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headrace.sinks.base import Pause
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, OwnTables, format_timestamp
from headrace.sinks.clickhouse.maintenance.stale_rows import allow_cleanup_sql, can_purge_tombstones
from headrace.sinks.clickhouse.server.client import connect, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import TargetTable

_MOMENT: Final = "DateTime64(6, 'UTC')"
CLEANUPS = OwnTable(
    "cleanups",
    (
        ("target", "String"),
        ("pipe", "String"),
        ("began_at", _MOMENT),
        ("ended_at", _MOMENT),
        ("deletions", "UInt64"),
        ("outcome", "String"),
    ),
    ("target",),
)
# The merge must not wait for other merges and then take newer parts. On replicas, only the choice of parts is awaited.
_OPTIMIZE_SETTINGS: Final = {"optimize_throw_if_noop": "1", "lock_acquire_timeout": "5", "alter_sync": "0"}
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class TombstoneCleanup:
    """One purge of one table."""

    scope: TargetScope
    target_table: TargetTable

    def run(self, pause: Pause, may_go_on: Callable[[], bool]) -> int:
        """Purge the table and return the number of tombstones. Each partition's merge starts in a pause, if `may_go_on` agrees."""
        self._allow()
        purged = 0
        for partition, deletions in self._partitions():
            if self._merge(partition, pause, may_go_on):
                purged += deletions
        return purged

    @property
    def _local_table(self) -> tuple[str, str]:
        return self.target_table.local_table or (self.target_table.database, self.target_table.table)

    def _allow(self) -> None:
        statement = allow_cleanup_sql(self.target_table)
        if not statement:
            return
        connection, target = connect(self.scope.target), self.scope.target
        with translate_errors(target, f"allowing the cleanup of {self.target_table.qualified}"):
            connection.client.command(statement)

    def _partitions(self) -> list[tuple[str, int]]:
        """Return the partitions with tombstones, and how many each has."""
        deleted = quote_name(deletion_column(self.target_table))
        name = ".".join(map(quote_name, self._local_table))
        connection = connect(self.scope.target)
        with translate_errors(self.scope.target, f"looking for deletions in {name}"):
            return [
                (str(partition), int(count))
                for partition, count in connection.client.query(
                    f"SELECT _partition_id, count() FROM {name} WHERE {deleted} != 0 GROUP BY _partition_id ORDER BY _partition_id"
                ).result_rows
            ]

    def _merge(self, partition: str, pause: Pause, may_go_on: Callable[[], bool]) -> bool:
        name = ".".join(map(quote_name, self._local_table))
        statement = f"OPTIMIZE TABLE {name} PARTITION ID {quote_text(partition)} FINAL CLEANUP"

        def optimize() -> None:
            with long_running_connection(self.scope.target) as connection, translate_errors(self.scope.target, f"cleaning up {name}"):
                connection.client.command(statement, settings=connection.supported(_OPTIMIZE_SETTINGS))

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-cleanup") as executor:
            with pause():
                if not may_go_on():
                    return False
                parts = self._parts(partition)
                merging = executor.submit(optimize)
                while not merging.done() and not self._is_merging(parts):
                    time.sleep(_LOOK_EVERY_S)
            merging.result()
        return True

    def _parts(self, partition: str) -> list[str]:
        return self._column(
            "SELECT name FROM system.parts WHERE active AND " + self._here() + f" AND partition_id = {quote_text(partition)} ORDER BY name"
        )

    def _is_merging(self, parts: list[str]) -> bool:
        """Whether a merge of all these parts is running."""
        listed = ", ".join(map(quote_text, parts))
        return bool(
            self._column(f"SELECT result_part_name FROM system.merges WHERE {self._here()} AND hasAll(source_part_names, [{listed}])")
        )

    def _here(self) -> str:
        database, table = self._local_table
        return f"database = {quote_text(database)} AND table = {quote_text(table)}"

    def _column(self, sql: str) -> list[str]:
        connection = connect(self.scope.target)
        with translate_errors(self.scope.target, "looking at merges"):
            return [str(row[0]) for row in connection.client.query(sql).result_rows]


def deletion_column(target_table: TargetTable) -> str:
    """Return the column by which the engine recognises tombstones; empty if the table is not purged."""
    return target_table.storage.arguments[-1] if can_purge_tombstones(target_table) and len(target_table.storage.arguments) > 1 else ""


def last_cleanups(tables: OwnTables) -> dict[str, str]:
    """Return when each target's last cleanup started, as text."""
    return {str(target): str(began) for target, began in tables.select(CLEANUPS, ("target", "began_at"))}


def record_cleanup(tables: OwnTables, target: str, pipe: str, began_us: int, deletions: int, outcome: str) -> None:
    row = {
        "target": target,
        "pipe": pipe,
        "began_at": format_timestamp(began_us),
        "ended_at": format_timestamp(time.time_ns() // 1000),
        "deletions": deletions,
        "outcome": outcome,
    }
    tables.insert(CLEANUPS, [row])
