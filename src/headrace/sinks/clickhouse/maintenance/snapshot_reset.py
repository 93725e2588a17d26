"""Prepares tables that count duplicates for a snapshot.

Rows of an interrupted snapshot would be counted twice, so they are removed before the next attempt. A collapsing table is truncated,
because all of its rows are read again. A history loses only the rows of the interrupted attempt: they are recognised by their operation,
or, in a table without that column, by versions above all changes that the stream wrote before the attempt. Engines that merge by version
need nothing.
"""

from __future__ import annotations

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import connect, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.write.dedup_check import check_no_running_insert

_SETTINGS = {"mutations_sync": "2", "alter_sync": "2", "max_table_size_to_drop": "0", "max_partition_size_to_drop": "0"}


def holds_rows(scope: TargetScope, target_table: TargetTable) -> bool:
    """Whether the table contains any row, visible or not."""
    with translate_errors(scope.target, f"looking at table {target_table.full_name}"):
        return bool(connect(scope.target).client.query(f"SELECT 1 FROM {target_table.qualified} LIMIT 1").result_rows)


def discard_partial_snapshot(scope: TargetScope, target_table: TargetTable, since: int, attempted_from: int = 0, written: int = 0) -> None:
    """Delete the rows of an interrupted snapshot; see `TableStore.discard_partial_snapshot`. Repeatable."""
    if target_table.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED, EngineFamily.HISTORY):
        # The attempt's last INSERT may still run although its task has ended.
        check_no_running_insert(scope, target_table)
    match target_table.family:
        case EngineFamily.COLLAPSING | EngineFamily.VERSIONED:
            _run(scope, target_table, f"TRUNCATE TABLE {_local_table_sql(scope, target_table)}")
        case EngineFamily.HISTORY:
            condition = _partial_snapshot_condition(scope, target_table, since, attempted_from, written)
            if _holds_rows_where(scope, target_table, condition):
                _run(scope, target_table, f"ALTER TABLE {_local_table_sql(scope, target_table)} DELETE WHERE {condition}")


def _holds_rows_where(scope: TargetScope, target_table: TargetTable, condition: str) -> bool:
    with translate_errors(scope.target, f"looking at table {target_table.full_name}"):
        return bool(connect(scope.target).client.query(f"SELECT 1 FROM {target_table.qualified} WHERE {condition} LIMIT 1").result_rows)


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
    if written > first and _holds_rows_where(scope, target_table, mixed):
        raise DefiniteError(
            f"an interrupted snapshot may have left rows in {target_table.full_name} among later changes, and no column tells them apart: "
            "it has no operation",
            place=f"table {target_table.source}",
            hint=f"delete these rows (ALTER TABLE {target_table.qualified} DELETE WHERE {mixed}), then start again: the snapshot brings "
            "the current rows, and the changes among the deleted rows are not kept; a column for the operation avoids this",
        )
    return f"{name} >= {first}"


def _local_table_sql(scope: TargetScope, target_table: TargetTable) -> str:
    database, table = target_table.local_table or (target_table.database, target_table.table)
    cluster = f" ON CLUSTER {quote_text(scope.options.cluster)}" if scope.options.cluster else ""
    return f"{quote_name(database)}.{quote_name(table)}{cluster}"


def _run(scope: TargetScope, target_table: TargetTable, statement: str) -> None:
    with (
        long_running_connection(scope.target) as connection,
        translate_errors(scope.target, f"clearing table {target_table.full_name}"),
    ):
        connection.client.command(statement, settings=connection.supported(_SETTINGS))
