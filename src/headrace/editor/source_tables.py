"""What a MySQL or MariaDB server has: databases, tables with estimated sizes, columns, and the first rows of a table as the sink gets them.

Invariant: it only reads, with the account of the draft. Sizes are the server's estimates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import pyarrow as pa
from pymysql.connections import Connection

from headrace.editor.target_tables import plan_target
from headrace.errors import DefiniteError
from headrace.model.schema import Column, TableName, TableSchema
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver
from headrace.pipes.source_registry import MYSQL, source_connector
from headrace.pipes.spec import PipeSpec
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url, query
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.transforms.block_transform import BlockTransformer
from headrace.transforms.options import read_salts

_MAX_TABLES: Final = 20_000
_ROWS: Final = 10
_SCANNED_ROWS: Final = 10_000
_SCAN_S: Final = 10.0
"""What a preview reads at most until enough rows have passed the filter."""
_BLOCK_ROWS: Final = 500
_READ_TIMEOUT_S: Final = 20.0
_TABLES: Final = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, TABLE_ROWS, COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0)
FROM information_schema.TABLES
WHERE LOWER(TABLE_SCHEMA) NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys') ORDER BY 1, 2 LIMIT {_MAX_TABLES + 1}
"""


def list_tables(spec: PipeSpec) -> dict[str, Any]:
    """Return the databases of the source, each with its tables."""
    with _connected(spec) as (connection, address):
        rows = query(connection, address, _TABLES)
    databases: dict[str, list[dict[str, Any]]] = {}
    for database, table, kind, count, size in rows[:_MAX_TABLES]:
        entry = {"name": str(table), "kind": str(kind), "rows": None if count is None else int(count), "bytes": int(size)}
        databases.setdefault(str(database), []).append(entry)
    return {
        "database": address.database,
        "databases": [{"name": name, "tables": tables} for name, tables in databases.items()],
        "complete": len(rows) <= _MAX_TABLES,
    }


def list_columns(spec: PipeSpec, name: TableName) -> dict[str, Any]:
    """Return the columns of a table, with the transforms that the draft has for them."""
    with _connected(spec) as (connection, address):
        schema = _schema(connection, address, name)
    options = spec.settings.transforms.of(name)
    masks = dict(options.mask)
    return {
        "table": str(name),
        "columns": [
            {
                "name": column.name,
                "type": column.source_type,
                "nullable": column.nullable,
                "key": column.name in schema.row_key,
                "drop": column.name in options.drop,
                "mask": masks.get(column.name, ""),
            }
            for column in schema.columns
        ],
    }


def preview(spec: PipeSpec, name: TableName) -> dict[str, Any]:
    """Return the statements that create the target of a table, and its first rows as the sink gets them.

    `scanned` counts the rows that were read; `complete`: the table has no others.
    """
    resolver = SinkSchemaResolver(spec.settings)
    with _connected(spec) as (connection, address):
        schema = _schema(connection, address, name)
        resolver.check_new(schema)
        read = resolver.read(schema, ())
        made = resolver(schema, ())
        rows, scanned, complete = _first_rows(spec, connection, address, read, made)
    return {
        "table": str(name),
        **plan_target(spec, made),
        "columns": [column.name for column in made.columns],
        "rows": rows,
        "scanned": scanned,
        "complete": complete,
    }


def _first_rows(
    spec: PipeSpec, connection: Connection[Any], address: MySQLAddress, read: TableSchema, made: TableSchema
) -> tuple[list[list[Any]], int, bool]:
    """Return the first rows that pass the filter, how many rows were read, and whether these are all."""
    transformer = BlockTransformer(spec.settings.transforms, read_salts(spec.settings.transforms))
    limit = _SCANNED_ROWS if spec.settings.transforms.of(read.name).filter else _ROWS
    found: list[list[Any]] = []
    scanned, until = 0, time.monotonic() + _SCAN_S
    batches = scan_table(
        connection, address, read, f"TRUE LIMIT {limit}", zero_dates=spec.settings.zero_dates, block_rows=min(limit, _BLOCK_ROWS)
    )
    # An unfinished scan ends the connection: the rest of its result is not read.
    with closing(batches):  # type: ignore[type-var]
        for batch in batches:
            scanned += batch.num_rows
            rows = transformer.transform_rows(read, pa.Table.from_batches([batch])).slice(0, _ROWS - len(found))
            found += [list(row) for row in zip(*(_values(rows, column) for column in made.columns), strict=True)]
            if len(found) == _ROWS or time.monotonic() > until:
                return found, scanned, False
    return found, scanned, scanned < limit


def _values(rows: pa.Table, column: Column) -> list[Any]:
    values: list[Any] = rows.column(column.name).to_pylist()
    if pa.types.is_fixed_size_binary(column.arrow_type):
        return [None if value is None else column.type.print_value(value) for value in values]
    return values


def _schema(connection: Connection[Any], address: MySQLAddress, name: TableName) -> TableSchema:
    found = capture_schemas(connection, address, name.__eq__)
    if not found:
        raise DefiniteError(
            f"there is no table {name}, or this account may not read it", place=str(address), hint="GRANT SELECT, or correct the name"
        )
    return found[0]


@contextmanager
def _connected(spec: PipeSpec) -> Iterator[tuple[Connection[Any], MySQLAddress]]:
    if source_connector(spec.source) is not MYSQL:
        raise DefiniteError(
            "only MySQL and MariaDB list their tables here",
            place=source_connector(spec.source).redact(spec.source),
            hint="write globs of tables; headrace check shows what the source has",
        )
    address = parse_mysql_url(spec.source)
    with closing(connect(address, read_timeout_s=_READ_TIMEOUT_S)) as connection:
        yield connection, address
