"""Reads a window of a table's log: one task's share of its streams, as blocks of whole batches.

A window is older than the confidence time when it is read, so it is complete. A batch without its end was read too early: it is queried
again, and never delivered in part.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.cql.address import CqlAddress
from headrace.cql.blocks import BatchPosition, LogBlock, RowBlock, fixed_bytes
from headrace.cql.bounded_connection import RawPage
from headrace.cql.decode.pages import PageRequest, as_batch, read_many, read_pages
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.log import OPERATION, STREAM, TIME, log_table
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.tables import CqlTable
from headrace.cql.timeuuid import bulk_micros, greatest
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.retry import current_wait, pause, retrying
from headrace.sources.base import Split
from headrace.sources.scylla.batch_assembler import BatchAssembler, BatchSkipper, BlockBuffer, check_operations
from headrace.sources.scylla.generations import ServerCatalog, shares
from headrace.sources.scylla.position import AUDIT, FIRST, Window, label_of, moment
from headrace.sources.scylla.read_times import CLOCK_US, ReadTimes, read_ages
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes, RowRechecker
from headrace.sources.scylla.window_planner import WindowSplit

log = logging.getLogger("headrace.scylla")

BLOCK_ROWS, BLOCK_BYTES = 65_536, 32 << 20
LEFT: Final = "cdc$left"
"""The result column with the remaining TTL of a log row, in seconds."""
_END_PATIENCE_S: Final = 30.0
_END_WAIT_S: Final = 0.5
_MOST_PLACES: Final = 100
"""Positions of late rows that an audit names per window; further rows are only counted."""
_MOST_LATE: Final = 10_000
"""Late rows per answer whose positions are read; further rows are only counted."""
_AHEAD_US: Final = 60_000_000
"""Servers reject timestamps more than a few seconds ahead of their clocks."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """What an audit found in a window."""

    places: Mapping[str, tuple[int, int]]
    """Late batches by position: row count and write time (seconds since 1970)."""
    more: int
    """Rows of other batches."""


@dataclass(frozen=True, slots=True)
class WindowsRead:
    """What a task found in its share of the windows."""

    rows: Mapping[str, int]
    """Log rows by window, labelled as in offsets."""
    skipped: Sequence[Mapping[str, str]]
    """The skipped batches with their content."""
    borderline: Mapping[tuple[TableName, int], Mapping[str, int]]
    """By table and read: rows that the next read may take for late ones."""
    late: Mapping[TableName, LateRows]


@dataclass(frozen=True, slots=True)
class TableLog:
    """A base table whose log is read, as it was defined when the batch began."""

    table: CqlTable
    ttl: int
    """TTL of its rows in seconds; 0: they do not expire."""
    read_times: ReadTimes | None = None
    """When it was read before; None: as planned."""


@dataclass(frozen=True, slots=True)
class LogReader:
    """The task side of the source. Picklable."""

    split_types: ClassVar[tuple[type[Split], ...]] = (WindowSplit,)
    address: CqlAddress
    logs: Mapping[TableName, TableLog]
    options: ScyllaOptions
    begun: Mapping[TableName, LogStartTimes] = field(default_factory=dict)
    """Tables that started with a snapshot, which the log does not describe completely."""
    skips: frozenset[str] = frozenset()
    """Batches to skip, by position."""

    def read(self, split: WindowSplit) -> Generator[LogBlock | RowBlock, None, WindowsRead]:
        session = retrying(lambda: shared_session(self.address))
        catalog = _catalog(self.address, self.options, os.getpid())
        found: dict[str, int] = {}
        borderline: dict[tuple[TableName, int], dict[str, int]] = {}
        late: dict[TableName, LateRows] = {}
        skipping = BatchSkipper(self.skips)
        for keyspace, table, *numbers, read_number in split.windows:
            name, window = TableName(keyspace, table), Window(*numbers)
            groups = shares(catalog.streams(name, window.generation), split.share, split.of, self.options.streams_per_query)
            reading = WindowReader(session, self.logs[name], window, self.options, catalog, skipping, read_number)
            if read_number == AUDIT:
                late[name] = reading.audit(groups)
            else:
                for block in reading.late_blocks(groups) if read_number else reading.blocks(groups):
                    yield block
                    if name in self.begun:
                        yield from RowRechecker(session, self.options).after(block, self.begun[name])
                borderline[name, read_number] = reading.borderline
            found[label_of(name, read_number)] = reading.seen
        return WindowsRead(found, skipping.report(), borderline, late)


@functools.lru_cache(maxsize=4)
def _catalog(address: CqlAddress, options: ScyllaOptions, _process: int) -> ServerCatalog:
    """Return the catalog of this process. Cached: the streams of a generation never change."""
    return ServerCatalog(shared_session(address), options)


@dataclass(slots=True)
class WindowReader:
    session: CqlSession
    log: TableLog
    window: Window
    options: ScyllaOptions
    catalog: ServerCatalog
    skipping: BatchSkipper = field(default_factory=BatchSkipper)
    read_number: int = FIRST
    seen: int = 0
    """Rows that were read."""
    borderline: dict[str, int] = field(default_factory=dict)
    """Rows among them that may count as unseen (see `ReadTimes.borderline`)."""
    _broken: dict[bytes, bytes | None] = field(default_factory=dict)
    _torn: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def _read_times(self) -> ReadTimes:
        return self.log.read_times or ReadTimes(read_ages(self.options, self.log.ttl))

    def late_blocks(self, groups: Iterable[Sequence[bytes]]) -> Iterator[LogBlock]:
        """Yield the rows that the previous read cannot have seen, as far as is known.

        A query of few columns finds the streams with such rows; usually there are none.
        """
        late: set[bytes] = set()
        for rows in self._times(groups):
            written = self._written(rows)
            self._note(rows, written)
            late.update(rows.column(STREAM).filter(pa.array(self._is_late(rows, written))).to_pylist())
        for block in self.blocks([stream] for stream in sorted(late)) if late else ():
            found = self._is_late(block.rows, block.written)
            surely = int((found & self._read_times.after(self.read_number - 1, block.times, block.written, CLOCK_US)).sum())
            if surely:
                log.warning("%s: %d rows arrived later than scylla.confidence allows, and are delivered now", self._location, surely)
            if found.any():
                chosen = pa.array(found)
                yield LogBlock(block.table, block.rows.filter(chosen), block.written.filter(chosen))

    def _times(self, groups: Iterable[Sequence[bytes]]) -> Iterator[pa.RecordBatch]:
        """Read only the positions and the remaining TTLs of the rows of these streams."""
        first, last = greatest(self.window.after), greatest(self.window.until)
        requests = [(times_query(self.log.table), (list(streams), first, last)) for streams in groups]
        for rows in read_many(self.session, requests, concurrency=self.options.concurrency, fetch_size=self.options.page_rows):
            self.seen += rows.num_rows
            yield rows

    def _is_late(self, rows: pa.RecordBatch, written: pa.Int64Array) -> NDArray[np.bool_]:
        """Return which rows the previous read may have missed; unknown write times count as missed."""
        unknown = np.asarray(written.is_null().to_numpy(zero_copy_only=False))
        return unknown | self._read_times.unseen(self.read_number - 1, rows, _times_of(rows), written)

    def _note(self, rows: pa.RecordBatch, written: pa.Int64Array) -> None:
        """Remember rows that the next read would take for late rows."""
        self.borderline |= self._read_times.borderline(self.read_number, rows, _times_of(rows), written)

    def audit(self, groups: Iterable[Sequence[bytes]]) -> LateRows:
        """Count and locate the rows that arrived after the last read of their times."""
        places: dict[str, tuple[int, int]] = {}
        more = 0
        for rows in self._times(groups):
            written = self._written(rows)
            where = np.flatnonzero(self._read_times.unseen(self._read_times.last, rows, _times_of(rows), written))
            more += max(len(where) - _MOST_LATE, 0)
            for row in where[:_MOST_LATE].tolist():
                place = str(BatchPosition.of_row(str(self.log.table.name), rows, row))
                if place in places:
                    places[place] = (places[place][0] + 1, places[place][1])
                elif len(places) < _MOST_PLACES:
                    places[place] = (1, int(written[row].as_py()))
                else:
                    more += 1
        return LateRows(places, more)

    def blocks(self, groups: Iterable[Sequence[bytes]]) -> Iterator[LogBlock]:
        """Yield the rows of these streams, one query per list."""
        first, last = greatest(self.window.after), greatest(self.window.until)
        requests = [self._request(streams, first, last) for streams in groups]
        gathering = BlockBuffer(BLOCK_ROWS, BLOCK_BYTES)
        for rows in chain(self._whole(requests), self._reread_broken(first, last)):
            yield from map(self._block, gathering.add(rows))
        yield from map(self._block, gathering.rest())

    @property
    def _location(self) -> str:
        return f"log of {self.log.table.name}, {moment(self.window.after)} to {moment(self.window.until)}"

    def _request(self, streams: Sequence[bytes], first: UUID, last: UUID) -> PageRequest:
        one = len(streams) == 1
        return log_query(self.log.table, one=one), (streams[0] if one else list(streams), first, last)

    def _whole(self, requests: Sequence[PageRequest]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of whole batches. Answers of one page (most of them) are joined."""
        short: list[RawPage] = []
        short_rows = short_bytes = 0
        long: dict[int, BatchAssembler] = {}
        pages = read_pages(self.session, requests, concurrency=self.options.concurrency, fetch_size=self.options.page_rows)
        for page in pages:
            if page.last and page.request not in long:
                if page.rows.count:
                    short.append(page.rows)
                    short_rows, short_bytes = short_rows + page.rows.count, short_bytes + len(page.rows.body)
                if short_rows >= BLOCK_ROWS or short_bytes >= BLOCK_BYTES:
                    yield from self._assemble(BatchAssembler(self._location), short, last=True)
                    short, short_rows, short_bytes = [], 0, 0
            else:
                assembler = long.setdefault(page.request, BatchAssembler(self._location))
                yield from self._assemble(assembler, [page.rows] if page.rows.count else [], last=page.last)
                if page.last:
                    del long[page.request]
        yield from self._assemble(BatchAssembler(self._location), short, last=True)

    def _assemble(self, assembler: BatchAssembler, pages: Sequence[RawPage], *, last: bool) -> Iterator[pa.RecordBatch]:
        if pages:
            yield assembler.feed(self.skipping.without(as_batch(pages, self._location), self.log.table.name))
        if last:
            rest = assembler.finish()
            if rest is not None:
                yield rest
            self._broken |= assembler.broken
            self._torn |= assembler.torn

    def _reread_broken(self, first: UUID, last: UUID) -> Iterator[pa.RecordBatch]:
        """Yield the rows of streams whose batches had no end, once they have one."""
        deadline = time.monotonic() + _END_PATIENCE_S
        while self._broken:
            broken, self._broken = self._broken, {}
            if time.monotonic() > deadline or current_wait().ending:
                raise self._endless(broken)
            log.info("%s: %d streams have a batch without its end; reading them again", self._location, len(broken))
            pause(_END_WAIT_S)
            again = [self._request([stream], UUID(bytes=after) if after else first, last) for stream, after in broken.items()]
            yield from self._whole(again)
            # If a broken stream delivered nothing now, its previous position still holds.
            self._broken = {stream: after or broken[stream] for stream, after in self._broken.items()}

    def _endless(self, broken: Mapping[bytes, bytes | None]) -> DefiniteError:
        stream = next(iter(broken))
        place = str(BatchPosition(str(self.log.table.name), stream, self._torn[stream]))
        return DefiniteError(
            f"a batch of log rows has no end (cdc$end_of_batch), even {_END_PATIENCE_S:.0f} s after it was due: a part is missing",
            place=place,
            hint="check these rows in the log table: were some deleted by hand, or is the consistency too low to see all? "
            "headrace skip leaves out the rows of the batch that are in the log; headrace resync copies the table again",
            event=place,
        )

    def _block(self, rows: pa.RecordBatch) -> LogBlock:
        check_operations(rows, self.log.table.name)
        self.seen += rows.num_rows
        written = self._written(rows)
        self._note(rows, written)
        return LogBlock(self.log.table, rows.drop_columns([LEFT]), written)

    def _written(self, rows: pa.RecordBatch) -> pa.Int64Array:
        return written_at(rows, rows.column(LEFT), self.log.ttl, self.catalog.now())


@functools.lru_cache(maxsize=1024)
def log_query(table: CqlTable, *, one: bool) -> str:
    """Return the query for a window of one stream's log, or of several streams'."""
    target = log_table(table)
    columns = ", ".join(quoted(column.name) for column in target.columns)
    streams = f"{quoted(STREAM)} = ?" if one else f"{quoted(STREAM)} IN ?"
    window = f"{streams} AND {quoted(TIME)} > ? AND {quoted(TIME)} <= ?"
    return f"SELECT {columns}, TTL({quoted(OPERATION)}) AS {quoted(LEFT)} FROM {table_name(target.name)} WHERE {window}"


@functools.lru_cache(maxsize=1024)
def times_query(table: CqlTable) -> str:
    """Return the query for only the times of a window's rows."""
    columns = f"{quoted(STREAM)}, {quoted(TIME)}, TTL({quoted(OPERATION)}) AS {quoted(LEFT)}"
    window = f"{quoted(STREAM)} IN ? AND {quoted(TIME)} > ? AND {quoted(TIME)} <= ?"
    return f"SELECT {columns} FROM {table_name(log_table(table).name)} WHERE {window}"


def _times_of(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the microseconds of the rows' `cdc$time`."""
    return bulk_micros(fixed_bytes(rows.column(TIME), 16))


def written_at(rows: pa.RecordBatch, left: pa.BinaryArray, ttl: int, now_us: int) -> pa.Int64Array:
    """Return when log rows were written, in seconds since 1970, from their remaining TTL; null if that is implausible.

    (The log's TTL may have been another one when the row was written.)
    """
    count = rows.num_rows
    if not ttl or left.null_count == count:
        return pa.nulls(count, pa.int64())
    known = np.asarray(left.is_valid().to_numpy(zero_copy_only=False))
    seconds: NDArray[np.int64] = np.zeros(count, np.int64)
    seconds[known] = fixed_bytes(left.drop_null(), 4).view(">i4")[:, 0]
    written = now_us // 1_000_000 - (ttl - seconds)
    known &= (seconds <= ttl) & (written * 1_000_000 > _times_of(rows) - _AHEAD_US)
    return pa.array(written, pa.int64(), mask=~known)
