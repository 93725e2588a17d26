"""Snapshots without locks: chunks of a table by its key, each stamped with a log position noted before it is read.

Why this is right: a chunk's rows carry the position's version; every later change has a higher one and comes through the stream, which
starts at a position not after any chunk's. Changes that the read already saw are replayed over it and win; changes before the position
were visible to the read (see `watermark`). So chunks may be read in any order, in parallel, and again after a crash.

A sink that counts rows cannot take it that way: there a table is read exactly as of one position (`exact`), in one chunk or in chunks that
share a moment, and what breaks off in the middle is an error, because only the driver can take away what was written before.

Every row satisfies exactly one chunk's condition, however well or badly the chunks were planned (see `chunking`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection

from headrace.errors import TransientError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableName, TableSchema
from headrace.retry import WAITING
from headrace.sources.mysql.limits import CHUNK_ROWS
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import MySQLAddress, connect, is_mariadb, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.chunk_planner import plan_ranges
from headrace.sources.mysql.snapshot.locking import exact_table_snapshot
from headrace.sources.mysql.snapshot.log_watermark import log_end, note_position
from headrace.sources.mysql.snapshot.table_scan import scan_table

log = logging.getLogger("headrace.mysql")

_PATIENCE_S: Final = 600.0
_CHUNK_NUMBER_BITS: Final = 40
"""Rows are numbered within their chunk: no two rows of a snapshot have one number."""
_LONGEST_PAUSE_S: Final = 10.0


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


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The part of the log during which rows were read."""

    position: BinlogPosition
    """Noted before the rows were read. They carry it as version."""
    until: BinlogPosition
    """The log's end after the rows were read. Only statements above it came after the rows.

    A SELECT reads a table as it is named and defined when it gets the table's metadata lock, which may be later than the position.
    """

    def to_json(self) -> dict[str, Any]:
        return {"position": self.position.to_json(), "until": self.until.to_json()}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ReadSpan:
        return cls(BinlogPosition.from_json(raw["position"]), BinlogPosition.from_json(raw["until"]))


ChunkBlocks = Generator[ChangeBlock, None, ReadSpan]
"""The blocks of a chunk; at the end, when they were read."""


def plan_chunks(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk_rows: int = CHUNK_ROWS) -> list[Chunk]:
    """Chunks of about `chunk_rows` rows each."""
    rows = estimate_rows(connection, address, schema.name)
    ranges = plan_ranges(connection, address, schema, rows, chunk_rows)
    return [Chunk(schema.name.database, schema.name.table, i, found.where, found.estimate) for i, found in enumerate(ranges)]


def read_chunk(
    address: MySQLAddress,
    schema: TableSchema,
    chunk: Chunk,
    epoch: int,
    options: ReadOptions,
    reached: BinlogPosition | None = None,
    *,
    exact: bool = False,
) -> ChunkBlocks:
    """The rows of a chunk as blocks; all of them again, with a later position, when the server went away in the middle.

    `reached`: how far a stream is that has written to the same tables. `exact`: the rows are those of their position, none comes twice.
    """
    give_up_at, pause_s = time.monotonic() + _PATIENCE_S, 0.1
    # Rows that nothing tells apart cannot be merged with changes that they hold already.
    read = _read_exactly if exact or not schema.row_key else _read_chunk
    while True:
        begun = False
        try:
            blocks = read(address, schema, chunk, epoch, options, reached)
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


def _read_exactly(
    address: MySQLAddress, schema: TableSchema, chunk: Chunk, epoch: int, options: ReadOptions, reached: BinlogPosition | None
) -> ChunkBlocks:
    with exact_table_snapshot(address, schema.name, epoch) as reader:
        if reached is not None and reader.position < reached:
            # What is in the log may not be visible yet; what was written of it would be neither in the rows nor come again.
            raise TransientError(f"{reader.position} is visible, and {reached} was written already", place=str(address))
        position = reader.position.behind(reached)
        yield from read_chunk_at(reader.connection, address, schema, chunk, position, options)
        return ReadSpan(position, log_end(reader.connection, address, epoch))


def _read_chunk(
    address: MySQLAddress, schema: TableSchema, chunk: Chunk, epoch: int, options: ReadOptions, reached: BinlogPosition | None
) -> ChunkBlocks:
    with closing(connect(address)) as connection:
        position = note_position(connection, address, epoch).behind(reached)
        yield from read_chunk_at(connection, address, schema, chunk, position, options)
        return ReadSpan(position, log_end(connection, address, epoch))


def read_chunk_at(
    connection: Connection[Any], address: MySQLAddress, schema: TableSchema, chunk: Chunk, position: BinlogPosition, options: ReadOptions
) -> Iterator[ChangeBlock]:
    """The rows of a chunk as the connection's transaction sees them, stamped with the position that belongs to it."""
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
    """The place of an error that concerns the snapshot of one table alone."""
    return f"snapshot of {name}"


def estimate_rows(connection: Connection[Any], address: MySQLAddress, name: TableName) -> int:
    """The server's own guess at the number of rows."""
    if not is_mariadb(connection):
        # MySQL shows what it knew a day ago.
        query(connection, address, "SET SESSION information_schema_stats_expiry = 0")
    sql = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    found = query(connection, address, sql, (name.database, name.table))
    return int(found[0][0] or 0) if found else 0
