"""Reads the splits of table frames in tasks: a segment of the log, or a chunk of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.api.feed import FeedRequest, block_feed
from headrace.model.table_selection import Selection
from headrace.sources.mysql.preflight.required import check_server, check_tables
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.table_read_plan import TableReadPlan
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.snapshot.lock_free_snapshot import plan_chunks, read_chunk
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.split_reader import MySQLReader
from headrace.spark.frames.change_rows import pair_images, truncation
from headrace.spark.frames.options import TableRequest
from headrace.spark.frames.splits import FrameSplit, LogRangeSplit, StreamSplit, TableChunkSplit, TruncateSplit


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
    """Yield the rows of a split of a bounded frame."""
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
