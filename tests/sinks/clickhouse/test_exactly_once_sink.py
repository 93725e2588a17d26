"""Blocks with deduplication tokens against the real engine: lost responses, forgotten or extra tokens, views, windows, clearing."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.retry import retrying
from headrace.sinks.clickhouse.maintenance.table_store import discard_partial_snapshot
from headrace.sinks.clickhouse.server.client import connect, disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.write import deduplication
from testkit.pipelines.embedded_access import target_of

SCHEMA = TableSchema(TableName("shop", "t"), (Column("id", Kind.INT32, False), Column("n", Kind.INT32)), ("id",))
COUNTING = (TargetEngine.COLLAPSING, TargetEngine.VERSIONED, TargetEngine.HISTORY)

Made = Callable[..., ClickHouseSink]


@pytest.fixture
def made(clickhouse: EmbeddedServer) -> Iterator[Made]:
    """Creates sinks with their table."""
    target = target_of(clickhouse)

    def make(engine: TargetEngine, **choices: Any) -> ClickHouseSink:
        own = replace(target, database=f"d_{secrets.token_hex(6)}")
        sink = ClickHouseSink(own, ClickHouseOptions(all_tables=(("engine", engine), *choices.items())), pipe="p")
        sink.prepare([SCHEMA])
        return sink.without_cache()

    yield make
    disconnect(target)


def block_of(first: int, *ops: Op, order: int | None = None) -> ChangeBlock:
    """Rows with keys from `first` on; except in a snapshot, the keys are the versions, too."""
    rows = len(ops)
    images = pa.record_batch([pa.array(range(first, first + rows), pa.int32()), pa.array([0] * rows, pa.int32())], SCHEMA.arrow_schema)
    versions = pa.array(range(first, first + rows) if order is None else [7] * rows, pa.uint64())
    numbers = None if order is None else pa.array(range(order, order + rows), pa.uint64())
    return ChangeBlock(SCHEMA, images, pa.array(list(ops), pa.uint8()), versions, pa.array([0] * rows, pa.int64()), order=numbers)


def inserts(first: int, rows: int = 3) -> ChangeBlock:
    return block_of(first, *[Op.INSERT] * rows)


def count(sink: ClickHouseSink, table: str = "t") -> int:
    return int(sink.reader().query(f"SELECT count() FROM `{sink.target.database}`.{table}")[1][0][0])


def run(sink: ClickHouseSink, statement: str) -> None:
    connect(sink.target).client.command(statement.replace("t!", f"`{sink.target.database}`.t").replace("d!", f"`{sink.target.database}`"))


@pytest.mark.parametrize("engine", COUNTING)
def test_a_block_whose_answer_is_lost_counts_once(made: Made, engine: TargetEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(engine, partition_by="id % 2")
    client, lost = connect(sink.target).client, 0
    real = client.raw_insert

    def unheard(*arguments: Any, **settings: Any) -> Any:
        nonlocal lost
        real(*arguments, **settings)
        if lost < 2:
            lost += 1
            raise OperationalError("the answer was lost")
        return None

    monkeypatch.setattr(client, "raw_insert", unheard)
    writer = sink.writer()
    retrying(lambda: writer.write(inserts(10)), sleep=lambda _: None)
    retrying(lambda: writer.write(inserts(20)), sleep=lambda _: None)
    assert (lost, count(sink)) == (2, 6)
    # Rows of a snapshot have one version, and every block counts; after the table was cleared, again.
    kept = 6
    for _ in range(2):
        lost, reading = 0, sink.writer()
        for number in range(3):
            read = block_of(30 + number * 2, *[Op.SNAPSHOT] * 2, order=number * 2)
            retrying(lambda read=read, reading=reading: reading.write(read), sleep=lambda _: None)  # type: ignore[misc]
        assert count(sink) == kept + 6
        sink.table_store().discard_partial_snapshot(SCHEMA, since=7)
        kept = 6 if engine is TargetEngine.HISTORY else 0
        assert count(sink) == kept


@pytest.mark.parametrize("engine", COUNTING)
def test_a_batch_that_is_written_again_counts_once(made: Made, engine: TargetEngine) -> None:
    sink = made(engine)
    blocks = [inserts(10), block_of(20, Op.INSERT, Op.DELETE, Op.INSERT), inserts(30)]
    for written in range(len(blocks) + 1):
        writer = sink.for_replay().writer()
        for block in blocks[:written]:
            writer.write(block)
        assert count(sink) == 3 * written
        run(sink, "OPTIMIZE TABLE t! FINAL")
        assert count(sink) <= 3 * written
    # Blocks of another pipe or another log differ, even at the same positions.
    replace(sink, pipe="q").writer().write(inserts(10))
    assert count(sink) >= 12 if engine is TargetEngine.HISTORY else count(sink) > 0


@pytest.mark.parametrize("partition_by", ["", "id % 2"])
def test_a_server_that_was_killed_between_a_part_and_its_token(made: Made, partition_by: str) -> None:
    history = made(TargetEngine.HISTORY, partition_by=partition_by)
    # The server has a part whose token it has forgotten.
    writer = history.writer()
    writer.write(inserts(10))
    replace(history, pipe="lost").writer().write(inserts(20))
    for _ in range(2):
        again = history.for_replay().writer()
        for first in (10, 20, 30):
            again.write(inserts(first))
        assert count(history) == 9
    # The server knows a token without its part, or with an incomplete one: the token stays when rows are deleted.
    for gone in ("_version >= 30", "_version = 31"):
        run(history, f"ALTER TABLE t! DELETE WHERE {gone} SETTINGS mutations_sync = 2")
        again = history.for_replay().writer()
        for first in (10, 20, 30, 40):
            again.write(inserts(first))
        assert count(history) == 12
        run(history, "ALTER TABLE t! DELETE WHERE _version >= 40 SETTINGS mutations_sync = 2")
    folded = made(TargetEngine.COLLAPSING)
    folded.writer().write(inserts(10))
    replace(folded, pipe="lost").writer().write(inserts(20))
    again = folded.for_replay().writer()
    for first in (10, 20, 30):
        again.write(inserts(first))
    assert count(folded) == 9


def test_a_running_insert_is_waited_for(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    history = made(TargetEngine.HISTORY)
    # The query of running queries finds itself, as it would find an INSERT.
    monkeypatch.setattr(deduplication, "_RUNNING_INSERT", "SELECT 1 FROM system.processes")
    with pytest.raises(TransientError, match="still under way"):
        history.for_replay().writer().write(inserts(10))
    with pytest.raises(TransientError, match="still under way"):
        history.table_store().discard_partial_snapshot(SCHEMA, since=0)
    monkeypatch.undo()
    history.for_replay().writer().write(inserts(10))
    assert count(history) == 3


def test_a_view_over_the_table_counts_once_too(made: Made) -> None:
    history = made(TargetEngine.HISTORY)
    remembering = "ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 1000"
    run(history, f"CREATE TABLE d!.counted (n UInt64) {remembering}")
    run(history, "CREATE MATERIALIZED VIEW d!.counting TO d!.counted AS SELECT count() AS n FROM t!")
    for _ in range(3):
        writer = history.writer()
        for first in (10, 20):
            writer.write(inserts(first))
    assert (count(history), count(history, "counted")) == (6, 2)


def test_tables_remember_as_many_blocks_as_a_batch_has(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def window(sink: ClickHouseSink) -> int:
        [[full]] = sink.reader().query(f"SELECT engine_full FROM system.tables WHERE database = '{sink.target.database}' AND name = 't'")[1]
        return int(full.partition("non_replicated_deduplication_window = ")[2].partition(",")[0] or 0)

    for partition_by in ("", "id % 2"):
        sink = made(TargetEngine.HISTORY, partition_by=partition_by)
        assert window(sink) == deduplication.MIN_BLOCKS == 10_000
        # The window of an existing table is increased.
        run(sink, "ALTER TABLE t! MODIFY SETTING non_replicated_deduplication_window = 0")
        sink.prepare([SCHEMA])
        assert window(sink) == 10_000
        # And a table whose window is smaller than a batch.
        run(sink, "ALTER TABLE t! MODIFY SETTING non_replicated_deduplication_window = 8")
        monkeypatch.setattr(deduplication, "MIN_BLOCKS", 8)
        for _ in range(2):
            writer = sink.writer()
            for number in range(20):
                writer.write(inserts(100 + number * 10, rows=2))
            assert count(sink) == 40
        assert 20 * (2 if partition_by else 1) <= window(sink) <= 200
        monkeypatch.undo()


def test_a_merging_table_accepts_a_replayed_block_with_and_without_deduplication(made: Made) -> None:
    """The server's own deduplication would leave out a replay into a table that was emptied in between."""
    sink = made(TargetEngine.REPLACING)
    run(sink, "ALTER TABLE t! MODIFY SETTING non_replicated_deduplication_window = 100")
    sink.writer().write(inserts(10))
    run(sink, "ALTER TABLE t! DELETE WHERE 1 SETTINGS mutations_sync = 2")
    sink.writer().write(inserts(10))
    assert sink.reader().count(SCHEMA) == 3


def test_clearing_takes_away_an_attempt_and_nothing_else(made: Made) -> None:
    for engine, left in ((TargetEngine.COLLAPSING, 0), (TargetEngine.VERSIONED, 0), (TargetEngine.HISTORY, 3), (TargetEngine.REPLACING, 5)):
        sink = made(engine)
        assert not sink.table_store().holds_rows(SCHEMA)
        writer = sink.writer()
        writer.write(inserts(1))
        writer.write(block_of(50, Op.SNAPSHOT, Op.SNAPSHOT, order=0))
        assert sink.table_store().holds_rows(SCHEMA)
        for _ in range(2):
            sink.table_store().discard_partial_snapshot(SCHEMA, since=7)
            assert count(sink) == left, engine
        # Cleared rows may be written again at the same position.
        sink.writer().write(block_of(50, Op.SNAPSHOT, Op.SNAPSHOT, order=0))
        assert count(sink) == left + 2


def test_a_history_without_a_version_cannot_find_rows_of_an_attempt(made: Made) -> None:
    sink = made(TargetEngine.HISTORY)
    bare = replace(sink.target_table(SCHEMA), metadata_columns=())
    with pytest.raises(DefiniteError, match="they cannot be identified"):
        discard_partial_snapshot(sink.scope, bare, 0)


@pytest.mark.parametrize("engine", [TargetEngine.COLLAPSING, TargetEngine.VERSIONED])
def test_blocks_with_names_count_once(made: Made, engine: TargetEngine) -> None:
    """Blocks of partitions of a topic: their versions overlap, and their names are in their tokens."""
    sink = made(engine).for_records(2)
    evens, odds = (replace(inserts(10, 6).taken([first, first + 2, first + 4]), name=f"t[{first}]@0-2:changes") for first in (0, 1))
    sink.writer().write(evens)
    for _ in range(2):
        again = sink.for_replay().writer()
        again.write(evens)
        again.write(odds)
        assert count(sink) == 6
    # The server has the block and not its token.
    replace(sink, pipe="lost").writer().write(replace(inserts(20), name="t[0]@3-5:changes"))
    sink.for_replay().writer().write(replace(inserts(20), name="t[0]@3-5:changes"))
    assert count(sink) == 9
    # Other blocks of the same length are no repetition.
    sink.writer().write(replace(block_of(10, Op.DELETE, Op.DELETE, Op.DELETE), name="t[0]@6-8:changes"))
    assert count(sink) == 12


@pytest.mark.parametrize("partition_by", ["", "id % 2"])
def test_rows_of_a_snapshot_that_come_twice_count_once(made: Made, partition_by: str) -> None:
    """In one block, in a later one, and after the server has forgotten a token or stored a part of a block."""
    sink = made(TargetEngine.COLLAPSING, partition_by=partition_by).for_records(1)
    rows = replace(block_of(1, *[Op.SNAPSHOT] * 4, order=0), name="t[0]@0-7:rows")
    writer = sink.writer()
    writer.write(rows.taken([0, 1, 0, 2, 2]))
    writer.write(replace(rows, name="t[0]@8-11:rows"))
    assert count(sink) == 4
    run(sink, "ALTER TABLE t! DELETE WHERE id > 2 SETTINGS mutations_sync = 2")
    for _ in range(2):
        sink.for_replay().writer().write(replace(rows, name="t[0]@8-11:rows"))
        assert count(sink) == 4
    # Rows of another key range, and of a key that is no number of the range.
    writer.write(replace(block_of(9, *[Op.SNAPSHOT] * 2, order=0), name="t[0]@12-13:rows"))
    assert count(sink) == 6


def test_the_window_has_room_for_the_tokens_of_all_tasks(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = made(TargetEngine.COLLAPSING, partition_by="id % 2").for_records(10)
    run(sink, "ALTER TABLE t! MODIFY SETTING non_replicated_deduplication_window = 8")
    monkeypatch.setattr(deduplication, "MIN_BLOCKS", 8)
    sink.writer().write(inserts(1, 4))
    full = sink.reader().query(f"SELECT engine_full FROM system.tables WHERE database = '{sink.target.database}'")[1][0][0]
    # Ten tasks with a block of two partitions each.
    assert int(full.partition("non_replicated_deduplication_window = ")[2].partition(",")[0]) >= 20
