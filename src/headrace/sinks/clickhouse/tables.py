"""The target tables: what they look like, whether those that exist are fit, and how the missing ones are made.

Invariant: a table that was accepted here stores every image of its schema exactly, and merges by version: `FINAL` shows the image with
the highest version of each key, or nothing where that image is a deletion. Everything is checked before anything is created, and
creating is repeatable, so a run that was cut short is simply run again.

A source table without any key holds a multiset of rows. Its target keeps every image for itself, keyed by a hash of the row and an
occurrence number (the image's version, which nothing else has; in a snapshot, the row's number), an insertion counting 1 and a deletion
-1; the view `t_current` shows each row as often as its images add up to. So there, too, order and repetition do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.model.schema import Kind, TableName, TableSchema
from headrace.sinks.clickhouse.client import CREATE_SETTINGS, Connection
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.names import check_name_lengths, parse_names, quote_name, quote_text
from headrace.sinks.clickhouse.types import DELETED, OCCURRENCE, ROW, SIGN, VERSION, storage_type
from headrace.sinks.clickhouse.url import ClickHouseTarget

_OWN = (SIGN, VERSION, DELETED, OCCURRENCE, ROW)
_VIEW = "_current"
# Columns that ClickHouse itself keeps in MergeTree tables.
_RESERVED = ("_row_exists", "_block_number", "_block_offset")
_ENGINE = re.compile(r"(?:Replicated|Shared)?ReplacingMergeTree\(([^)]*)\)")
_SWEEP_SETTINGS = {"mutations_sync": "2", "lightweight_deletes_sync": "2"}
_START_OVER = "drop or rename the table in ClickHouse and start with a new state directory, or use another target database"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A target table: its place, its columns (name to type) and its sort key."""

    source: TableName
    database: str
    table: str
    columns: tuple[tuple[str, str], ...]
    """The source's columns, without our own."""
    key: tuple[str, ...]
    """What tells rows apart; empty if nothing does."""

    @property
    def qualified(self) -> str:
        return f"{quote_name(self.database)}.{quote_name(self.table)}"

    @property
    def sort_key(self) -> tuple[str, ...]:
        return self.key or (ROW, OCCURRENCE)

    @property
    def engine_arguments(self) -> tuple[str, ...]:
        return (VERSION, DELETED) if self.key else (VERSION,)

    @property
    def stored(self) -> tuple[tuple[str, str], ...]:
        """The columns that a row is inserted with."""
        own = ((SIGN, "Int8"), (VERSION, "UInt64"))
        return (*self.columns, *own) if self.key else (*self.columns, *own, (OCCURRENCE, "UInt64"))

    @property
    def computed(self) -> tuple[str, str, str]:
        """The column that ClickHouse computes: its name, type and expression."""
        if self.key:
            return DELETED, "UInt8", f"{SIGN} = -1"
        return ROW, "UInt64", f"cityHash64(tuple({', '.join(quote_name(name) for name, _ in self.columns)}))"

    @property
    def view(self) -> str:
        """Where a table without a key is read."""
        return f"{quote_name(self.database)}.{quote_name(self.table + _VIEW)}"

    def create_sql(self) -> str:
        columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in self.stored)
        key = ", ".join(quote_name(name) for name in self.sort_key)
        name, kind, expression = self.computed
        return (
            f"CREATE TABLE IF NOT EXISTS {self.qualified} ({columns}, {name} {kind} MATERIALIZED {expression}) "
            f"ENGINE = ReplacingMergeTree({', '.join(self.engine_arguments)}) ORDER BY ({key})"
        )

    def create_view_sql(self) -> str:
        columns = ", ".join(quote_name(name) for name, _ in self.columns)
        # While a batch is being written a deletion may be there before its insertion; it then shows nothing, not an error.
        return (
            f"CREATE VIEW IF NOT EXISTS {self.view} AS SELECT {columns} FROM (SELECT {columns}, sum({SIGN}) AS _times "
            f"FROM {self.qualified} FINAL GROUP BY {columns}) ARRAY JOIN range(toUInt64(greatest(_times, 0)))"
        )


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column of a table that is there, as the server describes it."""

    name: str
    type: str
    default_kind: str
    default_expression: str


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that is there, as the server describes it."""

    engine: str
    sort_key: str
    columns: tuple[FoundColumn, ...]


def place_of(schema: TableSchema, target: ClickHouseTarget) -> tuple[str, str]:
    """Target database and table of a source table."""
    return target.database or schema.name.database, schema.name.table


def qualified_name(schema: TableSchema, target: ClickHouseTarget) -> str:
    database, table = place_of(schema, target)
    return f"{quote_name(database)}.{quote_name(table)}"


def shown_from(schema: TableSchema, target: ClickHouseTarget) -> str:
    """What follows FROM to read the rows that the source has."""
    if schema.row_key:
        return f"{qualified_name(schema, target)} FINAL"
    return _plan_table(schema, target).view


def plan_tables(schemas: Iterable[TableSchema], target: ClickHouseTarget) -> tuple[TablePlan, ...]:
    """The tables that the schemas need; a definite error where one of them cannot be held."""
    plans = tuple(_plan_table(schema, target) for schema in schemas)
    taken: dict[tuple[str, str], TableName] = {}
    for plan in plans:
        other = taken.setdefault((plan.database, plan.table), plan.source)
        if other != plan.source:
            raise DefiniteError(
                f"{other} and {plan.source} would both be written to {plan.database}.{plan.table}",
                place=f"table {plan.source}",
                hint="leave the database out of the sink's URL (each source database then gets its own), or choose with --tables",
            )
    return plans


def _plan_table(schema: TableSchema, target: ClickHouseTarget) -> TablePlan:
    place = f"table {schema.name}"
    for column in schema.columns:
        if column.name in _OWN or column.name in _RESERVED:
            whose = "Headrace" if column.name in _OWN else "ClickHouse"
            raise DefiniteError(
                f"column {column.name} has a name that {whose} uses for itself in the target table",
                place=f"{place}, column {column.name}",
                hint="rename the column, or leave the table out with --exclude",
            )
    database, table = place_of(schema, target)
    check_name_lengths(database, table)
    columns = tuple((column.name, storage_type(schema, column)) for column in schema.columns)
    return TablePlan(schema.name, database, table, columns, schema.row_key)


def check_found(plan: TablePlan, found: FoundTable) -> None:
    """Refuse a table that is not what `plan` would create."""
    difference = _engine_difference(plan, found) or _key_difference(plan, found) or _column_difference(plan, found)
    if difference:
        raise DefiniteError(
            f"the table {plan.database}.{plan.table} is there, but is not what Headrace needs: {difference}",
            place=f"table {plan.source}",
            hint=_START_OVER,
        )


def _engine_difference(plan: TablePlan, found: FoundTable) -> str:
    match = _ENGINE.match(found.engine)
    arguments = parse_names(match.group(1).rsplit("'", 1)[-1].lstrip(" ,")) if match else None
    if arguments == plan.engine_arguments:
        return ""
    return f"its engine is {found.engine.split(' ')[0] or 'unknown'}, not ReplacingMergeTree({', '.join(plan.engine_arguments)})"


def _key_difference(plan: TablePlan, found: FoundTable) -> str:
    # Some versions print the parentheses of a key of one column.
    bare = found.sort_key[1:-1] if found.sort_key.startswith("(") else found.sort_key
    if parse_names(bare) == plan.sort_key:
        return ""
    return f"its sort key is ({bare}), not ({', '.join(plan.sort_key)})"


def _column_difference(plan: TablePlan, found: FoundTable) -> str:
    there = {column.name: column for column in found.columns}
    for name, kind in plan.stored:
        column = there.pop(name, None)
        if column is None:
            return f"it has no column {name}"
        if column.type != kind:
            return f"its column {name} is {column.type}, not {kind}"
        if column.default_kind not in ("", "DEFAULT"):
            return f"its column {name} is computed ({column.default_kind}), not stored"
    name, kind, expression = plan.computed
    computed = there.pop(name, None)
    if computed is None or (computed.type, computed.default_kind) != (kind, "MATERIALIZED"):
        return f"it has no column {name} {kind} MATERIALIZED {expression}"
    # The hash only has to be some function of the row; the server spells its names in its own way.
    if plan.key and computed.default_expression.replace(" ", "").strip("()") != expression.replace(" ", ""):
        return f"its column {name} is {computed.default_expression}, not {expression}"
    extra = next(iter(there), None)
    return "" if extra is None else f"it has a column {extra} that the source has not"


def prepare_tables(connection: Connection, target: ClickHouseTarget, schemas: Sequence[TableSchema]) -> None:
    """Check all tables, then create those that are missing."""
    plans = plan_tables(schemas, target)
    with translated(target, "checking tables"):
        _check_time_type(connection, schemas)
        found = _find_tables(connection, {plan.database for plan in plans})
    for plan in plans:
        there = found.get((plan.database, plan.table))
        if there is not None:
            check_found(plan, there)
    for database in sorted({plan.database for plan in plans}):
        with translated(target, f"creating database {database}"):
            connection.client.command(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}")
    for plan in plans:
        if (plan.database, plan.table) not in found:
            with translated(target, f"creating table {plan.database}.{plan.table}"):
                connection.client.command(plan.create_sql(), settings=connection.known(CREATE_SETTINGS))
        if not plan.key:
            with translated(target, f"creating view {plan.view}"):
                connection.client.command(plan.create_view_sql(), settings=connection.known(CREATE_SETTINGS))


def replace_table(connection: Connection, target: ClickHouseTarget, schema: TableSchema) -> None:
    """Drop a table that is not fit for the schema; `prepare_tables` makes it anew. Repeatable."""
    plan = _plan_table(schema, target)
    with translated(target, f"checking table {plan.database}.{plan.table}"):
        there = _find_tables(connection, {plan.database}).get((plan.database, plan.table))
    if there is None:
        return
    try:
        check_found(plan, there)
    except DefiniteError:
        with translated(target, f"replacing table {plan.database}.{plan.table}"):
            if any(column.name == OCCURRENCE for column in there.columns):
                connection.client.command(f"DROP VIEW IF EXISTS {plan.view}")
            connection.client.command(f"DROP TABLE IF EXISTS {plan.qualified}")


def sweep_table(connection: Connection, target: ClickHouseTarget, schema: TableSchema, before: int) -> None:
    """Take away what a new snapshot of the whole table, whose rows have versions from `before` on, did not see. Repeatable."""
    plan = _plan_table(schema, target)
    if plan.key:
        columns = ", ".join(quote_name(name) for name, _ in plan.columns)
        statement = (
            f"INSERT INTO {plan.qualified} ({columns}, {SIGN}, {VERSION}) "
            f"SELECT {columns}, -1, {before} FROM {plan.qualified} FINAL WHERE {VERSION} < {before}"
        )
    else:
        statement = f"DELETE FROM {plan.qualified} WHERE {VERSION} < {before}"
    with translated(target, f"sweeping table {plan.database}.{plan.table}"):
        connection.client.command(statement, settings=connection.known(_SWEEP_SETTINGS))


def _check_time_type(connection: Connection, schemas: Sequence[TableSchema]) -> None:
    timed = next((s for s in schemas for c in s.columns if c.kind is Kind.TIME), None)
    if timed is None or connection.client.query("SELECT 1 FROM system.data_type_families WHERE name = 'Time64'").result_rows:
        return
    raise DefiniteError(
        f"ClickHouse {connection.client.server_version} has no type for TIME columns",
        place=f"table {timed.name}",
        hint="use ClickHouse 25.6 or later, or leave the table out with --exclude",
    )


def _find_tables(connection: Connection, databases: set[str]) -> Mapping[tuple[str, str], FoundTable]:
    listed = ", ".join(quote_text(database) for database in sorted(databases))
    if not listed:
        return {}
    columns: dict[tuple[str, str], list[FoundColumn]] = {}
    query = "SELECT database, table, name, type, default_kind, default_expression FROM system.columns WHERE database IN"
    for database, table, *described in connection.client.query(f"{query} ({listed}) ORDER BY position").result_rows:
        columns.setdefault((database, table), []).append(FoundColumn(*described))
    tables = connection.client.query(f"SELECT database, name, engine_full, sorting_key FROM system.tables WHERE database IN ({listed})")
    return {
        (database, name): FoundTable(engine, sort_key, tuple(columns.get((database, name), ())))
        for database, name, engine, sort_key in tables.result_rows
    }
