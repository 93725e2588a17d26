"""What runs in a task for a table's frame: a piece of the log, or a chunk of the table, to batches of the frame's columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.api.feed import Request, block_feed
from headrace.model.table_selection import Selection
from headrace.sources.base import Split
from headrace.sources.mysql.preflight.required import check_server, check_tables
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.table_read_plan import TableReadPlan
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.snapshot.lock_free import Chunk, plan_chunks, read_chunk
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.split_reader import MySQLReader
from headrace.spark.frames.change_rows import pair_images, truncation
from headrace.spark.frames.options import TableRequest, schema_from_text, schema_to_text


def read_changes(request: TableRequest, split: Split) -> Iterator[pa.RecordBatch]:
    """A piece of a stream's batch."""
    schema = schema_from_text(split["table"])
    if split["kind"] == "truncate":
        yield truncation(schema, int(split["version"]))
        return
    plans = {schema.name: TableReadPlan(schema, schema.row_key)}
    reader = MySQLReader(request.address, plans, Selection((request.pattern,)), _options(request), 0)
    for block in reader.read({**split["work"], "news": []}):
        yield pair_images(block)


def plan_frame(request: TableRequest, frame: StructType) -> list[Split]:
    """The table's rows as they are now, by chunks; or, from a starting position, its changes up to now, in one piece."""
    with closing(connect(request.address)) as connection:
        check_server(connection, request.address)
        check_tables(connection, request.address, [request.table])
        if request.start:
            return [{"stop": log_end(connection, request.address, 0).to_json()}]
        schema = request.captured(connection)
        request.check_frame(schema, frame, str(request.address))
        return [{"table": schema_to_text(schema), "chunk": c.to_json()} for c in plan_chunks(connection, request.address, schema)]


def read_frame(request: TableRequest, frame: StructType, split: Split) -> Iterator[pa.RecordBatch]:
    """A piece of a frame that ends."""
    if "chunk" in split:
        schema, chunk = schema_from_text(split["table"]), Chunk.from_json(split["chunk"])
        for block in read_chunk(request.address, schema, chunk, 0, _options(request)):
            yield pair_images(block)
        return
    wanted = Request(request.address, Selection((request.pattern,)), _options(request), request.start, split["stop"])
    with block_feed(wanted) as feed:
        for block in feed:
            request.check_frame(block.schema, frame, str(request.address))
            yield pair_images(block)


def _options(request: TableRequest) -> ReadOptions:
    return ReadOptions(every_before=True, zero_dates=request.zero_dates, transactions=True)
