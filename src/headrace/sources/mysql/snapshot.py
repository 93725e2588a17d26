"""Snapshots without locks: chunks of a table by primary key, each stamped with a log position noted before it is read.

Why this is right: a chunk's rows carry the position's version; every later change has a higher one and comes through the stream, which
starts at a position not after any chunk's. Changes that the read already saw are replayed over it and win; changes before the position
were visible to the read (see `watermark`). So chunks may be read in any order, in parallel, and again after a crash.

Chunk bounds need not be good, only the conditions must be total: chunk i is `key > bound[i-1] AND key <= bound[i]`, the first and last are
open. Whatever the bounds, every row satisfies at least one condition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection

from headrace.errors import TransientError
from headrace.model.change import ChangeBlock, Op
from headrace.model.schema import Kind, TableName, TableSchema
from headrace.sources.mysql.connection import MySQLAddress, connect, query, quote_name
from headrace.sources.mysql.decoder import ReadOptions
from headrace.sources.mysql.position import BinlogPosition
from headrace.sources.mysql.tablescan import scan_table
from headrace.sources.mysql.watermark import note_position

log = logging.getLogger("headrace.mysql")

CHUNK_ROWS: Final = 200_000
_PATIENCE_S: Final = 600.0
_LONGEST_PAUSE_S: Final = 10.0
_INTEGERS: Final = frozenset({Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64})
# Kinds whose values survive the way into a literal and back; a float does not.
_WALKABLE: Final = _INTEGERS | {Kind.STRING, Kind.BYTES, Kind.DECIMAL, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a table, told by a condition in SQL."""

    database: str
    table: str
    number: int
    where: str
    estimate: int
    """About how many rows, for progress only."""

    @property
    def name(self) -> TableName:
        return TableName(self.database, self.table)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Chunk:
        return cls(**raw)


def plan_chunks(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk_rows: int = CHUNK_ROWS) -> list[Chunk]:
    """Chunks of about `chunk_rows` rows each."""
    rows = estimate_rows(connection, address, schema.name)
    bounds = _bounds(connection, address, schema, rows, chunk_rows)
    conditions = _conditions(bounds)
    share = max(rows // len(conditions), 1)
    return [Chunk(schema.name.database, schema.name.table, i, where, share) for i, where in enumerate(conditions)]


def read_chunk(address: MySQLAddress, schema: TableSchema, chunk: Chunk, epoch: int, options: ReadOptions) -> Iterator[ChangeBlock]:
    """The rows of a chunk as blocks; all of them again, with a later position, when the server went away in the middle."""
    give_up_at, pause_s = time.monotonic() + _PATIENCE_S, 0.1
    while True:
        try:
            yield from _read_chunk(address, schema, chunk, epoch, options)
            return
        except TransientError as error:
            if time.monotonic() > give_up_at:
                raise
            log.warning("%s; reading a chunk of %s again in %.1f s", error.message, chunk.name, pause_s)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _read_chunk(address: MySQLAddress, schema: TableSchema, chunk: Chunk, epoch: int, options: ReadOptions) -> Iterator[ChangeBlock]:
    connection = connect(address)
    try:
        position = note_position(connection, address, epoch)
        yield from read_chunk_at(connection, address, schema, chunk, position, options)
    finally:
        connection.close()


def read_chunk_at(
    connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk: Chunk, position: BinlogPosition, options: ReadOptions
) -> Iterator[ChangeBlock]:
    """The rows of a chunk as the connection's transaction sees them, stamped with the position that belongs to it."""
    version, read_at, number = position.version, time.time_ns() // 1000, 0
    for batch in scan_table(connection, address, schema, chunk.where, zero_dates_as_null=options.zero_dates_as_null):
        yield ChangeBlock(
            schema,
            batch,
            pa.repeat(pa.scalar(int(Op.SNAPSHOT), pa.uint8()), batch.num_rows),
            pa.repeat(pa.scalar(version, pa.uint64()), batch.num_rows),
            pa.repeat(pa.scalar(read_at, pa.int64()), batch.num_rows),
            order=pa.array(np.arange(number, number + batch.num_rows, dtype=np.uint64)),
        )
        number += batch.num_rows


def estimate_rows(connection: Connection[Any], address: MySQLAddress, name: TableName) -> int:
    """The server's own guess at the number of rows."""
    sql = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    found = query(connection, address, sql, (name.database, name.table))
    return int(found[0][0] or 0) if found else 0


_Bound = tuple[tuple[str, ...], tuple[str, ...]]
"""A key as quoted column names and as SQL literals."""


def _bounds(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, rows: int, chunk_rows: int) -> list[_Bound]:
    key = [schema.column(name) for name in schema.primary_key]
    if rows <= chunk_rows or not key or any(column.kind not in _WALKABLE for column in key):
        return []
    if len(key) == 1 and key[0].kind in _INTEGERS:
        return _even_bounds(connection, address, schema, -(-rows // chunk_rows))
    return _walked_bounds(connection, address, schema, chunk_rows)


def _even_bounds(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunks: int) -> list[_Bound]:
    """Split the span of an integer key evenly: two index look-ups, whatever the table's size."""
    column = quote_name(schema.primary_key[0])
    low, high = query(connection, address, f"SELECT MIN({column}), MAX({column}) FROM {_table(schema)}")[0]
    if low is None:
        return []
    cuts = sorted({low + (high - low) * i // chunks for i in range(1, chunks)})
    return [((column,), (str(cut),)) for cut in cuts]


def _walked_bounds(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk_rows: int) -> list[_Bound]:
    """Walk the key's index in strides of `chunk_rows`."""
    names = tuple(quote_name(name) for name in schema.primary_key)
    columns = ", ".join(names)
    bounds: list[_Bound] = []
    while True:
        where = f" WHERE {_greater(bounds[-1])}" if bounds else ""
        sql = f"SELECT {columns} FROM {_table(schema)}{where} ORDER BY {columns} LIMIT 1 OFFSET {chunk_rows - 1}"
        found = query(connection, address, sql)
        if not found:
            return bounds
        bounds.append((names, tuple(connection.literal(value) for value in found[0])))


def _conditions(bounds: list[_Bound]) -> list[str]:
    lower = [""] + [_greater(bound) for bound in bounds]
    upper = [f"NOT ({_greater(bound)})" for bound in bounds] + [""]
    return [" AND ".join(part for part in (low, high) if part) for low, high in zip(lower, upper, strict=True)]


def _greater(bound: _Bound) -> str:
    """`key > bound`, spelled out so that the server's range optimiser understands composite keys."""
    names, literals = bound
    terms = []
    for i, (name, literal) in enumerate(zip(names, literals, strict=True)):
        equal = [f"{n} = {x}" for n, x in zip(names[:i], literals[:i], strict=True)]
        terms.append("(" + " AND ".join([*equal, f"{name} > {literal}"]) + ")")
    return "(" + " OR ".join(terms) + ")"


def _table(schema: TableSchema) -> str:
    return f"{quote_name(schema.name.database)}.{quote_name(schema.name.table)}"
