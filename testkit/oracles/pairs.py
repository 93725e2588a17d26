"""A source and its copy without a pipe: rows are read by a scan and written by the sink's writer.

The test sets the pipe's position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from headrace.embedded.process import EmbeddedServer
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.digest import Digest
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.server.client import connect as connect_sink
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect, is_mariadb, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.snapshot.row_digests import read_digest
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.verify.row_compare import Comparison, compare
from testkit.pipelines.embedded_access import target_of


class Pair:
    """One source and one sink."""

    def __init__(self, connection: Connection[Any], address: MySQLAddress, sink: ClickHouseSink) -> None:
        self.connection, self.address, self.sink = connection, address, sink

    @property
    def is_mariadb(self) -> bool:
        return is_mariadb(self.connection)

    def run(self, *statements: str) -> None:
        for statement in statements:
            query(self.connection, self.address, statement)

    def schema(self, table: str) -> TableSchema:
        [found] = capture_schemas(self.connection, self.address, lambda name: name == TableName(self.address.database, table))
        return found.with_zero_dates(ZeroDates.NULL)

    def rows(self, schema: TableSchema) -> pa.Table:
        batches = list(scan_table(self.connection, self.address, schema, zero_dates=ZeroDates.NULL))
        return pa.Table.from_batches(batches, schema=schema.arrow_schema)

    def copy(self, schema: TableSchema) -> None:
        """Write all rows of the table to the sink, with the log's end as version."""
        self.sink.prepare([schema])
        version = self.log_end().version
        writer = self.sink.writer()
        for batch in self.rows(schema).combine_chunks().to_batches():
            rows = batch.num_rows
            op, plain = pa.array([Op.SNAPSHOT] * rows, pa.uint8()), pa.array([version] * rows, pa.uint64())
            order = pa.array(range(rows), pa.uint64())
            writer.write(ChangeBlock(schema, batch, op, plain, pa.array([0] * rows, pa.int64()), order=order))
        writer.close()

    def log_end(self) -> BinlogPosition:
        return log_end(self.connection, self.address, 0)

    def report_progress(self, pipe: str, position: BinlogPosition, *, silent_s: float = 0.0, incomplete: tuple[str, ...] = ()) -> None:
        """Record a pipe's position in the sink."""
        store, now_us = self.sink.progress_store(), int((time.time() - silent_s) * 1e6)
        store.begin()
        progress = Progress(pipe, str(self.address), str(position), position.version, 0, 0, 0, now_us, now_us, "", incomplete)
        store.report(progress)

    def spoil(self, statement: str) -> None:
        """Change the sink without a pipe."""
        connect_sink(self.sink.target).client.command(statement)

    def source(self, schema: TableSchema, where: str = "") -> Digest:
        return read_digest(self.connection, self.address, schema, where)

    def target(self, schema: TableSchema, condition: str = "1") -> Digest:
        return self.sink.digests().digest(schema, condition)

    def compare(self, schema: TableSchema) -> Comparison:
        """Return the comparison of all rows."""
        return compare(schema, self.rows(schema), self.sink.reader().read_range(schema))

    def is_equal(self, schema: TableSchema) -> bool:
        return self.compare(schema).total == 0


@contextmanager
def open_pair(address: MySQLAddress, engine: EmbeddedServer) -> Iterator[Pair]:
    """A connection to the source, in the address's database, and a sink."""
    target = target_of(engine)
    with closing(connect(address)) as connection:
        query(connection, address, f"USE {address.database}")
        yield Pair(connection, address, ClickHouseSink(target))
    disconnect(target)
