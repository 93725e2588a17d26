"""The snapshot of base tables: token ranges read in parallel, joined with the log without a gap.

Why this is correct: the log is read from the confidence time before the first chunk starts, so every write is in the log, in the rows, or
in both. Cells have their true write times in both, so they merge to the same result in any order. A chunk is consistent as of its start
less the confidence time: all earlier writes are in it. So chunks may be read in any order, concurrently with the log, and again after a
crash.

A chunk that is larger than expected ends early, between two partitions, and reports how far it came; the rest becomes another chunk.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.cql.address import CqlAddress
from headrace.cql.blocks import RowBlock
from headrace.cql.decode.pages import read_rows
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.tables import CqlTable
from headrace.cql.timeuuid import micros
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.retry import current_wait, pause, retrying
from headrace.sources.base import Split
from headrace.sources.scylla.snapshot.base_rows import RowQuery, WriteTimeColumns
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.token_ranges import TokenRange

_BLOCK_ROWS, _BLOCK_BYTES = 50_000, 32 << 20


@dataclass(frozen=True, slots=True)
class TokenChunk(JsonRecord):
    """A range of tokens of a base table, read by one task."""

    split_kind: ClassVar[str] = "token_range"
    once: ClassVar[bool] = False
    table: TableName
    range: TokenRange
    rows: int = 1_000_000
    """Maximum number of rows; the chunk then ends with the current partition."""
    since: int = 0
    """The log is complete from this time on (microseconds since 1970); later list elements are read from the log."""


@dataclass(frozen=True, slots=True)
class ChunkResult(JsonRecord):
    read: TokenRange
    """The part of its range that was read."""
    rows: int
    as_of: int


@dataclass(frozen=True, slots=True)
class TokenRangeReader:
    """Reads chunks in a task. Picklable."""

    split_types: ClassVar[tuple[type[Split], ...]] = (TokenChunk,)
    address: CqlAddress
    tables: Mapping[TableName, CqlTable]
    telling: Mapping[TableName, WriteTimeColumns]
    options: ScyllaOptions

    def read(self, split: TokenChunk) -> Generator[RowBlock, None, ChunkResult]:
        query = RowQuery(self.tables[split.table], self.telling[split.table])
        session = retrying(lambda: shared_session(self.address))
        return (yield from read_chunk(session, query, split, self.options))


def read_chunk(session: CqlSession, query: RowQuery, chunk: TokenChunk, options: ScyllaOptions) -> Generator[RowBlock, None, ChunkResult]:
    while (as_of := server_time(session) - options.confidence_us) < chunk.since and query.leaves_out and not current_wait().ending:
        # Else what was written to a list before its table had a log would be in neither.
        pause((chunk.since - as_of) / 1e6)
    gathered: list[pa.RecordBatch] = []
    rows = sent = 0
    for page in read_rows(session, query.by_range, (chunk.range.start, chunk.range.end), options.page_rows):
        rows += page.num_rows
        kept, end = (page, None) if rows < chunk.rows else _without_last(query, page)
        gathered.append(kept)
        if end is not None or sum(one.num_rows for one in gathered) >= _BLOCK_ROWS or sum(one.nbytes for one in gathered) >= _BLOCK_BYTES:
            block = query.block(gathered, as_of)
            sent += block.changes
            yield block
            gathered = []
        if end is not None:
            return ChunkResult(TokenRange(chunk.range.start, end), sent, as_of)
    if gathered:
        block = query.block(gathered, as_of)
        sent += block.changes
        yield block
    return ChunkResult(chunk.range, sent, as_of)


def _without_last(query: RowQuery, page: pa.RecordBatch) -> tuple[pa.RecordBatch, int | None]:
    """Return the page without its last, possibly incomplete partition, and the token up to which it is complete; None: it has only one."""
    tokens = query.tokens(page)
    whole = int(np.searchsorted(tokens, tokens[-1]))
    return (page.slice(0, whole), int(tokens[-1]) - 1) if whole else (page, None)


def server_time(session: CqlSession) -> int:
    """Return a server's time in microseconds since 1970; retry while servers are unreachable."""
    [(now,)] = retrying(lambda: session.execute("SELECT now() FROM system.local"))
    return micros(now)
