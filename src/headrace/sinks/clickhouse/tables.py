"""The target tables: made where they are missing, emptied of what the source has no more.

Everything is checked before anything is created, and all of it may be repeated, so a run that was cut short is simply run again.

A source table without any key holds a multiset of rows. Its target keeps every image for itself, keyed by a hash of the row and an
occurrence number (the image's version, which nothing else has; in a snapshot, the row's number), an insertion counting 1 and a deletion
-1; the view `t_current` shows each row as often as its images add up to. So there, too, order and repetition do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import DefiniteError
from headrace.model.schema import Kind, TableSchema
from headrace.sinks.clickhouse.adapting import adapt
from headrace.sinks.clickhouse.bookkeeping import check_not_ours
from headrace.sinks.clickhouse.client import CREATE_SETTINGS, Connection, connect
from headrace.sinks.clickhouse.creation import create_sql, create_view_sql, plan_layout, plan_layouts
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.found import find_tables
from headrace.sinks.clickhouse.layout import Layout
from headrace.sinks.clickhouse.layouts import LayoutScope
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.types import OCCURRENCE, SIGN, VERSION
from headrace.sinks.clickhouse.url import ClickHouseTarget

_SWEEP_SETTINGS = {"mutations_sync": "2", "lightweight_deletes_sync": "2"}


def prepare_tables(scope: LayoutScope, schemas: Sequence[TableSchema]) -> None:
    """Check all tables, then create those that are missing."""
    target, connection = scope.target, connect(scope.target)
    layouts = plan_layouts(schemas, target, scope.choices)
    check_not_ours(layouts)
    with translated(target, "checking tables"):
        _check_time_type(connection, schemas)
        found = find_tables(connection, ((layout.database, layout.table) for layout in layouts))
    for layout in layouts:
        there = found.get((layout.database, layout.table))
        if there is not None:
            adapt(layout, there, scope.choices.of(layout.source))
    for database in sorted({layout.database for layout in layouts}):
        with translated(target, f"creating database {database}"):
            connection.client.command(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}")
    for layout in layouts:
        if (layout.database, layout.table) not in found:
            create_table(connection, target, layout)
        if not layout.has_key:
            with translated(target, f"creating view {layout.view}"):
                connection.client.command(create_view_sql(layout), settings=connection.known(CREATE_SETTINGS))


def create_table(connection: Connection, target: ClickHouseTarget, layout: Layout) -> None:
    with translated(target, f"creating table {layout.database}.{layout.table}"):
        connection.client.command(create_sql(layout), settings=connection.known(CREATE_SETTINGS))


def replace_table(scope: LayoutScope, schema: TableSchema) -> None:
    """Drop a table that is not fit for the schema; `prepare_tables` makes it anew. Repeatable."""
    target, connection = scope.target, connect(scope.target)
    layout = plan_layout(schema, target, scope.choices)
    with translated(target, f"checking table {layout.database}.{layout.table}"):
        there = find_tables(connection, [(layout.database, layout.table)]).get((layout.database, layout.table))
    if there is None:
        return
    try:
        adapt(layout, there, scope.choices.of(layout.source))
    except DefiniteError:
        with translated(target, f"replacing table {layout.database}.{layout.table}"):
            if there.column(OCCURRENCE) is not None:
                connection.client.command(f"DROP VIEW IF EXISTS {layout.view}")
            connection.client.command(f"DROP TABLE IF EXISTS {layout.qualified}")


def sweep_table(scope: LayoutScope, layout: Layout, before: int) -> None:
    """Take away what a new snapshot of the whole table, whose rows have versions from `before` on, did not see. Repeatable."""
    if layout.has_key:
        columns = ", ".join(quote_name(column.name) for column in layout.columns)
        statement = (
            f"INSERT INTO {layout.qualified} ({columns}, {SIGN}, {VERSION}) "
            f"SELECT {columns}, -1, {before} FROM {layout.qualified} FINAL WHERE {VERSION} < {before}"
        )
    else:
        statement = f"DELETE FROM {layout.qualified} WHERE {VERSION} < {before}"
    connection = connect(scope.target)
    with translated(scope.target, f"sweeping table {layout.database}.{layout.table}"):
        connection.client.command(statement, settings=connection.known(_SWEEP_SETTINGS))


def shown_from(layout: Layout) -> str:
    """What follows FROM to read the rows that the source has."""
    return f"{layout.qualified} FINAL" if layout.has_key else layout.view


def _check_time_type(connection: Connection, schemas: Sequence[TableSchema]) -> None:
    timed = next((s for s in schemas for c in s.columns if c.kind is Kind.TIME), None)
    if timed is None or connection.client.query("SELECT 1 FROM system.data_type_families WHERE name = 'Time64'").result_rows:
        return
    raise DefiniteError(
        f"ClickHouse {connection.client.server_version} has no type for TIME columns",
        place=f"table {timed.name}",
        hint="use ClickHouse 25.6 or later, or leave the table out with --exclude",
    )
