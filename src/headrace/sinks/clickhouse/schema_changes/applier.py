"""Plans schema changes of target tables from the server's state, and runs their steps.

Invariant: running a completed step again has no further effect, even if a crash came between running it and recording it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.ledger import record
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.schema_changes.alter_columns import AlteredTable, has_view, plan_column_changes
from headrace.sinks.clickhouse.schema_changes.alter_tables import Place, TargetState, plan_archive, plan_drop, plan_renames, plan_truncate
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, connect, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.create_table import create_statements, place_of, plan_table
from headrace.sinks.clickhouse.tables.existing_table import is_created_by_headrace, plan_existing_table
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable, find_with_local_tables
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import INSERT_HIDDEN, VIEW_SUFFIX
from headrace.sinks.clickhouse.tables.views import create_view_sql
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, Step

_ALTER_SETTINGS = {
    **CREATE_SETTINGS,
    # Wait until all available replicas have done it.
    "mutations_sync": "2",
    "alter_sync": "2",
    "insert_deduplicate": "0",
    "optimize_on_insert": "0",
    **INSERT_HIDDEN,
    # A value that cannot be converted must be an error.
    "date_time_overflow_behavior": "throw",
}


class ExistingTables(Protocol):
    """The existing tables of a sink, as far as planning needs them."""

    def find(self, places: Iterable[Place]) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
        """Return those of the tables that exist and, for Distributed tables, their local tables."""

    def identities(self, places: Iterable[Place]) -> Mapping[Place, str]:
        """Return the UUID of each existing table; empty if the database engine has none."""


class ServerTables:
    """The existing tables of a server."""

    def __init__(self, scope: TargetScope) -> None:
        self._target = scope.target

    def find(self, places: Iterable[Place]) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
        with translate_errors(self._target, "looking at tables"):
            return find_with_local_tables(connect(self._target), places)

    def identities(self, places: Iterable[Place]) -> Mapping[Place, str]:
        listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in places)
        if not listed:
            return {}
        sql = f"SELECT database, name, if(empty(uuid), '', toString(uuid)) FROM system.tables WHERE (database, name) IN ({listed})"
        with translate_errors(self._target, "looking at tables"):
            return {(database, name): uuid for database, name, uuid in connect(self._target).client.query(sql).result_rows}


class ClickHouseSchemaApplier:
    """Applies schema changes to the tables of one sink."""

    def __init__(self, scope: TargetScope, tables: ExistingTables | None = None) -> None:
        self._scope, self._tables = scope, tables or ServerTables(scope)

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        """Plan an alteration of a target; the plan is empty if there is no target."""
        plan_before, wanted = (
            plan_table(schema, self._scope.target, self._scope.options) for schema in (alteration.before, alteration.after)
        )
        place, view = (plan_before.database, plan_before.table), (plan_before.database, plan_before.table + VIEW_SUFFIX)
        options = self._scope.options.of(plan_before.source)
        tables, local_tables = self._tables.find([place, view])
        if place not in tables:
            return DdlPlan()
        found, local_table = tables[place], local_tables.get(place)
        target_table = plan_existing_table(plan_before, found, options, local_table)
        uuid, viewed = self._tables.identities([place])[place], _is_view(tables.get(view))
        over = None if local_table is None else found
        return plan_column_changes(
            alteration, AlteredTable(target_table, local_table or found, over, plan_before, wanted, options, uuid, viewed), version
        )

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        table = self._target_state(schema, must_fit=False)
        return plan_drop(table) if table is not None else DdlPlan()

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        del version
        table = self._target_state(schema)
        return plan_truncate(table) if table is not None else DdlPlan()

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> DdlPlan:
        table = self._target_state(schema, must_fit=again)
        return plan_archive(table, f"{table.target_table.table}_{suffix}", again=again) if table is not None else DdlPlan()

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """Plan the creation of a target; the plan is empty if a usable one exists."""
        plan = plan_table(schema, self._scope.target, self._scope.options)
        if self._target_state(schema) is not None:
            return DdlPlan()
        views = (create_view_sql(plan),) if has_view(plan, self._scope.options.of(plan.source)) else ()
        cluster = f" ON CLUSTER {quote_name(plan.storage.cluster)}" if plan.storage.cluster else ""
        database = f"CREATE DATABASE IF NOT EXISTS {quote_name(plan.database)}{cluster}"
        return DdlPlan((Step((database, *create_statements(plan), *views)),))

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """Plan the renames of targets after renames of their source tables."""
        pairs = list(moves)
        for old, new in pairs:
            before, after = (replace(self._scope.options.of(schema.name), target="") for schema in (old, new))
            if before != after:
                return DdlPlan((), f"other choices hold for {new.name} than for {old.name}")
        places = [(self._target_state(old), place_of(new, self._scope.target, self._scope.options)) for old, new in pairs]
        moving = [(table, place) for table, place in places if table is not None]
        there = self._tables.identities(one for table, place in moving for one in (table.place, place))
        return plan_renames(moving, there)

    def run_step(self, step: Step) -> None:
        """Run a step unless it was done."""
        if step.replaces is not None:
            database, table, uuid = step.replaces
            if self._tables.identities([(database, table)]).get((database, table)) != uuid:
                return
        # Rewriting a large table may take hours; after a timeout it would start again, forever.
        with long_running_connection(self._scope.target) as connection:
            settings = connection.supported(_ALTER_SETTINGS)
            for statement in step.statements:
                with translate_errors(self._scope.target, f"altering tables: {statement}"):
                    connection.client.command(statement, settings=settings)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Write schema changes to the ledger."""
        record(OwnTables(self._scope), entries)

    def _target_state(self, schema: TableSchema, *, must_fit: bool = True) -> TargetState | None:
        """Return the target of a table; None if it does not exist. `must_fit`: whether a target that Headrace created for another schema
        is an error."""
        plan = plan_table(schema, self._scope.target, self._scope.options)
        place, view = (plan.database, plan.table), (plan.database, plan.table + VIEW_SUFFIX)
        tables, local_tables = self._tables.find([place, view])
        if place not in tables:
            return None
        try:
            target_table = plan_existing_table(plan, tables[place], self._scope.options.of(plan.source), local_tables.get(place))
        except DefiniteError as error:
            if not must_fit and place not in local_tables and is_created_by_headrace(tables[place]):
                return TargetState(plan, _is_view(tables.get(view)), self._scope.options.cluster)
            raise DefiniteError(f"{error.message}: it was altered by someone else", place=error.place, hint=error.hint) from error
        return TargetState(target_table, _is_view(tables.get(view)), self._scope.options.cluster)


def _is_view(table: ExistingTable | None) -> bool:
    return table is not None and table.kind == "View"
