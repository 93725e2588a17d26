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
from headrace.sinks.clickhouse.schema_changes.alter_columns import AlteredTable, has_view, translate
from headrace.sinks.clickhouse.schema_changes.alter_tables import Place, Standing, empty, keep, move, remove
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, connect, patient
from headrace.sinks.clickhouse.server.errors import translated
from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.tables.create_table import create_statements, place_of, plan_layout
from headrace.sinks.clickhouse.tables.existing_table import plan_existing_table, was_made
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable, find_with_holders
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import VIEW_SUFFIX
from headrace.sinks.clickhouse.tables.views import create_view_sql
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, Step

_ALTER_SETTINGS = {
    **CREATE_SETTINGS,
    # Answered means done, on all replicas that are up.
    "mutations_sync": "2",
    "alter_sync": "2",
    "insert_deduplicate": "0",
    "optimize_on_insert": "0",
    # A value that cannot be converted is an error, not another value.
    "date_time_overflow_behavior": "throw",
}


class Tables(Protocol):
    """The tables of a sink, as far as a translation needs to know them."""

    def find(self, places: Iterable[Place]) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
        """Those that are there; and, for those that distribute rows over others, the tables that hold them."""

    def identities(self, places: Iterable[Place]) -> Mapping[Place, str]:
        """What tells each table that is there from another of its name; empty if the database's engine does not say."""


class ServerTables:
    """The tables of a server."""

    def __init__(self, scope: TargetScope) -> None:
        self._target = scope.target

    def find(self, places: Iterable[Place]) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
        with translated(self._target, "looking at tables"):
            return find_with_holders(connect(self._target), places)

    def identities(self, places: Iterable[Place]) -> Mapping[Place, str]:
        listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in places)
        if not listed:
            return {}
        sql = f"SELECT database, name, if(empty(uuid), '', toString(uuid)) FROM system.tables WHERE (database, name) IN ({listed})"
        with translated(self._target, "looking at tables"):
            return {(database, name): uuid for database, name, uuid in connect(self._target).client.query(sql).result_rows}


class ClickHouseSchemaApplier:
    """Alters the tables of one sink."""

    def __init__(self, scope: TargetScope, tables: Tables | None = None) -> None:
        self._scope, self._tables = scope, tables or ServerTables(scope)

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        """What makes the target of a table follow its alteration; nothing if there is no target."""
        usual, wanted = (plan_layout(schema, self._scope.target, self._scope.choices) for schema in (alteration.before, alteration.after))
        place, view = (usual.database, usual.table), (usual.database, usual.table + VIEW_SUFFIX)
        choices = self._scope.choices.of(usual.source)
        tables, holders = self._tables.find([place, view])
        if place not in tables:
            return DdlPlan()
        found, holder = tables[place], holders.get(place)
        layout = plan_existing_table(usual, found, choices, holder)
        uuid, viewed = self._tables.identities([place])[place], _is_view(tables.get(view))
        over = None if holder is None else found
        return translate(alteration, AlteredTable(layout, holder or found, over, usual, wanted, choices, uuid, viewed), version)

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        table = self._standing(schema, must_fit=False)
        return remove(table) if table is not None else DdlPlan()

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        del version
        table = self._standing(schema)
        return empty(table) if table is not None else DdlPlan()

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> DdlPlan:
        table = self._standing(schema, must_fit=again)
        return keep(table, f"{table.layout.table}_{suffix}", again=again) if table is not None else DdlPlan()

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """What makes the target of a table; nothing if it is there and fit."""
        plan = plan_layout(schema, self._scope.target, self._scope.choices)
        if self._standing(schema) is not None:
            return DdlPlan()
        views = (create_view_sql(plan),) if has_view(plan, self._scope.choices.of(plan.source)) else ()
        cluster = f" ON CLUSTER {quote_name(plan.storage.cluster)}" if plan.storage.cluster else ""
        database = f"CREATE DATABASE IF NOT EXISTS {quote_name(plan.database)}{cluster}"
        return DdlPlan((Step((database, *create_statements(plan), *views)),))

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """What makes tables go to the places of their new names."""
        pairs = list(moves)
        for old, new in pairs:
            before, after = (replace(self._scope.choices.of(schema.name), target="") for schema in (old, new))
            if before != after:
                return DdlPlan((), f"other choices hold for {new.name} than for {old.name}")
        places = [(self._standing(old), place_of(new, self._scope.target, self._scope.choices)) for old, new in pairs]
        moving = [(table, place) for table, place in places if table is not None]
        there = self._tables.identities(one for table, place in moving for one in (table.place, place))
        return move(moving, there)

    def run_step(self, step: Step) -> None:
        """Do a step, unless it was done."""
        if step.replaces is not None:
            database, table, uuid = step.replaces
            if self._tables.identities([(database, table)]).get((database, table)) != uuid:
                return
        # Rewriting a large table takes as long as it takes: one that is given up would be begun again, for ever.
        with patient(self._scope.target) as connection:
            settings = connection.known(_ALTER_SETTINGS)
            for statement in step.statements:
                with translated(self._scope.target, f"altering tables: {statement}"):
                    connection.client.command(statement, settings=settings)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Write schema changes to the ledger."""
        record(OwnTables(self._scope), entries)

    def _standing(self, schema: TableSchema, *, must_fit: bool = True) -> Standing | None:
        """The target of a table; None if there is none. `must_fit`: whether one that Headrace made for another definition is an error."""
        plan = plan_layout(schema, self._scope.target, self._scope.choices)
        place, view = (plan.database, plan.table), (plan.database, plan.table + VIEW_SUFFIX)
        tables, holders = self._tables.find([place, view])
        if place not in tables:
            return None
        try:
            layout = plan_existing_table(plan, tables[place], self._scope.choices.of(plan.source), holders.get(place))
        except DefiniteError as error:
            if not must_fit and place not in holders and was_made(tables[place]):
                return Standing(plan, _is_view(tables.get(view)), self._scope.choices.cluster)
            raise DefiniteError(f"{error.message}: it was altered by someone else", place=error.place, hint=error.hint) from error
        return Standing(layout, _is_view(tables.get(view)), self._scope.choices.cluster)


def _is_view(table: ExistingTable | None) -> bool:
    return table is not None and table.kind == "View"
