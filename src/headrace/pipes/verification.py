"""Comparing every table of a source with its copy, by chunk and by value.

Each chunk is read from the source by the server's own SELECT and from the sink by `SELECT … FINAL`, and compared key by key. A running
pipe is a little behind, so a chunk that differs is read again a few times; only what stays different counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import Kind, TableSchema
from headrace.pipes.verify import Comparison, compare
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sources.mysql.capture import capture_schemas
from headrace.sources.mysql.connection import MySQLAddress, connect, query, quote_name
from headrace.sources.mysql.selection import Selection
from headrace.sources.mysql.snapshot import estimate_rows
from headrace.sources.mysql.tablescan import scan_table

_CHUNK_ROWS: Final = 200_000
_SETTLE_S: Final = (0.5, 1.5, 3.0)
_INTEGERS: Final = frozenset(kind for kind in Kind if kind.value.startswith(("int", "uint")))
_TEXT: Final = frozenset({Kind.STRING, Kind.BYTES})


@dataclass(frozen=True, slots=True)
class _Part:
    """The same rows on both sides: a condition for the source, a read of the sink."""

    where: str
    read: Callable[[ClickHouseReader], pa.Table]


@dataclass(frozen=True, slots=True)
class TableResult:
    """What comparing one table found."""

    schema: TableSchema
    comparison: Comparison


def verify_tables(
    address: MySQLAddress, reader: ClickHouseReader, selection: Selection, projection: Projection | None = None, *, settle: bool = True
) -> Iterator[TableResult]:
    """Compare the selected tables, one after the other."""
    connection = connect(address)
    try:
        schemas = [(projection or Projection()).project(schema) for schema in capture_schemas(connection, address, selection)]
        if not schemas:
            raise DefiniteError(f"no table matches {selection}", place=str(address), hint="check --tables and the user's rights")
        for schema in schemas:
            total = Comparison(0, 0, ())
            for part in _parts(connection, address, schema):
                total = total + _compare_part(connection, address, reader, schema, part, settle)
            yield TableResult(schema, total)
    finally:
        connection.close()


def _compare_part(
    connection: Connection[Any], address: MySQLAddress, reader: ClickHouseReader, schema: TableSchema, part: _Part, settle: bool
) -> Comparison:
    for pause_s in (*_SETTLE_S, None) if settle else (None,):
        batches = list(scan_table(connection, address, schema, part.where, zero_dates_as_null=True))
        source = pa.Table.from_batches(batches, schema=schema.arrow_schema)
        result = compare(schema, source, part.read(reader))
        if not result.total or pause_s is None:
            break
        time.sleep(pause_s)
    return result


def _parts(connection: Connection[Any], address: MySQLAddress, schema: TableSchema) -> list[_Part]:
    rows = estimate_rows(connection, address, schema.name)
    count = -(-rows // _CHUNK_ROWS)
    column = schema.column(schema.row_key[0]) if schema.row_key else None
    if count > 1 and column is not None and column.kind in _INTEGERS:
        return _ranges(connection, address, schema, column.name, count)
    if count > 1 and column is not None and column.kind in _TEXT:
        # Collations order text differently on the two sides; a checksum of its bytes is the same on both.
        return [_bucket(schema, column.name, i, count) for i in range(count)]
    return [_Part("", lambda reader: reader.read_range(schema))]


def _ranges(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, column: str, count: int) -> list[_Part]:
    table = f"{quote_name(schema.name.database)}.{quote_name(schema.name.table)}"
    name = quote_name(column)
    low, high = query(connection, address, f"SELECT MIN({name}), MAX({name}) FROM {table}")[0]
    cuts = sorted({low + (high - low) * i // count for i in range(1, count)}) if low is not None else []
    bounds = [None, *cuts, None]
    return [_range(schema, name, lower, upper) for lower, upper in pairwise(bounds)]


def _range(schema: TableSchema, name: str, lower: int | None, upper: int | None) -> _Part:
    conditions = [f"{name} > {lower}"] if lower is not None else []
    conditions += [f"{name} <= {upper}"] if upper is not None else []
    below = None if lower is None else (lower,)
    above = None if upper is None else (upper,)
    return _Part(" AND ".join(conditions), lambda reader: reader.read_range(schema, below, above))


def _bucket(schema: TableSchema, column: str, bucket: int, buckets: int) -> _Part:
    name = quote_name(column)
    # The source's checksum is of the bytes it keeps, the sink's of UTF-8.
    text = f"CONVERT({name} USING utf8mb4)" if schema.column(column).kind is Kind.STRING else name
    where = f"CRC32({text}) % {buckets} = {bucket}"
    return _Part(where, lambda reader: reader.read_bucket(schema, column, bucket, buckets))
