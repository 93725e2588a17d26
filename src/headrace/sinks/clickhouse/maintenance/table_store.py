"""The `TableStore` of the ClickHouse sink: prepares tables for a snapshot, and deletes the rows that the source no longer has.

Invariant: deleting stale rows may be interrupted and repeated. Where rows merge by version, or in a history, it appends deletions with the
position as version, only for rows whose last image is older. Where images are summed, it deletes all images older than the position.

In tables that count duplicates, rows of an interrupted snapshot would be counted twice, so they are removed before the next attempt. A
collapsing table is truncated, because all of its rows are read again. A history loses only the rows of the interrupted attempt: they are
recognised by their operation, or, in a table without that column, by versions above all changes that the stream wrote before the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.bookkeeping.dead_letters import supersede_dead_letters
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.maintenance.table_setup import replace_table
from headrace.sinks.clickhouse.server.client import DROP_SETTINGS, fetch_rows, run_long_statement, run_statements
from headrace.sinks.clickhouse.server.identifiers import on_cluster, quote_name, quote_text
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.tables.views import current_rows_sql, live_condition
from headrace.sinks.clickhouse.write.deduplication import check_no_running_insert

_DELETE_STALE_SETTINGS: Final = {
    "mutations_sync": "2",
    "lightweight_deletes_sync": "2",
    "distributed_foreground_insert": "1",
    "max_partitions_per_insert_block": "0",
    # A row policy that hides tombstones before FINAL would make deleted rows visible again.
    "apply_row_policy_after_final": "1",
}
_TIMES: Final = quote_name("__headrace_times")
_DISCARD_SETTINGS: Final = {"mutations_sync": "2", "alter_sync": "2", **DROP_SETTINGS}


@dataclass(frozen=True, slots=True)
class ClickHouseTableStore:
    scope: TargetScope
    label: str = ""
    """The pipe's display name, which its dead letters contain."""

    def replace(self, schema: TableSchema) -> None:
        replace_table(self.scope, schema)

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        table = self._table(schema)
        _sync_replica(self.scope.target, table)
        statement = delete_stale_sql(table, before)
        if statement:
            settings = {**_DELETE_STALE_SETTINGS, **table.insert_settings}
            run_long_statement(self.scope.target, f"sweeping table {table.full_name}", statement, settings)
        elif not table.ignores_deletes:
            raise DefiniteError(
                f"nothing in table {table.full_name} says how old a row is, so rows that the source no longer has cannot be found",
                place=f"table {table.source}",
                hint="add a column _version UInt64 to it (or name one by version_column), TRUNCATE it, and read it again with headrace"
                " resync",
            )
        supersede_dead_letters(OwnTables(self.scope), table, self.label, before)

    def holds_rows(self, schema: TableSchema) -> bool:
        return _has_rows(self.scope.target, self._table(schema), "1")

    def newest_version(self, schema: TableSchema) -> int | None:
        table = self._table(schema)
        version = table.metadata_column(MetadataRole.VERSION)
        if version is None:
            return None
        sql = f"SELECT count(), max({quote_name(version.name)}) FROM {table.qualified}"
        [(rows, highest)] = fetch_rows(self.scope.target, f"looking at table {table.full_name}", sql)
        return int(highest) if rows else None

    def discard_partial_snapshot(self, schema: TableSchema, since: int, attempted_from: int = 0, written: int = 0) -> None:
        table = self._table(schema)
        discard_partial_snapshot(self.scope, table, since, attempted_from, written)
        # Dead letters of the interrupted snapshot have versions from `since` on, and all waiting rows are read again.
        supersede_dead_letters(OwnTables(self.scope), table, self.label, None)

    def target_names(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, str]:
        # One request for all tables: after a schema change the cache is empty.
        return {name: table.full_name for name, table in resolve_tables(self.scope, schemas).items()}

    def _table(self, schema: TableSchema) -> TargetTable:
        return resolve_tables(self.scope, [schema])[schema.name]


def delete_stale_sql(target_table: TargetTable, before: int) -> str:
    """Return the statement that deletes rows whose last image has a version below `before`; empty where no column tells."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    if version is None or (target_table.family is EngineFamily.COALESCING):
        return ""
    older = f"{quote_name(version.name)} < {before}"
    if target_table.family is EngineFamily.HISTORY and not target_table.has_key:
        return _retract_history_rows(target_table, before)
    if target_table.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED) or not target_table.has_key:
        return f"DELETE FROM {target_table.storage_name}{target_table.on_cluster} WHERE {older}"
    if not live_condition(target_table):
        return ""
    columns = [quote_name(column.name) for column in target_table.columns]
    names, values = _deletion(target_table, before)
    source = current_rows_sql(target_table, versions=True)
    into, taken = ", ".join([*columns, *names]), ", ".join([*columns, *values])
    return f"INSERT INTO {target_table.qualified} ({into}) SELECT {taken} FROM ({source}) WHERE {older}"


def _deletion(target_table: TargetTable, before: int) -> tuple[list[str], list[str]]:
    """Return the metadata columns, and their values in a deletion."""
    values = {
        MetadataRole.SIGN: "-1",
        MetadataRole.DELETED: "1",
        MetadataRole.VERSION: str(before),
        MetadataRole.OPERATION: quote_text("delete"),
        MetadataRole.COMMIT_TIME: "now64(6)",
    }
    metadata_columns = [mark for mark in target_table.metadata_columns if mark.role in values]
    return [quote_name(mark.name) for mark in metadata_columns], [values[mark.role] for mark in metadata_columns]


def _retract_history_rows(target_table: TargetTable, before: int) -> str:
    """In a history without keys: append a deletion for each older row, minus those that were appended before."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    assert version is not None
    name = quote_name(version.name)
    listed = ", ".join(quote_name(column.name) for column in target_table.columns)
    names, values = _deletion(target_table, before)
    live = live_condition(target_table)
    # No log change has the bare position as version, so such a deletion was appended here.
    counted = f"{name} < {before} OR ({name} = {before} AND NOT ({live}))"
    grouped = f"SELECT {listed}, sum(if({live}, 1, -1)) AS {_TIMES} FROM {target_table.qualified} WHERE {counted} GROUP BY {listed}"
    return (
        f"INSERT INTO {target_table.qualified} ({listed}, {', '.join(names)}) SELECT {listed}, {', '.join(values)} FROM ({grouped})"
        f" ARRAY JOIN range(toUInt64(greatest({_TIMES}, 0)))"
    )


def discard_partial_snapshot(scope: TargetScope, target_table: TargetTable, since: int, attempted_from: int = 0, written: int = 0) -> None:
    """Delete the rows of an interrupted snapshot; see `TableStore.discard_partial_snapshot`. Repeatable."""
    if not target_table.counts_duplicates:
        return
    # The attempt's last INSERT may still run although its task has ended.
    check_no_running_insert(scope, target_table)
    table = f"{target_table.storage_name}{on_cluster(scope.options.cluster)}"
    statement = f"TRUNCATE TABLE {table}"
    if target_table.family is EngineFamily.HISTORY:
        condition = _partial_snapshot_condition(scope, target_table, since, attempted_from, written)
        if not _has_rows(scope.target, target_table, condition):
            return
        statement = f"ALTER TABLE {table} DELETE WHERE {condition}"
    run_long_statement(scope.target, f"clearing table {target_table.full_name}", statement, _DISCARD_SETTINGS)


def _has_rows(target: ClickHouseTarget, table: TargetTable, condition: str) -> bool:
    """Whether any row, visible or not, satisfies a condition."""
    sql = f"SELECT 1 FROM {table.qualified} WHERE {condition} LIMIT 1"
    return bool(fetch_rows(target, f"looking at table {table.full_name}", sql))


def _partial_snapshot_condition(scope: TargetScope, target_table: TargetTable, since: int, attempted_from: int, written: int) -> str:
    """Return the condition of a history's rows that an interrupted snapshot wrote."""
    version, operation = target_table.metadata_column(MetadataRole.VERSION), target_table.metadata_column(MetadataRole.OPERATION)
    if version is None:
        raise DefiniteError(
            f"an interrupted snapshot left rows in {target_table.full_name}, and they cannot be identified: it has no version column",
            place=f"table {target_table.source}",
            hint="empty the table, or take away the rows of the snapshot, then start again; or give it a version column",
        )
    name = quote_name(version.name)
    if operation is not None:
        return f"{name} >= {since} AND {quote_name(operation.name)} = 'snapshot'"
    first = max(since, attempted_from)
    mixed = f"{name} >= {first} AND {name} < {written}"
    if written > first and _has_rows(scope.target, target_table, mixed):
        raise DefiniteError(
            f"an interrupted snapshot may have left rows in {target_table.full_name} among later changes, and no column tells them apart: "
            "it has no operation",
            place=f"table {target_table.source}",
            hint=f"delete these rows (ALTER TABLE {target_table.qualified} DELETE WHERE {mixed}), then start again: the snapshot brings "
            "the current rows, and the changes among the deleted rows are not kept; a column for the operation avoids this",
        )
    return f"{name} >= {first}"


def _sync_replica(target: ClickHouseTarget, target_table: TargetTable) -> None:
    """Wait until the current host has all rows that were written to others, before a statement that reads rows to write others."""
    if not target.others:
        return
    database, table = target_table.storage_place
    doing = f"waiting for the replica of {database}.{table}"
    here = f"database = {quote_text(database)} AND table = {quote_text(table)}"
    if fetch_rows(target, doing, f"SELECT 1 FROM system.replicas WHERE {here}"):
        run_statements(target, doing, f"SYSTEM SYNC REPLICA {target_table.storage_name}")
