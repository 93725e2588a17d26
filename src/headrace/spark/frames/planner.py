"""Plans the stream of a table: where batches end, their splits, and the table's schema in them. Tasks read the splits.

An offset is a position in the log and the table's schema at that position. So a restarted query reads every row by the schema that it was
written with. A batch ends right after a statement that changes the table. If the statement changes the columns of the frame, the query ends
with an error before the next batch, and the error says how to continue. So the rows before the change are delivered and checkpointed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.api.feed import FeedRequest, block_feed
from headrace.api.relay_session import RelaySession, resolve_place
from headrace.api.tracked_tables import KnownTables, News, TableRules
from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableSchema
from headrace.model.table_selection import Selection
from headrace.sources.base import Offset, Split
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.preflight.required import check_server, check_tables
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import TableReadPlan
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, plan_chunks, read_chunk
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.split_reader import MySQLReader, SegmentSplit
from headrace.sources.splits import StatementSplit
from headrace.spark.frames.table_frame import TableRequest, pair_images, schema_from_text, schema_to_text, truncation


@dataclass(frozen=True, slots=True)
class TableLogSplit(JsonRecord):
    """A segment of the log, and the table as it is defined there."""

    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False
    table: TableSchema
    log: SegmentSplit


@dataclass(frozen=True, slots=True)
class TruncateSplit(JsonRecord):
    """A statement that deleted all rows of the table."""

    split_kind: ClassVar[str] = "truncate"
    once: ClassVar[bool] = False
    table: TableSchema
    version: int


@dataclass(frozen=True, slots=True)
class TableChunkSplit(JsonRecord):
    """A chunk of the table's rows."""

    split_kind: ClassVar[str] = "chunk"
    once: ClassVar[bool] = False
    table: TableSchema
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class LogRangeSplit(JsonRecord):
    """The log from the starting position to `stop`."""

    split_kind: ClassVar[str] = "log"
    once: ClassVar[bool] = False
    stop: Offset


StreamSplit = TableLogSplit | TruncateSplit
FrameSplit = TableChunkSplit | LogRangeSplit
STREAM_SPLITS: tuple[type[StreamSplit], ...] = (TableLogSplit, TruncateSplit)
FRAME_SPLITS: tuple[type[FrameSplit], ...] = (TableChunkSplit, LogRangeSplit)


class TablePlanner:
    """Plans the stream. An offset is a position, the table's schema there (`table`), and why the stream cannot continue, if so (`lost`)."""

    def __init__(self, request: TableRequest, frame: StructType) -> None:
        self._request, self._frame = request, frame
        with closing(connect(request.address)) as connection:
            self._server = check_server(connection, request.address)
            check_tables(connection, request.address, [request.table])
            self._rules = TableRules(request.address, self._server, Selection((request.pattern,)), request.zero_dates)
            self._charsets = self._rules.charsets(connection)
        self._made: RelaySession | None = None
        self._stop: BinlogPosition | None = None

    def initial(self) -> Offset:
        request = self._request
        with closing(connect(request.address)) as connection:
            request.captured(connection)
            resolve = partial(resolve_place, connection, request.address, request.start or "now")
            captured, place = self._rules.capture_around(connection, resolve)
            if place.until is not None:
                raise DefiniteError(
                    "startingPosition lies inside a batch of headrace.changes", hint="read that batch to its end, or start elsewhere"
                )
            known = {schema.name: schema for schema in (*captured, *place.tables)}
        return _offset(place.position.to_json(), known[request.table])

    def end_at_latest(self) -> None:
        """Plan nothing after the current end of the log."""
        with closing(connect(self._request.address)) as connection:
            self._stop = log_end(connection, self._request.address, 0)

    def plan(self, start: Offset) -> Offset:
        schema = self._check(start)
        mirror = self._mirror(start)
        end = mirror.plan(start)
        while end == start and mirror.stop is not None:
            end = mirror.plan(start)
        if end is None or end == start:
            return start
        after, _, lost = self._follow(schema, start, mirror.splits(start, end))
        return _offset(end, after, lost)

    def splits(self, start: Offset, end: Offset) -> list[StreamSplit]:
        schema = self._check(start)
        splits = self._mirror(start).splits(start, end)
        _, truncations, _ = self._follow(schema, start, splits)
        shown = self._rules.shown(schema)
        rows = (replace(split, created_with_rows=()) for split in splits if isinstance(split, SegmentSplit))
        return [*(TableLogSplit(shown, split) for split in rows), *(TruncateSplit(shown, version) for version in truncations)]

    def commit(self, end: Offset) -> None:
        if self._made is not None:
            self._made.commit(end)

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()

    def _mirror(self, start: Offset) -> RelaySession:
        if self._made is None:
            request = self._request
            position = BinlogPosition.from_json(start)
            self._made = RelaySession(request.address, self._server, position, request.relay_bytes, BatchLimits(), request.relay_directory)
        self._made.stop = self._stop
        return self._made

    def _check(self, start: Offset) -> TableSchema:
        place, schema = str(BinlogPosition.from_json(start)), schema_from_text(start["table"])
        if start.get("lost"):
            raise DefiniteError(
                f"rows of {self._request.table} came or went without changes in the log: {start['lost']}",
                place=place,
                hint="read the table again and start a new query with a new checkpoint",
            )
        self._request.check_frame(self._rules.shown(schema), self._frame, place)
        return schema

    def _follow(self, schema: TableSchema, start: Offset, splits: Sequence[Split]) -> tuple[TableSchema, list[int], str]:
        """Return the table's schema after the statements among the splits, the versions that truncated it, and what it cannot follow."""
        tables = KnownTables(self._rules, [schema], self._charsets, BinlogPosition.from_json(start))
        found = [statement for split in splits if isinstance(split, StatementSplit) for statement in tables.follow(split)]
        lost = next((statement.text for statement in found if statement.news is News.LOST), "")
        truncations = [statement.position.version for statement in found if statement.news is News.EMPTIED]
        return next(iter(tables.defined), schema), truncations, lost


def _offset(position: Offset, schema: TableSchema, lost: str = "") -> Offset:
    return {**position, "table": schema_to_text(schema), "lost": lost}


def read_changes(request: TableRequest, split: StreamSplit) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a split of a stream."""
    schema = split.table
    if isinstance(split, TruncateSplit):
        yield truncation(schema, split.version)
        return
    plans = {schema.name: TableReadPlan(schema, schema.row_key)}
    reader = MySQLReader(request.address, plans, Selection((request.pattern,)), _options(request), 0)
    for block in reader.read(split.log):
        yield pair_images(block)


def plan_frame(request: TableRequest, frame: StructType) -> Sequence[FrameSplit]:
    """Return the splits of the table's current rows, by chunks; or, from a starting position, one split of its changes up to now."""
    with closing(connect(request.address)) as connection:
        check_server(connection, request.address)
        check_tables(connection, request.address, [request.table])
        if request.start:
            return [LogRangeSplit(log_end(connection, request.address, 0).to_json())]
        schema = request.captured(connection)
        request.check_frame(schema, frame, str(request.address))
        return [TableChunkSplit(schema, chunk) for chunk in plan_chunks(connection, request.address, schema)]


def read_frame(request: TableRequest, frame: StructType, split: FrameSplit) -> Iterator[pa.RecordBatch]:
    if isinstance(split, TableChunkSplit):
        for block in read_chunk(request.address, split.table, split.chunk, 0, _options(request)):
            yield pair_images(block)
        return
    wanted = FeedRequest(request.address, Selection((request.pattern,)), _options(request), request.start, split.stop)
    with block_feed(wanted) as feed:
        for block in feed:
            request.check_frame(block.schema, frame, str(request.address))
            yield pair_images(block)


def _options(request: TableRequest) -> ReadOptions:
    return ReadOptions(every_before=True, zero_dates=request.zero_dates, transactions=True)
