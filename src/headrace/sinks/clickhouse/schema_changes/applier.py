"""Plans schema changes of target tables from the server's state, and runs their steps.

Invariant: running a completed step again has no further effect, even if a crash came between running it and recording it. A table that
Headrace did not create is never dropped, only truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, record_changes
from headrace.sinks.clickhouse.schema_changes.alter_columns import AlteredTable, has_view, plan_column_changes
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, DROP_SETTINGS, fetch_rows, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, on_cluster, places_condition, qualify, quote_name
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import create_sql, create_statements, plan_table
from headrace.sinks.clickhouse.tables.existing_table import is_created_by_headrace, plan_existing_table
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable, find_with_local_tables
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import INSERT_HIDDEN, EngineFamily, Place, TargetTable
from headrace.sinks.clickhouse.tables.views import create_view_sql
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, Step, TargetNameTaken

_ALTER_SETTINGS = {
    **CREATE_SETTINGS,
    **DROP_SETTINGS,
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


@dataclass(frozen=True, slots=True)
class ServerTables:
    target: ClickHouseTarget

    def find(self, places: Iterable[Place]) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
        return find_with_local_tables(self.target, places)

    def identities(self, places: Iterable[Place]) -> Mapping[Place, str]:
        wanted = tuple(places)
        if not wanted:
            return {}
        sql = f"SELECT database, name, if(empty(uuid), '', toString(uuid)) FROM system.tables WHERE {places_condition(wanted)}"
        return {(database, name): uuid for database, name, uuid in fetch_rows(self.target, "looking at tables", sql)}


@dataclass(frozen=True, slots=True)
class TargetState:
    target_table: TargetTable
    viewed: bool
    cluster: str

    @property
    def is_clustered(self) -> bool:
        return self.target_table.local_table is not None or bool(self.cluster)

    @property
    def on_cluster(self) -> str:
        return on_cluster(self.cluster)

    def without_view(self) -> tuple[str, ...]:
        return (f"DROP VIEW IF EXISTS {self.target_table.view}{self.on_cluster}",) if self.viewed else ()

    def plan_truncate(self) -> DdlPlan:
        return DdlPlan((Step((f"TRUNCATE TABLE IF EXISTS {self.target_table.storage_name}{self.on_cluster}",)),))


class ClickHouseSchemaApplier:
    def __init__(self, scope: TargetScope, tables: ExistingTables | None = None) -> None:
        self._scope, self._tables = scope, tables or ServerTables(scope.target)

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        """Plan an alteration of a target; the plan is empty if there is no target."""
        plan_before, wanted = (
            plan_table(schema, self._scope.target, self._scope.options) for schema in (alteration.before, alteration.after)
        )
        place, options = plan_before.place, self._scope.options.of(plan_before.source)
        found, local_table, viewed = self._find(plan_before)
        if found is None:
            return DdlPlan()
        target_table = plan_existing_table(plan_before, found, options, local_table)
        uuid, over = self._tables.identities([place])[place], None if local_table is None else found
        return plan_column_changes(
            alteration, AlteredTable(target_table, local_table or found, over, plan_before, wanted, options, uuid, viewed), version
        )

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        table = self._target_state(schema, must_fit=False)
        if table is None or table.target_table.family is EngineFamily.HISTORY:
            return DdlPlan()
        if not table.target_table.created_by_headrace:
            return table.plan_truncate()
        places = dict.fromkeys((table.target_table.place, table.target_table.storage_place))
        drops = (f"DROP TABLE IF EXISTS {qualify(place)}{table.on_cluster}" for place in places)
        return DdlPlan((Step((*table.without_view(), *drops)),), vacates=True)

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        del version
        table = self._target_state(schema)
        # A history keeps old rows.
        return DdlPlan() if table is None or table.target_table.family is EngineFamily.HISTORY else table.plan_truncate()

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> DdlPlan:
        table = self._target_state(schema, must_fit=again)
        if table is None:
            return DdlPlan()
        target_table, kept = table.target_table, f"{table.target_table.table}_{suffix}"
        if table.is_clustered:
            raise DefiniteError(
                f"the table {target_table.full_name} of a cluster cannot be kept under another name",
                place=f"table {target_table.source}",
                hint="choose apply, ignore or halt for it",
            )
        check_name_lengths(target_table.database, kept)
        kept_name = qualify((target_table.database, kept))
        steps = [Step((*table.without_view(), f"RENAME TABLE IF EXISTS {target_table.qualified} TO {kept_name}"))]
        if again:
            like_kept = f"CREATE TABLE IF NOT EXISTS {target_table.qualified} AS {kept_name}"
            steps.append(Step((create_sql(target_table) if target_table.matches_plan else like_kept,)))
        return DdlPlan(tuple(steps))

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """Plan the creation of a target; the plan is empty if a usable one exists."""
        plan = plan_table(schema, self._scope.target, self._scope.options)
        if self._target_state(schema) is not None:
            return DdlPlan()
        views = (create_view_sql(plan),) if has_view(plan, self._scope.options.of(plan.source)) else ()
        database = f"CREATE DATABASE IF NOT EXISTS {quote_name(plan.database)}{plan.on_cluster}"
        return DdlPlan((Step((database, *create_statements(plan), *views)),))

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        pairs = list(moves)
        for old, new in pairs:
            before, after = (replace(self._scope.options.of(schema.name), target="") for schema in (old, new))
            if before != after:
                return DdlPlan((), f"other choices hold for {new.name} than for {old.name}")
        places = [(self._target_state(old), plan_table(new, self._scope.target, self._scope.options).place) for old, new in pairs]
        moving = [(table, place) for table, place in places if table is not None]
        there = self._tables.identities(one for table, place in moving for one in (table.target_table.place, place))
        # Views are dropped before tables are renamed.
        views = {table.target_table.view_place for table, _ in moving if table.viewed}
        return plan_renames(moving, {place: uuid for place, uuid in there.items() if place not in views})

    def run_step(self, step: Step) -> None:
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
        record_changes(OwnTables(self._scope), entries)

    def _target_state(self, schema: TableSchema, *, must_fit: bool = True) -> TargetState | None:
        """Return the target of a table; None if it does not exist. `must_fit`: whether a target that Headrace created for another schema
        is an error."""
        plan = plan_table(schema, self._scope.target, self._scope.options)
        found, local_table, viewed = self._find(plan)
        if found is None:
            return None
        try:
            target_table = plan_existing_table(plan, found, self._scope.options.of(plan.source), local_table)
        except DefiniteError as error:
            if must_fit or local_table is not None or not is_created_by_headrace(found):
                raise DefiniteError(f"{error.message}: it was altered by someone else", place=error.place, hint=error.hint) from error
            target_table = plan
        return TargetState(target_table, viewed, self._scope.options.cluster)

    def _find(self, plan: TargetTable) -> tuple[ExistingTable | None, ExistingTable | None, bool]:
        """Return the existing table, its local table, and whether the view of its current rows exists."""
        view = plan.view_place
        tables, local_tables = self._tables.find([plan.place, view])
        return tables.get(plan.place), local_tables.get(plan.place), view in tables and tables[view].kind == "View"


def plan_renames(tables: Sequence[tuple[TargetState, Place]], there: Mapping[Place, str]) -> DdlPlan:
    """Plan to rename tables, possibly in a cycle. `there`: the names in use, with their tables' UUIDs."""
    by_place = {table.target_table.place: table for table, _ in tables}
    waiting, taken = {table.target_table.place: place for table, place in tables if table.target_table.place != place}, dict(there)
    clustered = next((table for table in by_place.values() if table.is_clustered), None)
    if waiting and clustered is not None:
        raise DefiniteError(
            f"tables of a cluster are not renamed: {clustered.target_table.source}",
            place=f"table {clustered.target_table.source}",
            hint="rename them in ClickHouse, or choose resync for rename_table",
        )
    steps = [Step(tuple(view for old in waiting for view in by_place[old].without_view()))] if waiting else []
    databases = sorted({database for database, _ in waiting.values()} - {database for database, _ in taken})
    steps += [Step(tuple(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}" for database in databases))]
    while waiting:
        old = next((old for old, new in waiting.items() if new not in taken), None)
        if old is not None:
            new = waiting.pop(old)
            steps.append(Step((f"RENAME TABLE IF EXISTS {qualify(old)} TO {qualify(new)}",)))
            taken[new] = taken.pop(old)
            continue
        ring = next((old for old, new in waiting.items() if new in waiting), None)
        if ring is None:
            old, blocked = next(iter(waiting.items()))
            raise TargetNameTaken(
                f"a table cannot be renamed to {blocked[0]}.{blocked[1]}: there is another table of that name in the sink",
                place=f"table {old[0]}.{old[1]}",
                hint=f"drop or rename {blocked[0]}.{blocked[1]} in ClickHouse, then start again",
            )
        old, new = ring, waiting[ring]
        if not taken[old]:
            raise DefiniteError(
                "the sink cannot exchange tables: its database does not tell them apart",
                place=f"table {old[0]}.{old[1]}",
                hint="use a database with the Atomic engine, or choose resync for rename_table",
            )
        steps.append(Step((f"EXCHANGE TABLES {qualify(old)} AND {qualify(new)}",), (*old, taken[old])))
        taken[old], taken[new] = taken[new], taken[old]
        del waiting[old]
        onward = waiting.pop(new)
        if onward != old:
            waiting[old] = onward
    return DdlPlan(tuple(step for step in steps if step.statements))
