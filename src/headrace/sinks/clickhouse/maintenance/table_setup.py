"""Creates missing target tables, and completes or replaces existing ones.

Everything is checked before anything is created, and every step may be repeated after an interruption.

A source table without a key is a multiset of rows. Its target keeps every image, keyed by a hash of the row and an occurrence number (the
image's unique version, or the row number in a snapshot). An insertion counts 1 and a deletion -1; its view shows each row as often as its
images sum up to. So order and repetition do not matter there either.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import check_not_own_tables
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, DROP_SETTINGS, Connection, connect, fetch_rows, run_statements
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import on_cluster, places_condition, qualify, quote_name
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import LOCAL_SUFFIX, create_statements, extend_dedup_window_sql, plan_table, plan_tables
from headrace.sinks.clickhouse.tables.existing_table import (
    ColumnAdditions,
    find_missing_columns,
    is_created_by_headrace,
    plan_existing_table,
)
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable, find_with_local_tables
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import ROWS_SUFFIX, Place, TargetTable
from headrace.sinks.clickhouse.tables.views import create_view_sql, row_policy_sql
from headrace.sinks.clickhouse.types.codec_registry import codec_for
from headrace.sinks.clickhouse.write.merge_ages import adapt_merge_ages
from headrace.stage_report import count_stage

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
    found, local_tables = find_with_local_tables(target, (plan.place for plan in plans), "checking tables")
    check_replicas(scope, plans, found)
    _check_view_names(target, plans)
    target_tables: list[TargetTable] = []
    lacking: list[tuple[TargetTable, ColumnAdditions, ExistingTable, ExistingTable | None]] = []
    for plan in plans:
        chosen, there, local_table = scope.options.of(plan.source), found.get(plan.place), local_tables.get(plan.place)
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
        _add_missing(target, target_table, missing, there, local_table)
        remembering = extend_dedup_window_sql(target_table)
        if remembering:
            run_statements(target, f"making table {target_table.full_name} remember blocks for longer", remembering)
    adapt_merge_ages(scope, (target_table for target_table, *_ in lacking))
    for database in sorted({target_table.database for target_table in target_tables}):
        statement = f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}{on_cluster(scope.options.cluster)}"
        run_statements(target, f"creating database {database}", statement)
    for target_table in count_stage("creating target tables", target_tables, "tables"):
        if target_table.place not in found:
            statements = create_statements(target_table)
            run_statements(target, f"creating table {target_table.full_name}", *statements, settings=CREATE_SETTINGS)
        _create_view_and_policy(connection, scope, target_table)
        _warn_of_types(connection, target_table)


def _check_view_names(target: ClickHouseTarget, plans: Sequence[TargetTable]) -> None:
    """Raise `DefiniteError` if a table has the name that the view of a table without a key is to get."""
    named = {plan.view_place: plan for plan in plans if plan.view_table}
    if not named:
        return
    found, _ = find_with_local_tables(target, named, "checking views")
    for place, there in found.items():
        if there.kind != "View":
            raise DefiniteError(
                f"{'.'.join(place)} is a table, and is to be a view of the rows in {named[place].full_name}",
                place=f"table {named[place].source}",
                hint=f"rename or drop {'.'.join(place)} in ClickHouse, then start again; or choose keyless_views = false",
            )


def _add_missing(
    target: ClickHouseTarget, target_table: TargetTable, missing: ColumnAdditions, there: ExistingTable, local_table: ExistingTable | None
) -> None:
    """Add missing columns to an existing table: to the local table first, so that a Distributed table never forwards unknown columns."""
    tables = [(target_table.storage_name, local_table or there)] + ([] if local_table is None else [(target_table.qualified, there)])
    for name, table in tables:
        for column in missing.columns:
            if table.column(column.name) is None:
                default = f" DEFAULT {column.default_expression}" if column.default_expression else ""
                statement = f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS {quote_name(column.name)} {column.type}{default}"
                run_statements(target, f"adding what table {target_table.full_name} lacks", statement, settings=CREATE_SETTINGS)
                log.warning("added column %s to table %s (missing_columns = add)", column.name, name)


def _create_view_and_policy(connection: Connection, scope: TargetScope, target_table: TargetTable) -> None:
    """Create the view and the row policy, if the options ask for them; a table without a key always gets its view."""
    chosen = scope.options.of(target_table.source)
    policy = row_policy_sql(target_table) if chosen.row_policy else ""
    refused = bool(policy) and not (
        _applies_policies_after_final(connection, target_table) and _create_policy(scope.target, target_table, policy)
    )
    if chosen.view or refused or not target_table.has_key:
        run_statements(scope.target, f"creating view {target_table.view}", create_view_sql(target_table), settings=CREATE_SETTINGS)


def _applies_policies_after_final(connection: Connection, target_table: TargetTable) -> bool:
    """Whether the server applies row policies after FINAL. Applied before, a policy hides tombstones from FINAL, which then shows
    deleted rows."""
    setting = connection.client.server_settings.get("apply_row_policy_after_final")
    if setting is not None and setting.value in ("1", "true"):
        return True
    log.warning(
        "%s gets no row policy: this server applies policies before FINAL, which would show deleted rows again (set"
        " apply_row_policy_after_final = 1 for all users, where the server has it); read the view %s instead",
        target_table.full_name,
        target_table.view,
    )
    return False


def _create_policy(target: ClickHouseTarget, target_table: TargetTable, policy: str) -> bool:
    """Create the row policy. Return False if the server has no access storage (the embedded engine) or the user lacks the privilege."""
    try:
        run_statements(target, f"creating a row policy on {target_table.full_name}", policy)
    except DefiniteError as error:
        if not any(word in str(error) for word in _NO_POLICIES):
            raise
        log.warning(
            "%s gets no row policy: this server keeps none (the embedded engine has no access storage), or the account may not create"
            " it; read the view %s instead, or the table with FINAL",
            target_table.full_name,
            target_table.view,
        )
        return False
    return True


def replace_table(scope: TargetScope, schema: TableSchema) -> None:
    """Drop a table that Headrace created and that no longer matches its plan (`prepare_tables` creates it again). Tables of others are
    never dropped. Repeatable."""
    plan = plan_table(schema, scope.target, scope.options)
    _drop_other_form(scope, plan)
    found, local_tables = find_with_local_tables(scope.target, [plan.place], f"checking table {plan.full_name}")
    there, local_table = found.get(plan.place), local_tables.get(plan.place)
    if there is None:
        return
    try:
        target_table = plan_existing_table(plan, there, scope.options.of(plan.source), local_table)
    except DefiniteError:
        if not is_created_by_headrace(local_table or there):
            raise
        target_table = replace(plan, matches_plan=False)
    if target_table.created_by_headrace and not target_table.matches_plan:
        # The view selects the old columns.
        statements = [f"DROP VIEW IF EXISTS {plan.view}", f"DROP TABLE IF EXISTS {plan.qualified}"]
        if there.kind == "Distributed" and plan.local_table is not None:
            statements.append(f"DROP TABLE IF EXISTS {plan.storage_name}")
        dropping = (f"{statement}{plan.on_cluster}" for statement in statements)
        run_statements(scope.target, f"replacing table {plan.full_name}", *dropping, settings=DROP_SETTINGS)


def _drop_other_form(scope: TargetScope, plan: TargetTable) -> None:
    """Drop what Headrace created for the table under its other name (`keyless_views`), before its key came or went."""
    if not scope.options.of(plan.source).keyless_views:
        return
    name = (plan.database, plan.view_table or plan.table)
    other = name if plan.view_table else (plan.database, plan.table + ROWS_SUFFIX)
    found, local_tables = find_with_local_tables(scope.target, [name, other], f"checking table {'.'.join(other)}")
    held, there = found.get(other), found.get(name)
    if held is None or held.kind == "View" or not is_created_by_headrace(local_tables.get(other, held)):
        return
    statements = [f"DROP TABLE IF EXISTS {qualify(other)}"]
    if held.kind == "Distributed" and plan.local_table is not None:
        statements.append(f"DROP TABLE IF EXISTS {qualify((other[0], other[1] + LOCAL_SUFFIX))}")
    if not plan.view_table:
        if there is None or there.kind != "View":
            # The source has a table of this name.
            return
        statements.insert(0, f"DROP VIEW IF EXISTS {qualify(name)}")
    dropping = (f"{statement}{plan.on_cluster}" for statement in statements)
    run_statements(scope.target, f"replacing table {'.'.join(other)}", *dropping, settings=DROP_SETTINGS)


def _check_time_type(connection: Connection, target_tables: Sequence[TargetTable]) -> None:
    timed = next(
        (table for table in target_tables for column in table.columns if "Time64(" in column.type.replace("DateTime64(", "")), None
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


_SHARING_DATABASES = ("Replicated", "Shared")


def check_replicas(scope: TargetScope, target_tables: Sequence[TargetTable], found: Mapping[Place, ExistingTable]) -> None:
    """Raise `DefiniteError` if several hosts have separate tables; does nothing for one host."""
    target = scope.target
    if not target.others:
        return
    engines = {place: table.engine for place, table in found.items()}
    missing = [table.place for table in target_tables if table.place not in found]
    if missing and not scope.options.cluster:
        # A Replicated or Shared database replicates all of its tables.
        databases = fetch_rows(target, "looking at databases", "SELECT name, engine FROM system.databases")
        sharing = {name for name, engine in databases if engine in _SHARING_DATABASES}
        engines |= dict.fromkeys((place for place in missing if place[0] not in sharing), "a plain table to be made")
    check_shared(target, engines)
    check_same(target, _paths_by_host(target, [place for place, engine in engines.items() if engine.startswith("Replicated")]))


def check_shared(target: ClickHouseTarget, engines: Mapping[Place, str]) -> None:
    """Raise `DefiniteError` for a table that each host has separately."""
    for (database, table), engine in engines.items():
        if not engine.startswith(("Replicated", "Shared", "Distributed")):
            raise DefiniteError(
                f"{database}.{table} is {engine.partition('(')[0].partition(' ORDER')[0]}, "
                f"which each of the {len(target.hosts)} hosts would have for itself",
                place=str(target),
                hint="several hosts are for one cluster: choose the cluster (its tables are then made Replicated), make the table "
                "Replicated, Shared or Distributed, or name one host",
            )


def check_same(target: ClickHouseTarget, paths: Iterable[tuple[str, Mapping[Place, str]]]) -> None:
    """Raise `DefiniteError` for hosts of different shards; `paths` gives each table's Keeper path, host by host."""
    first: dict[Place, tuple[str, str]] = {}
    for host, places in paths:
        for (database, table), path in places.items():
            elsewhere, expected = first.setdefault((database, table), (host, path))
            if path != expected:
                raise DefiniteError(
                    f"{database}.{table} is not the same table on {elsewhere} ({expected}) and on {host} ({path or 'not there'})",
                    place=str(target),
                    hint="hosts of different shards need a Distributed table over their tables; or name the replicas of one shard only",
                )


def _paths_by_host(target: ClickHouseTarget, places: Sequence[Place]) -> Iterable[tuple[str, Mapping[Place, str]]]:
    if not places:
        return
    sql = f"SELECT database, table, zookeeper_path FROM system.replicas WHERE {places_condition(places, 'table')}"
    for index in range(len(target.hosts)):
        host = target.at(index)
        try:
            rows = fetch_rows(host, "looking at replicas", sql)
        except TransientError:
            # An unavailable host is checked the next time.
            continue
        there = {(database, table): path for database, table, path in rows}
        yield f"{host.host}:{host.port}", {place: there.get(place, "") for place in places}
