"""Plans and reads the splits of the MySQL source.

`BinlogPlanner` runs in the driver and cuts the log into splits. `MySQLReader` runs in tasks and reads a split into blocks.
"""

from __future__ import annotations

import logging
import os
import secrets
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.sources.base import Offset, Split
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner, log_lost
from headrace.sources.mysql.binlog.commit_times import BacklogWriter
from headrace.sources.mysql.binlog.relay import IndexedLog, Relay
from headrace.sources.mysql.binlog.segment_fetch import open_segment, with_checksum
from headrace.sources.mysql.limits import BatchLimits, SegmentAccess
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, TableReadPlan, read_segment
from headrace.sources.mysql.segments.skipped_events import SkippedEvents
from headrace.sources.mysql.segments.table_shares import TableShare, measure_tables, share_tables
from headrace.sources.mysql.server.connection import MySQLAddress, TableChanged, connect
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, ChunkBlocks, ReadSpan, read_chunk, read_chunk_at, snapshot_place
from headrace.sources.mysql.snapshot.locked_snapshot import Rendezvous, check_has_transactions, open_reader
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.splits import MarkSplit, StatementSplit

log = logging.getLogger("headrace.mysql")

_CHECK_INTERVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class OrderedShare(JsonRecord):
    """All of a batch, for tables whose blocks must come in the order of the log, and which share of those tables a task reads."""

    segments: tuple[Segment, ...]
    share: int
    of: int


@dataclass(frozen=True, slots=True)
class SegmentSplit(JsonRecord):
    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False
    segment: Segment
    until: Offset
    """The end of the batch."""
    ordered: OrderedShare | None = None
    tables: TableShare | None = None
    """The tables that this task reads whole; None if every table is read by ranges."""
    created_with_rows: tuple[TableName, ...] = ()
    """Tables whose rows are not read: statements of the batch create them from a SELECT, and the driver takes a snapshot of them."""


@dataclass(frozen=True, slots=True)
class ChunkSplit(JsonRecord):
    split_kind: ClassVar[str] = "chunk"
    chunk: Chunk
    once: bool = False

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return (self.chunk,)


@dataclass(frozen=True, slots=True)
class ConsistentSplit(JsonRecord):
    """The chunks that one reader of a consistent snapshot reads, all in the same transaction."""

    split_kind: ClassVar[str] = "consistent"
    rendezvous: Rendezvous
    reader: int
    chunks: tuple[Chunk, ...]
    once: bool = False


MySQLSplit = SegmentSplit | ChunkSplit | ConsistentSplit
"""What a reader reads."""
PlannedSplit = SegmentSplit | MarkSplit | StatementSplit
"""What a planner of the log returns."""


class BinlogPlanner:
    """Plans the splits of an indexed log, and owns the log's thread."""

    def __init__(
        self,
        indexed_log: IndexedLog,
        start: BinlogPosition,
        limits: BatchLimits,
        log_end: Callable[[], BinlogPosition | None],
        *,
        mariadb: bool,
    ) -> None:
        """`log_end` returns the current end of the log, None if it is unknown."""
        self._relay, self._start, self._log_end, self._whole_tables = indexed_log, start, log_end, limits.whole_tables
        self._planner = BatchPlanner(indexed_log, limits, mariadb=mariadb)

    def initial(self) -> Offset:
        return self._start.to_json()

    def plan(self, start: Offset, until: Offset | None = None) -> Offset:
        return self._planner.plan(self._start_log(start), None if until is None else BinlogPosition.from_json(until)).to_json()

    def has_reached(self, position: Offset) -> bool:
        return self._planner.has_reached(BinlogPosition.from_json(position))

    def splits(self, start: Offset, end: Offset) -> list[PlannedSplit]:
        begin, stop = self._start_log(start), BinlogPosition.from_json(end)
        if stop.epoch < self._start.epoch:
            # The batch was planned on a former server. Its changes come again, by GTID, from the current server.
            return [MarkSplit(end)]
        while not self._planner.await_end(stop, _CHECK_INTERVAL_S):
            self._check_log_end(stop)
        segments, ordered = (
            tuple(self._prepare_segment(segment) for segment in found if self._planner.holds_rows(segment))
            for found in (self._planner.segments(begin, stop), self._planner.ordered_segments(begin, stop))
        )
        statements = self._planner.statements(begin, stop)
        # A CREATE TABLE ... SELECT has its rows in the same group. They are skipped, and the driver takes a snapshot of the new table.
        left_out = tuple(one.creates_with_rows for one in statements if one.creates_with_rows is not None)
        shares = self._share_tables(begin, stop, segments)
        splits: list[PlannedSplit] = [
            SegmentSplit(segment, end, OrderedShare(ordered, task, len(segments)), shares[task] if shares else None, left_out)
            for task, segment in enumerate(segments)
        ]
        return [
            *(splits or [MarkSplit(end)]),
            *(StatementSplit(one.query.to_json(), one.position.to_json(), one.creates_with_rows) for one in statements),
        ]

    def commit(self, end: Offset) -> None:
        self._relay.commit(BinlogPosition.from_json(end))

    def stop(self) -> None:
        self._relay.stop()

    def _prepare_segment(self, segment: Segment) -> Segment:
        """Return a segment in the form that tasks need."""
        return segment

    def _share_tables(self, begin: BinlogPosition, end: BinlogPosition, segments: Sequence[Segment]) -> list[TableShare]:
        """Return which tables each task reads whole; nothing if every table is read by ranges."""
        if not self._whole_tables or len(segments) < 2:
            return []
        batch = tuple(self._planner.file_segments(begin, end))
        if any(segment.needs_expansion for segment in batch):
            # Every task would expand all events of the batch.
            return []
        try:
            sizes = measure_tables(batch)
        except DefiniteError as error:
            log.debug("tables are read by ranges, because the batch cannot be measured: %s", error.message)
            return []
        return share_tables(sizes, [segment.end - segment.start for segment in segments], batch)

    def _check_log_end(self, end: BinlogPosition) -> None:
        """Raise if the log now ends before a planned end: that part of the log is lost, and waiting cannot help."""
        found = self._log_end()
        if found is not None and replace(found, epoch=end.epoch) < end:
            raise log_lost(end, str(found))

    def _start_log(self, start: Offset) -> BinlogPosition:
        position = BinlogPosition.from_json(start)
        if position.epoch < self._start.epoch:
            # The end of an older epoch is the beginning of this one.
            position = self._start
        if not self._relay.started:
            self._relay.start(position)
        return position


class MySQLPlanner(BinlogPlanner):
    """Plans splits of a server's log, which a relay copies."""

    def __init__(self, relay: Relay, start: BinlogPosition, limits: BatchLimits, *, mariadb: bool, access: SegmentAccess) -> None:
        super().__init__(relay, start, limits, partial(_server_log_end, relay.address), mariadb=mariadb)
        self._access, self._identity = access, relay.identity

    def _prepare_segment(self, segment: Segment) -> Segment:
        if self._access is SegmentAccess.LOCAL:
            return segment
        return with_checksum(segment, self._identity, hide_path=self._access is SegmentAccess.FETCH)


def open_relay(address: MySQLAddress, parent: Path, limit_bytes: int, identity: str, backlog: Path | None) -> Relay:
    """Return a relay in a new directory under `parent`.

    The name is unique, so that a previous process that has not exited yet cannot write to it, and no other machine has a directory of
    this name.
    """
    directory = parent / f"{os.getpid()}-{secrets.token_hex(8)}"
    writer = None if backlog is None else BacklogWriter(backlog)
    return Relay(address, directory, limit_bytes, log.warning, identity=identity, backlog=writer)


def _server_log_end(address: MySQLAddress) -> BinlogPosition | None:
    try:
        with closing(connect(address)) as connection:
            return log_end(connection, address, 0)
    except TransientError as error:
        # The relay has its own retry timeout for an unavailable server.
        log.debug("cannot read the end of the log: %s", error.message)
        return None


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """What a task read of the log."""

    until: Offset
    """The position behind the segment."""
    skipped: Sequence[Mapping[str, str]]
    """The skipped events with their content."""


@dataclass(frozen=True, slots=True)
class MySQLReader:
    split_types: ClassVar[tuple[type[Split], ...]] = (SegmentSplit, ChunkSplit, ConsistentSplit)
    address: MySQLAddress | None
    """The server that snapshots are read from; None for a directory of log files."""
    tables: Mapping[TableName, TableReadPlan]
    selection: Selection
    options: ReadOptions
    epoch: int
    reached: BinlogPosition | None = None
    """The position up to which the stream has written to the same tables. Snapshot rows get a version above it."""
    skips: frozenset[str] = frozenset()
    """The places of events and rows that the user asked to skip."""
    identity: str = ""
    """The identity of the server that snapshots are read from, if known. Another server at the same address is refused."""

    def read(self, split: MySQLSplit) -> Generator[ChangeBlock, None, SegmentRead | ReadSpan]:
        match split:
            case ChunkSplit():
                return (yield from self._read_chunk(split.chunk))
            case ConsistentSplit():
                return (yield from self._read_together(split))
            case SegmentSplit():
                return (yield from self._read_segment(split))

    def _read_segment(self, split: SegmentSplit) -> Generator[ChangeBlock, None, SegmentRead]:
        created = frozenset(split.created_with_rows)
        skipped = SkippedEvents(self.skips, self.epoch) if self.skips else None
        ordered = {name for name, plan in self.tables.items() if plan.ordered}
        if ordered and split.ordered is not None:
            yield from self._read_ordered(split.ordered, ordered - created, skipped)
        left_out, shared = ordered | created, split.tables
        if shared is None:
            catalog = self._catalog(lambda name: name not in left_out, skipped)
        else:
            whole, divided = frozenset(shared.whole) - left_out, frozenset(shared.divided) - left_out
            if whole:
                yield from self._read_whole(shared.segments, whole, skipped)
            catalog = self._catalog(divided.__contains__, skipped)
        with open_segment(split.segment, self.address) as segment:
            yield from read_segment(segment, catalog)
        return SegmentRead(split.until, [] if skipped is None else skipped.to_report())

    def _catalog(self, chosen: Callable[[TableName], bool], skipped: SkippedEvents | None) -> ReadCatalog:
        return ReadCatalog(self.tables, lambda name: chosen(name) and self._wants(name), self.options, skipped)

    def _read_ordered(self, batch: OrderedShare, ordered: Set[TableName], skipped: SkippedEvents | None) -> Iterator[ChangeBlock]:
        """Read the whole batch for this task's share of the ordered tables. A table's blocks are the same whichever task reads them."""
        mine = {name for name in ordered if zlib.crc32(str(name).encode()) % batch.of == batch.share}
        if mine:
            yield from self._read_whole(batch.segments, mine, skipped)

    def _read_whole(self, segments: Iterable[Segment], names: Set[TableName], skipped: SkippedEvents | None) -> Iterator[ChangeBlock]:
        for segment in segments:
            with open_segment(segment, self.address) as found:
                yield from read_segment(found, self._catalog(names.__contains__, skipped))

    def _read_chunk(self, chunk: Chunk) -> ChunkBlocks:
        plan = self.tables.get(chunk.name)
        if plan is None or plan.schema is None:
            # A schema change was applied after the chunk was planned. The snapshot runner reads the other tables' chunks.
            raise DefiniteError(
                f"table {chunk.name} is no longer read as it was planned", place=snapshot_place(chunk.name), hint="start again"
            )
        where = self._server, plan.schema, chunk, self.epoch, self.options, self.reached
        return (yield from read_chunk(*where, exact=plan.exact, identity=self.identity))

    def _read_together(self, split: ConsistentSplit) -> ChunkBlocks:
        """Read several chunks in one transaction of a consistent snapshot."""
        with open_reader(self._server, split.rendezvous, split.reader, self.epoch, self.identity) as reader:
            position = reader.position.with_version_after(self.reached)
            for chunk in split.chunks:
                plan = self.tables[chunk.name]
                schema = plan.schema
                assert schema is not None, "only known tables are planned"
                if plan.exact or not schema.row_key:
                    check_has_transactions(reader.connection, self._server, chunk.name)
                try:
                    yield from read_chunk_at(reader.connection, self._server, schema, chunk, position, self.options)
                except TableChanged as error:
                    # No other transaction sees the tables as of this position.
                    raise DefiniteError(error.message, place=snapshot_place(chunk.name), hint="start again") from error
            return ReadSpan(position, log_end(reader.connection, self._server, self.epoch))

    @property
    def _server(self) -> MySQLAddress:
        assert self.address is not None, "log files have no snapshot"
        return self.address

    def _wants(self, name: TableName) -> bool:
        plan = self.tables.get(name)
        return self.selection(name) and (plan is None or not plan.is_skipped)
