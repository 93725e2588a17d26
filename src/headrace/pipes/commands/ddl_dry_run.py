"""Plans what a statement would do to the sink, without executing it, with the pipe's own planner.

Nothing is written and no server is needed: a target that cannot be inspected is assumed to be as Headrace would have created it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.schema_change import SchemaCatalog, apply_all
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.mysql.schema_change_planner import SchemaChangePlanner
from headrace.pipes.mysql.statement_plan import StatementPlan
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.sinks.clickhouse.schema_changes.alter_columns import has_view
from headrace.sinks.clickhouse.schema_changes.alter_tables import Place
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.create_table import plan_table
from headrace.sinks.clickhouse.tables.hypothetical_table import describe_planned_distributed_table, describe_planned_table
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import VIEW_SUFFIX, TargetTable
from headrace.sources.mysql.ddl.dialect import STRICT, Dialect
from headrace.sources.mysql.ddl.statement_effects import StatementEffects, interpret
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.events.query_session import Session
from headrace.sources.mysql.schema.ddl_outcome import DdlOutcome, OutcomeKind, assess
from headrace.sources.mysql.server.position import BinlogPosition

_BEFORE, _AT = BinlogPosition("binlog.000001", 4), BinlogPosition("binlog.000001", 1000)


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """The result for one table."""

    table: str
    kind: str
    outcome: str
    statements: tuple[str, ...]
    detail: str


class ImaginedTables:
    """Targets as Headrace would have created them."""

    def __init__(self, layouts: Iterable[TargetTable]) -> None:
        self._tables: dict[Place, ExistingTable] = {}
        self._holders: dict[Place, ExistingTable] = {}
        for layout in layouts:
            place = (layout.database, layout.table)
            self._tables[place] = (
                describe_planned_table(layout) if layout.local_table is None else describe_planned_distributed_table(layout)
            )
            if layout.local_table is not None:
                self._holders[place] = describe_planned_table(layout)
            if has_view(layout, TableOptions()):
                self._tables[layout.database, layout.table + VIEW_SUFFIX] = ExistingTable("", "", (), kind="View")

    def find(self, places: Iterable[Place]) -> tuple[Mapping[Place, ExistingTable], Mapping[Place, ExistingTable]]:
        return {place: self._tables[place] for place in places if place in self._tables}, self._holders

    def identities(self, places: Iterable[Place]) -> Mapping[Place, str]:
        return {place: f"the uuid of {'.'.join(place)}" for place in places if place in self._tables}


@dataclass(frozen=True, slots=True)
class DdlDryRun:
    """The tables of a source, and the settings of a pipe."""

    catalog: SchemaCatalog
    dialect: Dialect
    settings: PipeSettings
    sink: ClickHouseSink
    looks: bool = False
    """Whether the sink's existing tables are inspected."""
    hidden: Mapping[TableName, tuple[str, ...]] | None = None

    def dry_run(self, query: Query, policy: SchemaPolicy) -> tuple[DryRunResult, ...]:
        """Return the planned results; raise `DefiniteError` where the pipe would halt."""
        followed, after = self._follow(query)
        followed.check()
        directory = StateDirectory(self.settings.state, make=False)
        context = PipeContext(self.settings, self._state(), directory, SinkTables(self.sink), LogView())
        executor = IntentExecutor(context, _no_snapshots(directory), lambda _: None)
        intent = SchemaChangePlanner(StatementPlan(followed, after, executor, policy, self._schema_applier)).plan_intent()
        return tuple(
            DryRunResult(entry.source_table, entry.kind, entry.outcome, tuple(filter(None, entry.translation.split("\n"))), entry.detail)
            for entry in intent.entries
        )

    def choices(self, query: Query) -> Iterator[tuple[Policy, tuple[DryRunResult, ...] | DefiniteError]]:
        """Return the result under each policy that the statement's changes support."""
        kinds = self._kinds(query)
        for policy in Policy:
            try:
                chosen = SchemaPolicy(tuple((kind, policy) for kind in kinds if SchemaPolicy.allows(kind, policy)))
                if chosen.chosen or policy is Policy.APPLY:
                    yield policy, self.dry_run(query, chosen)
            except DefiniteError as error:
                yield policy, error

    def _kinds(self, query: Query) -> list[ChangeKind]:
        try:
            words = {word for one in self.dry_run(query, SchemaPolicy()) for word in one.kind.split(", ")}
        except DefiniteError:
            return list(ChangeKind)
        return [kind for kind in ChangeKind if kind in words]

    def _follow(self, query: Query) -> tuple[DdlOutcome, SchemaCatalog]:
        meaning = interpret(query, self.catalog, self.dialect)
        followed = assess(query, _AT, meaning, self.catalog, self.settings.selection, folds_case=self.dialect.folds_case)
        if followed.outcome is OutcomeKind.NOTHING and meaning.unknown:
            raise DefiniteError(f"the statement is not understood: {meaning.why}", place=query.statement, hint="is it complete?")
        after = apply_all(meaning.changes, self.catalog)
        return followed, SchemaCatalog({name: one for name, one in after.tables.items() if name not in meaning.opaque}, after.charsets)

    def _state(self) -> PipeState:
        hidden = self.hidden or {}
        tables = {
            name: TableState(schema, _BEFORE.to_json(), hidden=hidden.get(name, ()))
            for name, schema in self.catalog.tables.items()
            if self.settings.selection(name)
        }
        return PipeState("", "", "", self.settings.selection.to_json(), _BEFORE.to_json(), 0, {}, tables)

    def _schema_applier(self) -> ClickHouseSchemaApplier:
        if self.looks:
            return self.sink.schema_applier()
        scope = TargetScope(self.sink.target, self.sink.options)
        layouts = [
            plan_table(SinkSchemaResolver(self.settings)(table.schema, table.hidden), scope.target, scope.options)
            for table in self._state().tables.values()
        ]
        return ClickHouseSchemaApplier(scope, ImaginedTables(layouts))


def describe(statements: Iterable[str], database: str, dialect: Dialect) -> SchemaCatalog:
    """Return the tables that the statements create."""
    catalog = SchemaCatalog()
    for statement in statements:
        meaning = interpret(strict_query(statement, database), catalog, dialect)
        _check(statement, meaning)
        catalog = apply_all(meaning.changes, catalog)
    if not catalog.tables:
        raise DefiniteError("the definitions make no table", place="--schema", hint="give CREATE TABLE statements, or a file of them")
    return catalog


def strict_query(statement: str, database: str) -> Query:
    """Return a query of a session with the server's default settings."""
    return Query(database, statement, Session(sql_mode=STRICT, client_charset="utf8mb4", server_charset="utf8mb4"))


def split_statements(text: str) -> list[str]:
    """Split a file into statements, which end with a semicolon at the end of a line; comment lines are skipped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("--", "#"))]
    return [part.strip() for part in "\n".join(lines).rstrip().rstrip(";").split(";\n") if part.strip()]


def _check(statement: str, meaning: StatementEffects) -> None:
    if meaning.unknown or meaning.opaque or meaning.rows:
        why = meaning.why or "it changes rows"
        raise DefiniteError(f"a table's definition is not understood: {why}", place=statement, hint="give plain CREATE TABLE statements")


def _no_snapshots(directory: StateDirectory) -> SnapshotLog:
    return SnapshotLog(StateDirectory(directory.path / "none", make=False))


def read_statements(text: str) -> list[str]:
    """Read statements from a file of that name if it exists, else from the text."""
    path = Path(text)
    try:
        found = path.read_text(encoding="utf-8") if len(text) < 1000 and path.is_file() else text
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(
            f"the definitions cannot be read: {error}", place=text, hint="give a file of CREATE TABLE statements"
        ) from error
    return split_statements(found)
