"""`headrace ddl`: loads the tables of a dry run and prints its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema_change import SchemaCatalog
from headrace.model.table_selection import Selection
from headrace.pipes.commands.ddl_dry_run import DdlDryRun, DryRunResult, describe, read_statements, strict_query
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.pipes.state.stored_settings import settings_in
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import Policy
from headrace.settings.settings_file import UserSettings
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.registry import is_topics
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.schema.catalog_capture import capture_catalog, read_dialect
from headrace.sources.mysql.server.connection import connect, parse_mysql_url

_NOWHERE = "clickhouse://default@127.0.0.1"
_EVERYTHING = Selection(("*",))


@dataclass(frozen=True, slots=True)
class DryRunArguments:
    """The arguments of `headrace ddl`."""

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
