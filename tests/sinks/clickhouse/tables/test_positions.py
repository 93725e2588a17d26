"""The pipes' records in the sink: on the real engine, through the classes that the driver uses."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.lifecycle import progress_reporter
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import Pending
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, create_statements
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.embedded_access import target_of

COMMITTED_US = 1_700_000_000_000_000


@pytest.fixture
def sink(clickhouse: EmbeddedServer) -> ClickHouseSink:
    found = ClickHouseSink(target_of(clickhouse))
    found.reader().query("DROP TABLE IF EXISTS headrace.positions SYNC")
    return found


def at(offset: int, file: int = 1) -> BinlogPosition:
    return BinlogPosition(f"binlog.{file:06d}", offset, "0-1-7")


def stored(sink: ClickHouseSink, columns: str, table: str = "positions FINAL") -> list[list[object]]:
    return sink.reader().query(f"SELECT {columns} FROM headrace.{table} ORDER BY pipe")[1]


def test_one_current_row_per_pipe_with_position_watermark_and_counts(sink: ClickHouseSink) -> None:
    waiting: list[str] = ["shop.orders"]
    shop = ProgressReporter(SinkTables(sink), "shop", "mysql://host/shop", lambda: tuple(waiting))
    other = ProgressReporter(SinkTables(sink), "it's", "mysql://host/other", lambda: ())
    for one in (shop, other):
        one.begin(at(4), is_new=True)
    shop.snapshot_rows(at(4), 1000)
    assert stored(sink, "position, rows, total_rows, commit_time, incomplete") == [["binlog.000001:4", 1000, 1000, None, ["shop.orders"]]]
    waiting.clear()
    shop.batch(at(500), 7, COMMITTED_US)
    other.batch(at(9, file=2), 1, COMMITTED_US)
    shop.batch(at(700), 3, 0)
    assert stored(sink, "pipe, position, gtid, version, rows, total_rows, commit_time, incomplete") == [
        ["it's", "binlog.000002:9", "0-1-7", at(9, file=2).version, 1, 1, "2023-11-14 22:13:20.000000", []],
        ["shop", "binlog.000001:700", "0-1-7", at(700).version, 3, 1010, "2023-11-14 22:13:20.000000", []],
    ]
    [[lag, idle, silent]] = stored(sink, "lag_seconds, idle_seconds, silent_seconds", "lag WHERE pipe = 'shop'")
    assert lag == 0, "no change is pending, so the age of the newest one does not count"
    assert isinstance(idle, int | float)
    assert isinstance(silent, int | float)
    assert 0 <= silent <= idle < 60


def test_lag_is_the_age_of_the_oldest_pending_change(sink: ClickHouseSink) -> None:
    pending: list[Pending | None] = [Pending(time.time() - 40)]
    reporter = ProgressReporter(SinkTables(sink), "p", "mysql://host/", lambda: ())
    reporter.backlog = lambda: pending[0]
    reporter.begin(at(4), is_new=True)
    reporter.batch(at(100), 5, COMMITTED_US)

    def lag() -> float:
        [[found]] = stored(sink, "lag_seconds", "lag")
        assert isinstance(found, int | float)
        return float(found)

    assert 40 <= lag() < 100
    with reporter.heartbeats():
        # The lag follows without a batch, for a pending change and for none.
        pending[0] = Pending(None)
        wait_until(lambda: lag() == 0, 30)
        pending[0] = Pending(time.time() - 300)
        wait_until(lambda: 300 <= lag() < 360, 30)
        pending[0] = Pending(None)
        wait_until(lambda: lag() == 0, 30)
    # The lag of a stopped pipe grows.
    time.sleep(1.1)
    assert 1 <= lag() < 60
    # The last batch may be written after the stop.
    reporter.batch(at(200), 5, COMMITTED_US)
    time.sleep(1.1)
    assert 1 <= lag() < 60
    with reporter.heartbeats():
        wait_until(lambda: lag() == 0, 30)
    sink.reader().query("TRUNCATE TABLE headrace.positions SYNC")
    sink.reader().query("INSERT INTO headrace.positions (pipe, seen_at, updated_at) SELECT 'killed', now64(6) - 90, now64(6) - 90")
    assert 90 <= lag() < 150, "the lag of a killed pipe grows, too"


def test_a_repeated_batch_is_reported_again_and_counted_once(sink: ClickHouseSink) -> None:
    first = ProgressReporter(SinkTables(sink), "p", "mysql://host/", lambda: ())
    first.begin(at(4), is_new=True)
    first.batch(at(100), 5, COMMITTED_US)
    first.batch(at(200), 5, COMMITTED_US)
    # Killed before Spark's commit: the next run begins at 100 and repeats the batch up to 200.
    second = ProgressReporter(SinkTables(sink), "p", "mysql://elsewhere/", lambda: ())
    second.begin(at(100), is_new=False)
    assert stored(sink, "position, total_rows") == [["binlog.000001:200", 10]]
    second.batch(at(200), 5, COMMITTED_US)
    second.batch(at(300), 2, COMMITTED_US)
    assert stored(sink, "source, position, rows, total_rows") == [["mysql://elsewhere/", "binlog.000001:300", 2, 12]]
    # A new state directory with the same name starts from zero.
    third = ProgressReporter(SinkTables(sink), "p", "mysql://host/", lambda: ())
    third.begin(at(50), is_new=True)
    third.batch(at(60), 1, COMMITTED_US)
    assert stored(sink, "position, total_rows") == [["binlog.000001:60", 1]]


def test_an_idle_pipe_says_that_it_runs(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_reporter, "BEAT_S", 0.1)
    reporter = ProgressReporter(SinkTables(sink), "p", "mysql://host/", lambda: ())
    reporter.begin(at(4), is_new=True)
    reporter.batch(at(100), 5, COMMITTED_US)
    before = stored(sink, "pipe, position, rows, total_rows, updated_at")
    with reporter.heartbeats():
        deadline = time.monotonic() + 20
        while stored(sink, "seen_at > updated_at") != [[1]] and time.monotonic() < deadline:
            time.sleep(0.05)
    assert stored(sink, "seen_at > updated_at") == [[1]]
    assert stored(sink, "pipe, position, rows, total_rows, updated_at") == before


def test_two_pipes_of_one_name_are_noticed(sink: ClickHouseSink, caplog: pytest.LogCaptureFixture) -> None:
    for source in ("mysql://one/", "mysql://two/"):
        reporter = ProgressReporter(SinkTables(sink), "same", source, lambda: ())
        reporter.begin(at(4), is_new=True)
        reporter.batch(at(100), 5, COMMITTED_US)
    assert "a pipe named same, from mysql://one/, was running" in caplog.text
    assert "--name" in caplog.text


def test_merges_keep_up_with_twenty_batches_a_second(sink: ClickHouseSink) -> None:
    reporters = [ProgressReporter(SinkTables(sink), f"p{number}", "mysql://host/", lambda: ()) for number in range(2)]
    for reporter in reporters:
        reporter.begin(at(4), is_new=True)

    def run(reporter: ProgressReporter) -> None:
        for offset in range(10, 110):
            reporter.batch(at(offset), 1, COMMITTED_US)

    threads = [threading.Thread(target=run, args=(reporter,)) for reporter in reporters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    active = "SELECT count() FROM system.parts WHERE database = 'headrace' AND active"
    [[parts]] = sink.reader().query(active)[1]
    assert parts < 60
    assert stored(sink, "pipe, position, total_rows") == [[f"p{n}", "binlog.000001:109", 100] for n in range(2)]


def test_a_table_of_an_older_version_gets_the_columns_that_it_lacks(sink: ClickHouseSink) -> None:
    own = sink.own_tables()
    own.ensure(OwnTable("kept", (("a", "UInt8"),), ("a",)))
    own.insert(OwnTable("kept", (("a", "UInt8"),), ("a",)), [{"a": 1}])
    wider = OwnTable("kept", (("a", "UInt8"), ("b", "String")), ("a",))
    own.ensure(wider)
    own.insert(wider, [{"a": 2, "b": "x'\n\\"}])
    assert own.select(wider, ("a", "b"), order="a") == [[1, ""], [2, "x'\n\\"]]


def test_on_a_cluster_our_tables_are_the_same_on_every_host() -> None:
    scope = TargetScope(ClickHouseTarget("h"), ClickHouseOptions(cluster="c1"))
    table = OwnTable("positions", (("pipe", "String"),), ("pipe",))
    assert create_statements(table, scope) == [
        "CREATE DATABASE IF NOT EXISTS `headrace` ON CLUSTER `c1`",
        "CREATE TABLE IF NOT EXISTS `headrace`.`positions` ON CLUSTER `c1` (`pipe` String) ENGINE = ReplicatedReplacingMergeTree("
        "'/clickhouse/headrace/positions', '{shard}-{replica}') ORDER BY (`pipe`) SETTINGS old_parts_lifetime = 30",
        "ALTER TABLE `headrace`.`positions` ON CLUSTER `c1` ADD COLUMN IF NOT EXISTS `pipe` String",
    ]


def test_a_source_table_is_not_replicated_into_a_headrace_table(sink: ClickHouseSink) -> None:
    schema = TableSchema(TableName("headrace", "positions"), (Column("id", Kind.INT32, False),), ("id",))
    with pytest.raises(DefiniteError, match=r"headrace\.positions is a table that Headrace keeps for itself"):
        sink.prepare([schema])
