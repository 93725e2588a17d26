"""Snapshots without locks: chunks of a table by its key, each with a log position that is noted before the read.

Why this is right: a chunk's rows carry the position's version. Every later change has a higher version and comes through the stream, which
starts at or before every chunk's position. Changes that the read already saw are replayed over it and win. Changes before the position were
visible to the read (see `log_watermark`). So chunks may be read in any order, in parallel, and again after a crash.

A sink that counts rows cannot replay changes. For it a table is read exactly as of one position (`exact`), in one chunk or in chunks that
share a position. A read that breaks off is an error, because only the driver can delete the rows written before.

Every row satisfies exactly one chunk's condition, for any plan (see `chunk_planner`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection

from headrace.errors import TransientError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName, TableSchema
from headrace.retry import WAITING
from headrace.sources.mysql.limits import CHUNK_ROWS
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import MySQLAddress, caches_statistics, connect, is_mariadb, query, version_of
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.chunk_planner import plan_bounds
from headrace.sources.mysql.snapshot.locked_snapshot import SnapshotReader, exact_table_snapshot
from headrace.sources.mysql.snapshot.log_watermark import check_reached, log_end, note_position
from headrace.sources.mysql.snapshot.table_scan import scan_table

log = logging.getLogger("headrace.mysql")

_RETRY_TIMEOUT_S: Final = 600.0
_CHUNK_NUMBER_BITS: Final = 40
"""Row numbers start at the chunk number shifted by this, so that no two rows of a snapshot share one."""
_LONGEST_PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Chunk(JsonRecord):
    database: str
    table: str
    number: int
    where: str
    estimate: int
    """The estimated number of rows, for progress only."""

    @property
    def name(self) -> TableName:
        return TableName(self.database, self.table)


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The range of the log in which rows were read."""

    position: BinlogPosition
    """Noted before the rows were read. They carry it as their version."""
    until: BinlogPosition
    """The end of the log after the rows were read. Only statements after it came after the rows.

    A SELECT reads a table as it is named and defined when it gets the table's metadata lock, which may be later than the position.
    """


ChunkBlocks = Generator[ChangeBlock, None, ReadSpan]
"""Yields the blocks of a chunk; returns the range in which they were read."""


def plan_chunks(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk_rows: int = CHUNK_ROWS) -> list[Chunk]:
    rows = estimate_rows(connection, address, schema.name)
    ranges = plan_bounds(connection, address, schema, rows, chunk_rows).ranges
    return [Chunk(schema.name.database, schema.name.table, i, where, estimate) for i, (where, estimate) in enumerate(ranges)]


def read_chunk(
    address: MySQLAddress,
    schema: TableSchema,
    chunk: Chunk,
    epoch: int,
    options: ReadOptions,
    reached: BinlogPosition | None = None,
    *,
    exact: bool = False,
    identity: str = "",
) -> ChunkBlocks:
    """Yield the rows of a chunk as blocks; all of them again, with a later position, if the connection breaks.

    `reached`: the position of a stream that has written to the same tables. `exact`: the rows are those of their position, without
    repetition. `identity`: the expected server identity, if known.
    """
    give_up_at, pause_s = time.monotonic() + _RETRY_TIMEOUT_S, 0.1
    # Rows without a key cannot be merged with changes that they already contain.
    begin = exact_table_snapshot if exact or not schema.row_key else _noted_position
    while True:
        begun = False
        try:
            blocks = _read_once(begin(address, schema.name, epoch, identity), address, schema, chunk, epoch, options, reached)
            while True:
                try:
                    block = next(blocks)
                except StopIteration as end:
                    span: ReadSpan = end.value
                    return span
                begun = True
                yield block
        except TransientError as error:
            if (exact and begun) or time.monotonic() > give_up_at:
                raise
            log.warning("%s%s; reading a chunk of %s again in %.1f s", WAITING, error.message, chunk.name, pause_s)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


@contextmanager
def _noted_position(address: MySQLAddress, name: TableName, epoch: int, identity: str) -> Iterator[SnapshotReader]:  # noqa: ARG001
    """Provide a connection whose reads include every change before its position, and maybe later ones."""
    with closing(connect(address, identity=identity)) as connection:
        yield SnapshotReader(connection, note_position(connection, address, epoch))


def _read_once(
    opened: AbstractContextManager[SnapshotReader],
    address: MySQLAddress,
    schema: TableSchema,
    chunk: Chunk,
    epoch: int,
    options: ReadOptions,
    reached: BinlogPosition | None,
) -> ChunkBlocks:
    with opened as reader:
        check_reached(reader.position, reached, address)
        position = reader.position.with_version_after(reached)
        yield from read_chunk_at(reader.connection, address, schema, chunk, position, options)
        return ReadSpan(position, log_end(reader.connection, address, epoch))


def read_chunk_at(
    connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk: Chunk, position: BinlogPosition, options: ReadOptions
) -> Iterator[ChangeBlock]:
    """Yield the rows of a chunk as the connection's transaction sees them, with its position."""
    version, read_at, number = position.version, time.time_ns() // 1000, chunk.number << _CHUNK_NUMBER_BITS
    chosen = options.projection.project(schema)
    for batch in scan_table(connection, address, chosen, chunk.where, zero_dates=options.zero_dates):
        yield ChangeBlock(
            chosen,
            batch,
            pa.repeat(pa.scalar(int(Op.SNAPSHOT), pa.uint8()), batch.num_rows),
            pa.repeat(pa.scalar(version, pa.uint64()), batch.num_rows),
            pa.repeat(pa.scalar(read_at, pa.int64()), batch.num_rows),
            order=pa.array(np.arange(number, number + batch.num_rows, dtype=np.uint64)),
        )
        number += batch.num_rows


def snapshot_place(name: TableName) -> str:
    return f"snapshot of {name}"


def estimate_rows(connection: Connection[Any], address: MySQLAddress, name: TableName) -> int:
    """Return the server's own estimate of the number of rows."""
    if caches_statistics(mariadb=is_mariadb(connection), version=version_of(connection)):
        # By default MySQL 8.0 and later return statistics that are up to a day old.
        query(connection, address, "SET SESSION information_schema_stats_expiry = 0")
    sql = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    found = query(connection, address, sql, (name.database, name.table))
    return int(found[0][0] or 0) if found else 0
