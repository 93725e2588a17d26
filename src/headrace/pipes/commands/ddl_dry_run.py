"""`headrace ddl`: plans what a statement would do to the sink, without executing it, with the pipe's own planner.

Nothing is written and no server is needed: a target that cannot be inspected is assumed to be as Headrace would have created it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import TableName
from headrace.model.schema_change import SchemaCatalog, apply_all
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.mysql.schema_change_planner import SchemaChangePlanner
from headrace.pipes.mysql.statement_plan import StatementPlan
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.state.stored_settings import settings_in
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.settings.settings_file import UserSettings
from headrace.sinks.clickhouse.schema_changes.alter_columns import has_view
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.create_table import plan_table
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable, describe_planned_distributed_table, describe_planned_table
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import Place, TargetTable
from headrace.sinks.registry import is_topics
from headrace.sources.mysql.ddl.dialect import STRICT, Dialect
from headrace.sources.mysql.ddl.statement_effects import interpret
from headrace.sources.mysql.events.event_types import Query, Session
from headrace.sources.mysql.schema.ddl_outcome import DdlOutcome, OutcomeKind, assess
from headrace.sources.mysql.schema.information_schema import capture_catalog, read_dialect
from headrace.sources.mysql.server.connection import connect, parse_mysql_url
from headrace.sources.mysql.server.position import BinlogPosition

_BEFORE, _AT = BinlogPosition("binlog.000001", 4), BinlogPosition("binlog.000001", 1000)

_NOWHERE = "clickhouse://default@127.0.0.1"
_EVERYTHING = Selection(("*",))


@dataclass(frozen=True, slots=True)
class DryRunResult:
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
                self._tables[layout.view_place] = ExistingTable("", "", (), kind="View")

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
        no_snapshots = SnapshotLog(StateDirectory(directory.path / "none", make=False))
        executor = IntentExecutor(context, no_snapshots, lambda _: None)
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
        if meaning.unknown or meaning.opaque or meaning.rows:
            why = meaning.why or "it changes rows"
            raise DefiniteError(
                f"a table's definition is not understood: {why}", place=statement, hint="give plain CREATE TABLE statements"
            )
        catalog = apply_all(meaning.changes, catalog)
    if not catalog.tables:
        raise DefiniteError("the definitions make no table", place="--schema", hint="give CREATE TABLE statements, or a file of them")
    return catalog


def strict_query(statement: str, database: str) -> Query:
    """Return a query of a session with the server's default settings."""
    return Query(database, statement, Session(sql_mode=STRICT, client_charset="utf8mb4", server_charset="utf8mb4"))


def read_statements(text: str) -> list[str]:
    """Read statements from a file of that name if it exists, else from the text.

    A statement ends with a semicolon at the end of a line; comment lines are skipped.
    """
    path = Path(text)
    try:
        found = path.read_text(encoding="utf-8") if len(text) < 1000 and path.is_file() else text
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(
            f"the definitions cannot be read: {error}", place=text, hint="give a file of CREATE TABLE statements"
        ) from error
    lines = [line for line in found.splitlines() if not line.lstrip().startswith(("--", "#"))]
    return [part.strip() for part in "\n".join(lines).rstrip().rstrip(";").split(";\n") if part.strip()]


@dataclass(frozen=True, slots=True)
class DryRunArguments:
    statement: str
    source: str = ""
    schema: tuple[str, ...] = ()
    """CREATE TABLE statements, or files with them."""
    state: str = ""
    sink: str = ""
    database: str = ""
    """The default database of unqualified names."""
    server: str = "9.7.0"
    """The server version whose dialect is used when there is no server to query."""
    chosen: UserSettings = field(default_factory=UserSettings)
    only: bool = False
    """Whether only the chosen policy is shown."""


def dry_run(arguments: DryRunArguments) -> Iterator[str]:
    """Return the lines to print."""
    with ExitStack() as open_things:
        catalog, dialect, database, state = _tables(arguments)
        if state is not None and is_topics(state.sink):
            raise DefiniteError(
                "the pipe's sink is Kafka, which has no tables to alter",
                place=arguments.state,
                hint="see docs/kafka.md for what becomes of each kind of statement",
            )
        chosen = arguments.chosen.over(settings_in(state, arguments.state)) if state is not None else arguments.chosen
        sink = ClickHouseSink(parse_target(_NOWHERE), chosen.sink)
        if arguments.sink:
            sink = open_things.enter_context(open_clickhouse_sink(arguments.sink, choices=chosen.sink)).sink
        selection = Selection.from_json(state.selection) if state is not None else _EVERYTHING
        columns = state.options["columns"] if state is not None else {"include": (), "exclude": ()}
        projection = Projection(tuple(columns["include"]), tuple(columns["exclude"]))
        settings = PipeSettings(
            selection, Path(arguments.state or "."), projection, schema_changes=chosen.schema_changes, choices=chosen.plain
        )
        hidden = {name: table.hidden for name, table in state.tables.items()} if state is not None else None
        rehearsal = DdlDryRun(catalog, dialect, settings, sink, bool(arguments.sink), hidden)
        query = strict_query(arguments.statement, database)
        if arguments.only or chosen.schema_changes.chosen:
            yield from _describe(rehearsal.dry_run(query, chosen.schema_changes))
            return
        results = dict(rehearsal.choices(query))
        default = results[Policy.APPLY]
        if isinstance(default, DefiniteError):
            raise default
        yield from _describe(default)
        yield from _others(results)


def _tables(arguments: DryRunArguments) -> tuple[SchemaCatalog, Dialect, str, PipeState | None]:
    """Return the tables before the statement, the server's dialect, the default database, and the pipe's state if there is one."""
    given = [bool(arguments.source), bool(arguments.schema), bool(arguments.state)]
    if sum(given) != 1:
        raise DefiniteError(
            "a statement means nothing without the tables it is about",
            place="headrace ddl",
            hint="give one of --source mysql://…, --schema 'CREATE TABLE …' (or a file) and --state DIR",
        )
    dialect = Dialect.of(arguments.server)
    if arguments.source:
        address = parse_mysql_url(arguments.source)
        with closing(connect(address)) as connection:
            wanted = Selection((f"{address.database}.*",)) if address.database else _EVERYTHING
            catalog, _ = capture_catalog(connection, address, wanted, epoch=0)
            return catalog, read_dialect(connection, address), arguments.database or address.database, None
    if arguments.schema:
        database = arguments.database or "db"
        statements = [statement for text in arguments.schema for statement in read_statements(text)]
        return describe(statements, database, dialect), dialect, database, None
    directory = StateDirectory(Path(arguments.state), make=False)
    state = directory.load()
    if state is None:
        raise DefiniteError("there is no pipe here", place=arguments.state, hint="give the --state of a pipe that was started before")
    tables = {name: table.schema for name, table in state.tables.items()}
    databases = {name.database for name in tables}
    return SchemaCatalog(tables), dialect, arguments.database or (databases.pop() if len(databases) == 1 else ""), state


def _describe(found: Iterable[DryRunResult]) -> Iterator[str]:
    nothing = True
    for one in found:
        nothing = False
        yield f"{one.table}: {one.kind}: {one.outcome}" + (f" ({one.detail})" if one.detail else "")
        yield from (f"  {statement};" for statement in one.statements)
    if nothing:
        yield "nothing to do in the sink"


def _others(results: Mapping[Policy, tuple[DryRunResult, ...] | DefiniteError]) -> Iterator[str]:
    """Return the results under the other policies."""
    for policy, result in results.items():
        if policy is Policy.APPLY:
            continue
        if policy is Policy.HALT:
            yield "halt: the pipe would stop before it"
        elif isinstance(result, DefiniteError):
            yield f"{policy}: refused: {result.message}"
        else:
            yield f"{policy}:"
            yield from (f"  {line}" for line in _describe(result))
