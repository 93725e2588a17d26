"""Raises the age at which ClickHouse merges an idle table as the table grows (`tables.idle_merges`).

The driver does it when a pipe starts, and each writing process after every million rows of a table. It is upkeep: a failure is logged, and
neither it nor a repetition changes any row. An age that someone else has chosen, in the options or by ALTER, stays.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from typing import Final

from headrace.errors import HeadraceError
from headrace.sinks.clickhouse.server.client import fetch_rows, run_statements
from headrace.sinks.clickhouse.server.identifiers import places_condition
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.engine_parser import EngineParseError, parse_engine
from headrace.sinks.clickhouse.tables.idle_merges import find_age_s, is_adapted, merge_age_s, set_age_sql
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import Place, TargetTable

log = logging.getLogger("headrace.clickhouse")

CHECK_ROWS: Final = 1_000_000
# An ALTER of someone else must not hold a batch up. On a cluster, nothing waits for the other servers.
_ALTER_SETTINGS: Final = {"lock_acquire_timeout": "1", "distributed_ddl_task_timeout": "0"}
_unchecked: dict[tuple[int, ClickHouseTarget, Place], int] = {}
"""Rows that this process has written to a table since its last check."""
_lock = threading.Lock()


def note_written_rows(scope: TargetScope, target_table: TargetTable, rows: int) -> None:
    """Adapt the table's age if this process has written enough rows to it since the last time."""
    if not _adapts(scope, target_table):
        return
    # A forked worker must not count its parent's rows.
    key = os.getpid(), scope.target, target_table.storage_place
    with _lock:
        written = _unchecked.get(key, 0) + rows
        _unchecked[key] = 0 if written >= CHECK_ROWS else written
    if written >= CHECK_ROWS:
        adapt_merge_ages(scope, [target_table])


def adapt_merge_ages(scope: TargetScope, target_tables: Iterable[TargetTable]) -> None:
    """Give each table whose age Headrace decides the age for its size."""
    tables = {table.storage_place: table for table in target_tables if _adapts(scope, table)}
    if not tables:
        return
    try:
        for place, (now_s, wanted_s) in _find_outdated(scope.target, tables).items():
            table = tables[place]
            statement = f"ALTER TABLE {table.storage_name}{table.on_cluster} {set_age_sql(wanted_s)}"
            run_statements(scope.target, f"adapting the merges of {table.full_name}", statement, settings=_ALTER_SETTINGS)
            log.debug("%s is merged when it has been idle for %d s (before: %d s)", table.full_name, wanted_s, now_s)
    except HeadraceError as error:
        log.warning("the settings for merges of idle tables stay as they are: %s", error)


def _adapts(scope: TargetScope, target_table: TargetTable) -> bool:
    return is_adapted(target_table, scope.options.of(target_table.source))


def _find_outdated(target: ClickHouseTarget, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
    """Return the present age and the right one of those tables where they differ."""
    wanted = sorted(places)
    partitions = (
        "SELECT database, table, sum(bytes_on_disk) AS bytes FROM system.parts"
        f" WHERE active AND {places_condition(wanted, 'table')} GROUP BY database, table, partition_id"
    )
    sizes = fetch_rows(target, "looking at parts", f"SELECT database, table, max(bytes) FROM ({partitions}) GROUP BY database, table")
    ages = {(database, table): merge_age_s(int(size)) for database, table, size in sizes}
    if not ages:
        return {}
    tables = f"SELECT database, name, engine_full FROM system.tables WHERE {places_condition(sorted(ages))}"
    outdated = {}
    for database, name, engine in fetch_rows(target, "looking at tables", tables):
        now_s, age_s = _age_of(engine), ages[database, name]
        if now_s is not None and now_s != age_s:
            outdated[database, name] = (now_s, age_s)
    return outdated


def _age_of(engine: str) -> int | None:
    try:
        return find_age_s(parse_engine(engine).settings)
    except EngineParseError:
        return None
