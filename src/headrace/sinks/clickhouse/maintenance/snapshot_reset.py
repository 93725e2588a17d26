"""Tables whose engines count rows, made ready for a snapshot.

Rows that are read again would count again there, so what an interrupted snapshot wrote goes before the next attempt. A collapsing table is
emptied, because all of it comes again. A history keeps what happened: it loses only the rows that the attempt itself wrote. Engines that
merge by version need none of it.
"""

from __future__ import annotations

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import connect, patient
from headrace.sinks.clickhouse.server.errors import translated
from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sinks.clickhouse.write.dedup_check import check_none_under_way

_SETTINGS = {"mutations_sync": "2", "alter_sync": "2", "max_table_size_to_drop": "0", "max_partition_size_to_drop": "0"}


def holds_rows(scope: TargetScope, layout: TargetTable) -> bool:
    """Whether anything is in the table, shown or not."""
    with translated(scope.target, f"looking at table {layout.database}.{layout.table}"):
        return bool(connect(scope.target).client.query(f"SELECT 1 FROM {layout.qualified} LIMIT 1").result_rows)


def clear_table(scope: TargetScope, layout: TargetTable, since: int) -> None:
    """Take away what an earlier attempt at a snapshot may have left; its rows have versions from `since` on. Repeatable."""
    if layout.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED, EngineFamily.HISTORY):
        # The attempt's task may be gone and its last INSERT not.
        check_none_under_way(scope, layout)
    match layout.family:
        case EngineFamily.COLLAPSING | EngineFamily.VERSIONED:
            _run(scope, layout, f"TRUNCATE TABLE {_holder(scope, layout)}")
        case EngineFamily.HISTORY:
            condition = _attempt(layout, since)
            with translated(scope.target, f"looking at table {layout.database}.{layout.table}"):
                found = connect(scope.target).client.query(f"SELECT 1 FROM {layout.qualified} WHERE {condition} LIMIT 1").result_rows
            if found:
                _run(scope, layout, f"ALTER TABLE {_holder(scope, layout)} DELETE WHERE {condition}")


def _attempt(layout: TargetTable, since: int) -> str:
    """Which rows of a history were read from the source's table by an interrupted attempt."""
    version, operation = layout.mark(MetadataRole.VERSION), layout.mark(MetadataRole.OPERATION)
    if version is None:
        raise DefiniteError(
            f"an interrupted snapshot left rows in {layout.database}.{layout.table}, and no column tells which: it has no version",
            place=f"table {layout.source}",
            hint="empty the table, or take away the rows of the snapshot, then start again; or give it a version column",
        )
    condition = f"{quote_name(version.name)} >= {since}"
    return condition if operation is None else f"{condition} AND {quote_name(operation.name)} = 'snapshot'"


def _holder(scope: TargetScope, layout: TargetTable) -> str:
    """The table that holds the rows, wherever it does."""
    database, table = layout.holder or (layout.database, layout.table)
    cluster = f" ON CLUSTER {quote_text(scope.choices.cluster)}" if scope.choices.cluster else ""
    return f"{quote_name(database)}.{quote_name(table)}{cluster}"


def _run(scope: TargetScope, layout: TargetTable, statement: str) -> None:
    with patient(scope.target) as connection, translated(scope.target, f"clearing table {layout.database}.{layout.table}"):
        connection.client.command(statement, settings=connection.known(_SETTINGS))
