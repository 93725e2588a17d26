"""Reads a base table and its view in ClickHouse in one plain form, for comparison; sets and lists keep their order."""

from __future__ import annotations

from typing import Any

from headrace.cql.decode.pages import read_rows
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.session import CqlSession
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.identifiers import quote_name
from testkit.generators.cql_blocks import as_clickhouse, read_view
from testkit.generators.cql_values import ordered

Row = dict[str, Any]


def selected(cql: CqlSession, table: CqlTable) -> list[Row]:
    """Return all rows of a base table, by the server's SELECT."""
    rows: list[Row] = []
    for batch in read_rows(cql, f"SELECT * FROM {table_name(table.name)}"):
        columns = {column.name: [_expected(column, raw) for raw in batch.column(column.name).to_pylist()] for column in table.columns}
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return _sorted(table, rows)


def _expected(column: CqlColumn, raw: bytes | None) -> Any:
    if raw is None and column.role is ColumnRole.CLUSTERING:
        return None
    return as_clickhouse(column.type, ordered(column.type, raw))


def shown(sink: CellSink, table: CqlTable) -> list[Row]:
    """Return all rows of its view in ClickHouse."""
    names = ", ".join(quote_name(column.name) for column in table.columns)
    query = f"SELECT {names} FROM {sink.locations(table).view}"
    found = read_view(connect(sink.sink.target).client, query, [column.type for column in table.columns])
    return _sorted(table, [dict(zip((column.name for column in table.columns), row, strict=True)) for row in found])


def _sorted(table: CqlTable, rows: list[Row]) -> list[Row]:
    keys = [column.name for column in (*table.partition_key, *table.clustering)]
    return sorted(rows, key=lambda row: [repr(row[name]) for name in keys])
