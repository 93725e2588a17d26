"""Tables that Headrace makes: their layout, and the statements that make them.

Invariant: a table made here stores every image of its schema exactly, and merges so that its view, or `FINAL`, shows the source's rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.choices import SinkChoices
from headrace.sinks.clickhouse.layout import Family, Layout, Mark, Meaning, StoredColumn
from headrace.sinks.clickhouse.names import check_name_lengths, quote_name
from headrace.sinks.clickhouse.types import DELETED, OCCURRENCE, ROW, SIGN, VERSION, storage_type
from headrace.sinks.clickhouse.url import ClickHouseTarget

_OWN = (SIGN, VERSION, DELETED, OCCURRENCE, ROW)
# Columns that ClickHouse itself keeps in MergeTree tables.
_RESERVED = ("_row_exists", "_block_number", "_block_offset")


def place_of(schema: TableSchema, target: ClickHouseTarget, choices: SinkChoices) -> tuple[str, str]:
    """Target database and table of a source table."""
    chosen = choices.of(schema.name)
    before, _, table = chosen.target.rpartition(".")
    return before or chosen.database or target.database or schema.name.database, table or schema.name.table


def plan_layouts(schemas: Iterable[TableSchema], target: ClickHouseTarget, choices: SinkChoices) -> tuple[Layout, ...]:
    """The tables that the schemas need; a definite error where one of them cannot be held."""
    layouts = tuple(plan_layout(schema, target, choices) for schema in schemas)
    taken: dict[tuple[str, str], TableName] = {}
    for layout in layouts:
        other = taken.setdefault((layout.database, layout.table), layout.source)
        if other != layout.source:
            raise DefiniteError(
                f"{other} and {layout.source} would both be written to {layout.database}.{layout.table}",
                place=f"table {layout.source}",
                hint="leave the database out of the sink's URL (each source database then gets its own), or choose with --tables",
            )
    return layouts


def plan_layout(schema: TableSchema, target: ClickHouseTarget, choices: SinkChoices) -> Layout:
    """The table that would be made for a schema."""
    place = f"table {schema.name}"
    for column in schema.columns:
        if column.name in _OWN or column.name in _RESERVED:
            whose = "Headrace" if column.name in _OWN else "ClickHouse"
            raise DefiniteError(
                f"column {column.name} has a name that {whose} uses for itself in the target table",
                place=f"{place}, column {column.name}",
                hint="rename the column, or leave the table out with --exclude",
            )
    database, table = place_of(schema, target, choices)
    check_name_lengths(database, table)
    columns = tuple(StoredColumn(column, column.name, storage_type(schema, column)) for column in schema.columns)
    marks: tuple[Mark, ...] = (Mark(SIGN, Meaning.SIGN, "Int8"), Mark(VERSION, Meaning.VERSION, "UInt64"))
    if not schema.row_key:
        marks = (*marks, Mark(OCCURRENCE, Meaning.OCCURRENCE, "UInt64"))
    return Layout(schema, database, table, Family.REPLACING, columns, marks, schema.row_key)


def sort_key(layout: Layout) -> tuple[str, ...]:
    return tuple(layout.stored(name).name for name in layout.schema.row_key) or (ROW, OCCURRENCE)


def engine_arguments(layout: Layout) -> tuple[str, ...]:
    return (VERSION, DELETED) if layout.has_key else (VERSION,)


def computed_column(layout: Layout) -> tuple[str, str, str]:
    """The column that ClickHouse computes: its name, type and expression."""
    if layout.has_key:
        return DELETED, "UInt8", f"{SIGN} = -1"
    return ROW, "UInt64", f"cityHash64(tuple({', '.join(quote_name(column.name) for column in layout.columns)}))"


def create_sql(layout: Layout) -> str:
    """What makes the table, unless it is there."""
    stored = [(column.name, column.type) for column in layout.columns] + [(mark.name, mark.type) for mark in layout.marks]
    columns = ", ".join(f"{quote_name(name)} {kind}" for name, kind in stored)
    key = ", ".join(quote_name(name) for name in sort_key(layout))
    name, kind, expression = computed_column(layout)
    return (
        f"CREATE TABLE IF NOT EXISTS {layout.qualified} ({columns}, {name} {kind} MATERIALIZED {expression}) "
        f"ENGINE = ReplacingMergeTree({', '.join(engine_arguments(layout))}) ORDER BY ({key})"
    )


def create_view_sql(layout: Layout) -> str:
    """What makes the view that shows the source's rows, unless it is there."""
    columns = ", ".join(quote_name(column.name) for column in layout.columns)
    # While a batch is being written a deletion may be there before its insertion; it then shows nothing, not an error.
    return (
        f"CREATE VIEW IF NOT EXISTS {layout.view} AS SELECT {columns} FROM (SELECT {columns}, sum({SIGN}) AS _times "
        f"FROM {layout.qualified} FINAL GROUP BY {columns}) ARRAY JOIN range(toUInt64(greatest(_times, 0)))"
    )
