"""The target tables: made where they are missing, emptied of what the source has no more.

Everything is checked before anything is created, and all of it may be repeated, so a run that was cut short is simply run again.

A source table without any key holds a multiset of rows. Its target keeps every image for itself, keyed by a hash of the row and an
occurrence number (the image's version, which nothing else has; in a snapshot, the row's number), an insertion counting 1 and a deletion
-1; the view `t_current` shows each row as often as its images add up to. So there, too, order and repetition do not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import check_not_ours
from headrace.sinks.clickhouse.maintenance.replicas import check_replicas
from headrace.sinks.clickhouse.maintenance.stale_rows import SWEEP_SETTINGS, sweep_sql
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, Connection, connect, patient
from headrace.sinks.clickhouse.server.errors import translated
from headrace.sinks.clickhouse.server.quoting import quote_name
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import create_statements, plan_layout, plan_layouts, remembering_sql
from headrace.sinks.clickhouse.tables.existing_table import Missing, missing_parts, plan_existing_table, was_made
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable, find_with_holders
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, TargetTable
from headrace.sinks.clickhouse.tables.views import create_view_sql, row_policy_sql
from headrace.sinks.clickhouse.types.codec_registry import codec_for

log = logging.getLogger("headrace.clickhouse")
_warned: set[str] = set()
"""What was said of columns: once is enough for a process, however often tables are prepared."""

# A server without access storage that can be written, and one whose user may not.
_NO_POLICIES = ("ACCESS_STORAGE", "ACCESS_DENIED", "Not enough privileges")


def prepare_tables(scope: TargetScope, schemas: Sequence[TableSchema]) -> None:
    """Check all tables, then add what is missing and create those that are not there."""
    target, connection = scope.target, connect(scope.target)
    plans = plan_layouts(schemas, target, scope.choices)
    check_not_ours(plans)
    with translated(target, "checking tables"):
        _check_time_type(connection, plans)
        found, holders = find_with_holders(connection, ((plan.database, plan.table) for plan in plans))
    check_replicas(connection, scope, plans, found)
    layouts: list[TargetTable] = []
    lacking: list[tuple[TargetTable, Missing, ExistingTable, ExistingTable | None]] = []
    for plan in plans:
        place, chosen = (plan.database, plan.table), scope.choices.of(plan.source)
        there, holder = found.get(place), holders.get(place)
        if there is None:
            layouts.append(plan)
            continue
        missing = missing_parts(plan, there, chosen, holder)
        layout = plan_existing_table(plan, missing.added_to(there), chosen, None if holder is None else missing.added_to(holder))
        layouts.append(layout)
        lacking.append((layout, missing, there, holder))
    for layout, missing, there, holder in lacking:
        _add_missing(connection, target, layout, missing, there, holder)
        remembering = remembering_sql(layout)
        if remembering:
            with translated(target, f"making table {layout.database}.{layout.table} remember blocks for longer"):
                connection.client.command(remembering)
    _create_databases(connection, scope, layouts)
    for layout in layouts:
        if (layout.database, layout.table) not in found:
            create_table(connection, target, layout)
        _make_readable(connection, scope, layout)
        _warn_of_types(connection, layout)


def create_table(connection: Connection, target: ClickHouseTarget, layout: TargetTable) -> None:
    with translated(target, f"creating table {layout.database}.{layout.table}"):
        for statement in create_statements(layout):
            connection.client.command(statement, settings=connection.known(CREATE_SETTINGS))


def _create_databases(connection: Connection, scope: TargetScope, layouts: Sequence[TargetTable]) -> None:
    cluster = f" ON CLUSTER {quote_name(scope.choices.cluster)}" if scope.choices.cluster else ""
    for database in sorted({layout.database for layout in layouts}):
        with translated(scope.target, f"creating database {database}"):
            connection.client.command(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}{cluster}")


def _add_missing(
    connection: Connection,
    target: ClickHouseTarget,
    layout: TargetTable,
    missing: Missing,
    there: ExistingTable,
    holder: ExistingTable | None,
) -> None:
    """Give a table that is there what it lacks: the one that holds the rows first, so that nothing is sent that it cannot take."""
    held = layout.qualified if layout.holder is None else ".".join(map(quote_name, layout.holder))
    tables = [(held, holder or there)] + ([] if holder is None else [(layout.qualified, there)])
    with translated(target, f"adding what table {layout.database}.{layout.table} lacks"):
        for name, table in tables:
            for column in missing.columns:
                if table.column(column.name) is None:
                    definition = _define(column)
                    connection.client.command(
                        f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS {definition}", settings=connection.known(CREATE_SETTINGS)
                    )
                    log.warning("added column %s to table %s, as missing_columns says", column.name, name)


def _define(column: ExistingColumn) -> str:
    default = f" DEFAULT {column.default_expression}" if column.default_expression else ""
    return f"{quote_name(column.name)} {column.type}{default}"


def _make_readable(connection: Connection, scope: TargetScope, layout: TargetTable) -> None:
    """The view and the row policy, by choice; a table without a key always has its view."""
    chosen = scope.choices.of(layout.source)
    policy = row_policy_sql(layout) if chosen.row_policy else ""
    refused = bool(policy) and not (_may_hide(connection, layout) and _create_policy(connection, scope.target, layout, policy))
    if chosen.view or refused or not layout.has_key:
        with translated(scope.target, f"creating view {layout.view}"):
            connection.client.command(create_view_sql(layout), settings=connection.known(CREATE_SETTINGS))


def _may_hide(connection: Connection, layout: TargetTable) -> bool:
    """Whether the server applies policies after FINAL: before it, a policy hides deletions from FINAL, which shows what they delete."""
    setting = connection.client.server_settings.get("apply_row_policy_after_final")
    if setting is not None and setting.value in ("1", "true"):
        return True
    log.warning(
        "%s.%s gets no row policy: this server applies policies before FINAL, which would show deleted rows again (set"
        " apply_row_policy_after_final = 1 for all users, where the server has it); read the view %s instead",
        layout.database,
        layout.table,
        layout.view,
    )
    return False


def _create_policy(connection: Connection, target: ClickHouseTarget, layout: TargetTable, policy: str) -> bool:
    """Whether the server took the row policy; False where it keeps none (the embedded engine), or the account may not make one."""
    try:
        with translated(target, f"creating a row policy on {layout.database}.{layout.table}"):
            connection.client.command(policy)
    except DefiniteError as error:
        if not any(word in str(error) for word in _NO_POLICIES):
            raise
        log.warning(
            "%s.%s gets no row policy: this server keeps none (the embedded engine has no access storage), or the account may not create"
            " it; read the view %s instead, or the table with FINAL",
            layout.database,
            layout.table,
            layout.view,
        )
        return False
    return True


def replace_table(scope: TargetScope, schema: TableSchema) -> None:
    """Make a table ready for all its rows to come again: one of ours that is not what would be made now is dropped (`prepare_tables` makes
    it anew), one that somebody else made is never dropped. Repeatable."""
    target, connection = scope.target, connect(scope.target)
    plan = plan_layout(schema, target, scope.choices)
    place = (plan.database, plan.table)
    with translated(target, f"checking table {plan.database}.{plan.table}"):
        found, holders = find_with_holders(connection, [place])
    there = found.get(place)
    if there is None:
        return
    chosen = scope.choices.of(plan.source)
    try:
        layout = plan_existing_table(plan, there, chosen, holders.get(place))
    except DefiniteError:
        if not was_made(holders.get(place) or there):
            raise
        layout = replace(plan, ours=False)
    if layout.made and not layout.ours:
        _drop(connection, target, plan, there)


def _drop(connection: Connection, target: ClickHouseTarget, plan: TargetTable, there: ExistingTable) -> None:
    cluster = f" ON CLUSTER {quote_name(plan.storage.cluster)}" if plan.storage.cluster else ""
    with translated(target, f"replacing table {plan.database}.{plan.table}"):
        # It shows columns that will be others.
        connection.client.command(f"DROP VIEW IF EXISTS {plan.view}{cluster}")
        connection.client.command(f"DROP TABLE IF EXISTS {plan.qualified}{cluster}")
        if there.kind == "Distributed" and plan.holder is not None:
            connection.client.command(f"DROP TABLE IF EXISTS {'.'.join(map(quote_name, plan.holder))}{cluster}")


def newest_version(scope: TargetScope, layout: TargetTable) -> int | None:
    """The highest version of a row in the table; None if there is no row, or rows have none."""
    version = layout.mark(MetadataRole.VERSION)
    if version is None:
        return None
    with translated(scope.target, f"looking at table {layout.database}.{layout.table}"):
        found = connect(scope.target).client.query(f"SELECT count(), max({quote_name(version.name)}) FROM {layout.qualified}").result_rows
    return int(found[0][1]) if found[0][0] else None


def sweep_table(scope: TargetScope, layout: TargetTable, before: int) -> None:
    """Take away what a new snapshot of the whole table, whose rows have versions from `before` on, did not see. Repeatable."""
    statement = sweep_sql(layout, before)
    if not statement:
        if layout.ignores_deletes:
            return
        raise DefiniteError(
            f"nothing in table {layout.database}.{layout.table} says how old a row is, so those that the source has no more cannot be told",
            place=f"table {layout.source}",
            hint="add a column _version UInt64 to it (or name one by version_column), TRUNCATE it, and read it again with headrace resync",
        )
    with patient(scope.target) as connection, translated(scope.target, f"sweeping table {layout.database}.{layout.table}"):
        connection.client.command(statement, settings=connection.known(SWEEP_SETTINGS))


def _check_time_type(connection: Connection, layouts: Sequence[TargetTable]) -> None:
    timed = next((layout for layout in layouts for column in layout.columns if "Time64(" in column.type.replace("DateTime64(", "")), None)
    if timed is None or connection.client.query("SELECT 1 FROM system.data_type_families WHERE name = 'Time64'").result_rows:
        return
    raise DefiniteError(
        f"ClickHouse {connection.client.server_version} has no type for TIME columns",
        place=f"table {timed.source}",
        hint='use ClickHouse 25.6 or later, choose time = "int64" or "string", or leave the table out with --exclude',
    )


def _warn_of_types(connection: Connection, layout: TargetTable) -> None:
    """Say which values would halt the pipe, or lose something, because of a type that was chosen or found."""
    for column in layout.columns:
        codec = codec_for(column.source, column.type, connection.limits)
        place = f"{layout.source}: column {column.source.name} is kept as {column.type}"
        if place in _warned:
            continue
        _warned.add(place)
        if codec.caution:
            log.warning("%s: the pipe halts at %s", place, codec.caution)
        if codec.loses:
            log.warning("%s, which does not keep %s", place, codec.loses)
