"""A snapshot in the middle of a history, and the log from there on, give the base table's rows, lists and markers too.

Random histories run on a real server in two halves. After the first, the table is read by token ranges; its log is dropped. The log of the
second comes shuffled, some of it twice, before or after the snapshot's rows; ambiguous rows are read again.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headrace.cql.blocks import RowBlock
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cells.reader import CellReader
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.log_rows import LogRow
from headrace.sources.scylla.capture.statement_capture import Capture, log_block
from headrace.sources.scylla.snapshot.base_rows import RowQuery
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import TokenChunk, read_chunk, server_time
from headrace.sources.scylla.snapshot.row_recheck import LogStartTimes, RowRechecker
from headrace.sources.scylla.snapshot.table_probe import probe_write_times, read_ring
from headrace.sources.scylla.snapshot.token_ranges import WHOLE, cut
from headrace.verify.row_compare import Comparison, compare
from headrace.verify.scylla.verifier import LoggedRows, canonical_schema
from testkit.generators.cql_histories import History, Statement, random_history, random_statements

pytestmark = pytest.mark.scaled

HOUR_US = 3600 * 1_000_000
HISTORIES, STATEMENTS = 8, 25


@pytest.fixture
def sink(target: ClickHouseTarget) -> CellSink:
    return CellSink(ClickHouseSink(target))


class _Captured:
    """A table on a real server, and its log by the capture layer."""

    def __init__(self, cql: CqlSession, history: History) -> None:
        self._cql, self.clock = cql, 0
        for statement in history.definitions:
            cql.execute(statement.rstrip(";"))
        self._capture = Capture([history.table], lambda: self.clock, seed=1)

    def run(self, statements: list[Statement]) -> list[list[LogRow]]:
        """Run the statements; return the log rows of each accepted one."""
        found = []
        for statement in statements:
            try:
                self._cql.execute(statement.text)
            except DefiniteError:
                # A list element that does not exist in this half.
                continue
            found.append(self._capture.log(statement.text))
        return found


def _snapshot(cql: CqlSession, table: CqlTable) -> list[RowBlock]:
    query = RowQuery(table, probe_write_times(cql, table))
    parts = cut([WHOLE], read_ring(cql, table.name), 4)
    return [
        block for part in parts for block in read_chunk(cql, query, TokenChunk(table.name, part), ScyllaOptions(confidence=0, page_rows=50))
    ]


def _joined(cql: CqlSession, sink: CellSink, keyspace: str, seed: int) -> Comparison:
    now = server_time(cql)
    history = random_history(seed, STATEMENTS, keyspace=keyspace, start=now - HOUR_US)
    table, chance = history.table, random.Random(seed)
    captured = _Captured(cql, history)
    captured.clock = now - HOUR_US
    captured.run(list(history.statements))
    rows = _snapshot(cql, table)
    # The second half has later timestamps than the snapshot, and keys of lists that were made later.
    captured.clock = now + HOUR_US
    batches = captured.run(random_statements(random.Random(seed + 1_000_000), table, STATEMENTS, now + HOUR_US))
    batches = [*batches, *chance.choices(batches, k=len(batches) // 2)] if batches else []
    chance.shuffle(batches)
    sink.prepare([table])
    writer = sink.writer()
    # Re-reads happen when the second half is older than the confidence time.
    again = RowRechecker(cql, ScyllaOptions(confidence=-2 * 3600))
    begun = LogStartTimes(now, now + 60 * 1_000_000)
    late = rows if chance.random() < 0.5 else []
    for row in [] if late else rows:
        writer.write(row)
    while batches:
        count = chance.randint(1, len(batches))
        block = log_block(table, [row for batch in batches[:count] for row in batch])
        writer.write(block)
        for one in again.after(block, begun):
            writer.write(one)
        batches = batches[count:]
    for row in late:
        writer.write(row)
    writer.complete()
    writer.close()
    sides = LoggedRows(cql, CellReader(sink.sink.scope), table)
    nothing = canonical_schema(table).arrow_schema.empty_table()
    return compare(canonical_schema(table), pa.concat_tables([nothing, *sides.source(WHOLE)]), pa.concat_tables([nothing, *sides.sink()]))


@pytest.mark.slow(because="test_a_snapshot_merges_with_the_log_in_any_order, test_rows_of_a_snapshot_and_the_log_meet")
def test_snapshot_and_log_show_what_the_table_holds(cql: CqlSession, keyspace: str, sink: CellSink) -> None:
    rows, failed = 0, {}

    for seed in range(HISTORIES):
        found = _joined(cql, sink, keyspace, seed)
        rows += found.rows
        if found.total:
            failed[TableName(keyspace, f"t{seed}")] = found

    assert not failed
    assert rows > HISTORIES
