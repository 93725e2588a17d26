"""Creates missing target tables, completes existing ones, and deletes stale rows.

Everything is checked before anything is created, and every step may be repeated after an interruption.

A source table without a key is a multiset of rows. Its target keeps every image, keyed by a hash of the row and an occurrence number (the
image's unique version, or the row number in a snapshot). An insertion counts 1 and a deletion -1; the view `t_current` shows each row as
often as its images sum up to. So order and repetition do not matter there either.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import check_not_own_tables
from headrace.sinks.clickhouse.maintenance.replicas import check_replicas
from headrace.sinks.clickhouse.maintenance.stale_rows import DELETE_STALE_SETTINGS, delete_stale_sql
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, Connection, connect, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import create_statements, extend_dedup_window_sql, plan_table, plan_tables
from headrace.sinks.clickhouse.tables.existing_table import (
    ColumnAdditions,
    find_missing_columns,
    is_created_by_headrace,
    plan_existing_table,
)
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable, find_with_local_tables
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, TargetTable
from headrace.sinks.clickhouse.tables.views import create_view_sql, row_policy_sql
from headrace.sinks.clickhouse.types.codec_registry import codec_for

log = logging.getLogger("headrace.clickhouse")
_warned: set[str] = set()
"""Column warnings that this process has logged already."""

# Errors of a server without writable access storage, and of a user without the privilege.
_NO_POLICIES = ("ACCESS_STORAGE", "ACCESS_DENIED", "Not enough privileges")


def prepare_tables(scope: TargetScope, schemas: Sequence[TableSchema]) -> None:
    """Check all tables, then add missing columns and create missing tables."""
    target, connection = scope.target, connect(scope.target)
    plans = plan_tables(schemas, target, scope.options)
    check_not_own_tables(plans)
    with translate_errors(target, "checking tables"):
        _check_time_type(connection, plans)
        found, local_tables = find_with_local_tables(connection, ((plan.database, plan.table) for plan in plans))
    check_replicas(connection, scope, plans, found)
    target_tables: list[TargetTable] = []
    lacking: list[tuple[TargetTable, ColumnAdditions, ExistingTable, ExistingTable | None]] = []
    for plan in plans:
        place, chosen = (plan.database, plan.table), scope.options.of(plan.source)
        there, local_table = found.get(place), local_tables.get(place)
        if there is None:
            target_tables.append(plan)
            continue
        missing = find_missing_columns(plan, there, chosen, local_table)
        target_table = plan_existing_table(
            plan, missing.apply_to(there), chosen, None if local_table is None else missing.apply_to(local_table)
        )
        target_tables.append(target_table)
        lacking.append((target_table, missing, there, local_table))
    for target_table, missing, there, local_table in lacking:
        _add_missing(connection, target, target_table, missing, there, local_table)
        remembering = extend_dedup_window_sql(target_table)
        if remembering:
            with translate_errors(target, f"making table {target_table.full_name} remember blocks for longer"):
                connection.client.command(remembering)
    _create_databases(connection, scope, target_tables)
    for target_table in target_tables:
        if (target_table.database, target_table.table) not in found:
            create_table(connection, target, target_table)
        _create_view_and_policy(connection, scope, target_table)
        _warn_of_types(connection, target_table)


def create_table(connection: Connection, target: ClickHouseTarget, target_table: TargetTable) -> None:
    with translate_errors(target, f"creating table {target_table.full_name}"):
        for statement in create_statements(target_table):
            connection.client.command(statement, settings=connection.supported(CREATE_SETTINGS))


def _create_databases(connection: Connection, scope: TargetScope, target_tables: Sequence[TargetTable]) -> None:
    cluster = f" ON CLUSTER {quote_name(scope.options.cluster)}" if scope.options.cluster else ""
    for database in sorted({target_table.database for target_table in target_tables}):
        with translate_errors(scope.target, f"creating database {database}"):
            connection.client.command(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}{cluster}")


def _add_missing(
    connection: Connection,
    target: ClickHouseTarget,
    target_table: TargetTable,
    missing: ColumnAdditions,
    there: ExistingTable,
    local_table: ExistingTable | None,
) -> None:
    """Add missing columns to an existing table: to the local table first, so that a Distributed table never forwards unknown columns."""
    held = target_table.qualified if target_table.local_table is None else ".".join(map(quote_name, target_table.local_table))
    tables = [(held, local_table or there)] + ([] if local_table is None else [(target_table.qualified, there)])
    with translate_errors(target, f"adding what table {target_table.full_name} lacks"):
        for name, table in tables:
            for column in missing.columns:
                if table.column(column.name) is None:
                    definition = _define(column)
                    connection.client.command(
                        f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS {definition}", settings=connection.supported(CREATE_SETTINGS)
                    )
                    log.warning("added column %s to table %s (missing_columns = add)", column.name, name)


def _define(column: ExistingColumn) -> str:
    default = f" DEFAULT {column.default_expression}" if column.default_expression else ""
    return f"{quote_name(column.name)} {column.type}{default}"


def _create_view_and_policy(connection: Connection, scope: TargetScope, target_table: TargetTable) -> None:
    """Create the view and the row policy, if the options ask for them; a table without a key always gets its view."""
    chosen = scope.options.of(target_table.source)
    policy = row_policy_sql(target_table) if chosen.row_policy else ""
    refused = bool(policy) and not (
        _applies_policies_after_final(connection, target_table) and _create_policy(connection, scope.target, target_table, policy)
    )
    if chosen.view or refused or not target_table.has_key:
        with translate_errors(scope.target, f"creating view {target_table.view}"):
            connection.client.command(create_view_sql(target_table), settings=connection.supported(CREATE_SETTINGS))


def _applies_policies_after_final(connection: Connection, target_table: TargetTable) -> bool:
    """Whether the server applies row policies after FINAL. Applied before, a policy hides tombstones from FINAL, which then shows
    deleted rows."""
    setting = connection.client.server_settings.get("apply_row_policy_after_final")
    if setting is not None and setting.value in ("1", "true"):
        return True
    log.warning(
        "%s.%s gets no row policy: this server applies policies before FINAL, which would show deleted rows again (set"
        " apply_row_policy_after_final = 1 for all users, where the server has it); read the view %s instead",
        target_table.database,
        target_table.table,
        target_table.view,
    )
    return False


def _create_policy(connection: Connection, target: ClickHouseTarget, target_table: TargetTable, policy: str) -> bool:
    """Create the row policy. Return False if the server has no access storage (the embedded engine) or the user lacks the privilege."""
    try:
        with translate_errors(target, f"creating a row policy on {target_table.full_name}"):
            connection.client.command(policy)
    except DefiniteError as error:
        if not any(word in str(error) for word in _NO_POLICIES):
            raise
        log.warning(
            "%s.%s gets no row policy: this server keeps none (the embedded engine has no access storage), or the account may not create"
            " it; read the view %s instead, or the table with FINAL",
            target_table.database,
            target_table.table,
            target_table.view,
        )
        return False
    return True


def replace_table(scope: TargetScope, schema: TableSchema) -> None:
    """Drop a table that Headrace created and that no longer matches its plan (`prepare_tables` creates it again). Tables of others are
    never dropped. Repeatable."""
    target, connection = scope.target, connect(scope.target)
    plan = plan_table(schema, target, scope.options)
    place = (plan.database, plan.table)
    with translate_errors(target, f"checking table {plan.full_name}"):
        found, local_tables = find_with_local_tables(connection, [place])
    there = found.get(place)
    if there is None:
        return
    chosen = scope.options.of(plan.source)
    try:
        target_table = plan_existing_table(plan, there, chosen, local_tables.get(place))
    except DefiniteError:
        if not is_created_by_headrace(local_tables.get(place) or there):
            raise
        target_table = replace(plan, matches_plan=False)
    if target_table.created_by_headrace and not target_table.matches_plan:
        _drop(connection, target, plan, there)


def _drop(connection: Connection, target: ClickHouseTarget, plan: TargetTable, there: ExistingTable) -> None:
    cluster = f" ON CLUSTER {quote_name(plan.storage.cluster)}" if plan.storage.cluster else ""
    with translate_errors(target, f"replacing table {plan.full_name}"):
        # The view selects the old columns.
        connection.client.command(f"DROP VIEW IF EXISTS {plan.view}{cluster}")
        connection.client.command(f"DROP TABLE IF EXISTS {plan.qualified}{cluster}")
        if there.kind == "Distributed" and plan.local_table is not None:
            connection.client.command(f"DROP TABLE IF EXISTS {'.'.join(map(quote_name, plan.local_table))}{cluster}")


def newest_version(scope: TargetScope, target_table: TargetTable) -> int | None:
    """Return the highest version in the table; None if it has no rows or no versions."""
    version = target_table.metadata_column(MetadataRole.VERSION)
    if version is None:
        return None
    with translate_errors(scope.target, f"looking at table {target_table.full_name}"):
        found = (
            connect(scope.target).client.query(f"SELECT count(), max({quote_name(version.name)}) FROM {target_table.qualified}").result_rows
        )
    return int(found[0][1]) if found[0][0] else None


def delete_stale_rows(scope: TargetScope, target_table: TargetTable, before: int) -> None:
    """Delete the rows that a new snapshot of the whole table did not see; snapshot rows have versions from `before` on. Repeatable."""
    statement = delete_stale_sql(target_table, before)
    if not statement:
        if target_table.ignores_deletes:
            return
        raise DefiniteError(
            f"nothing in table {target_table.full_name} says how old a row is, so rows that the source no longer has cannot be found",
            place=f"table {target_table.source}",
            hint="add a column _version UInt64 to it (or name one by version_column), TRUNCATE it, and read it again with headrace resync",
        )
    with (
        long_running_connection(scope.target) as connection,
        translate_errors(scope.target, f"sweeping table {target_table.full_name}"),
    ):
        connection.client.command(statement, settings=connection.supported({**DELETE_STALE_SETTINGS, **target_table.insert_settings}))


def _check_time_type(connection: Connection, target_tables: Sequence[TargetTable]) -> None:
    timed = next(
        (
            target_table
            for target_table in target_tables
            for column in target_table.columns
            if "Time64(" in column.type.replace("DateTime64(", "")
        ),
        None,
    )
    if timed is None or connection.client.query("SELECT 1 FROM system.data_type_families WHERE name = 'Time64'").result_rows:
        return
    raise DefiniteError(
        f"ClickHouse {connection.client.server_version} has no type for TIME columns",
        place=f"table {timed.source}",
        hint='use ClickHouse 25.6 or later, choose time = "int64" or "string", or leave the table out with --exclude',
    )


def _warn_of_types(connection: Connection, target_table: TargetTable) -> None:
    """Log which values would halt the pipe or lose information because of the column's type."""
    for column in target_table.columns:
        codec = codec_for(column.source, column.type, connection.limits)
        place = f"{target_table.source}: column {column.source.name} is kept as {column.type}"
        if place in _warned:
            continue
        _warned.add(place)
        if codec.caution:
            log.warning("%s: the pipe halts at %s", place, codec.caution)
        if codec.loses:
            log.warning("%s, which does not keep %s", place, codec.loses)
