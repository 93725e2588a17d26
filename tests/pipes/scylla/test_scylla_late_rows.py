"""Rows that are written with timestamps in the past, on a real server: a pipe reads what is within its look-back window, reports what is
not, and both `resync` and `verify --repair` correct the copy. The server's SELECT is the reference."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.scylla.pipe import ScyllaPipe
from headrace.pipes.scylla.sink_factory import LogTarget, open_log_target
from headrace.pipes.scylla.snapshot_runner import SnapshotProgress
from headrace.pipes.scylla.tail import Tail
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.runtime.checkpoint import committed_offset
from headrace.service.status_collector import StatusCollector
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import UserSettings
from headrace.sinks.clickhouse.bookkeeping.dead_letters import ERRORS
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.captured_session import CapturedSession, capture
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.verify.result import TableResult, Verdict
from headrace.verify.scylla.verifier import pipe_position_of, verify_logged
from headrace.verify.watermark import PipePosition, Watermark
from testkit.machine.wait_condition import wait_until
from testkit.oracles.cell_views import selected, shown
from testkit.oracles.topics import read_topic
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.log_replay import LogReplay
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation

S = 1_000_000
DAY = 86_400
PATIENCE_S = 90


@dataclass
class Source:
    """A table whose log has a TTL of a day, and a pipe from it. Its generation of streams began three days ago."""

    session: CqlSession
    keyspace: str
    sink: CellSink
    state: Path
    view: StatusCollector = field(default_factory=StatusCollector)

    def __post_init__(self) -> None:
        create_tables(self.session, self.keyspace)
        began_ms = time.time_ns() // 1_000_000 - 3 * DAY * 1000
        add_generation(self.session, self.keyspace, make_generation(began_ms, 2, 2))
        self.session.execute(f"CREATE TABLE {self.keyspace}.t (p int, c int, v text, PRIMARY KEY (p, c))")
        self.captured: CapturedSession = capture(self.session, [str(self.name)], self.keyspace)
        self.choices = ScyllaOptions(
            confidence=0.5, window=0.2, again=2, look_back=20, audit=2, generations=self.keyspace, tablets=self.keyspace
        )

    @property
    def name(self) -> TableName:
        return TableName(self.keyspace, "t")

    def insert(self, key: int, age_s: float = 0) -> None:
        """Insert a row with a timestamp `age_s` in the past."""
        stamp = f" USING TIMESTAMP {time.time_ns() // 1000 - int(age_s * S)}" if age_s else ""
        self.captured.execute(f"INSERT INTO {self.keyspace}.t (p, c, v) VALUES ({key}, {key}, 'written {age_s} s late'){stamp}")

    def pipe(self, *, once: bool, snapshot: SnapshotMode = SnapshotMode.NONE, target: LogTarget | None = None) -> ScyllaPipe:
        settings = PipeSettings(Selection((str(self.name),)), self.state, once=once, snapshot=snapshot, patience=30)
        cells = LogTarget(self.sink, "clickhouse://there/", self.sink.sink.progress_store())
        return ScyllaPipe(self.session.address, self.choices, target or cells, settings, self.view)

    @contextmanager
    def running(self, snapshot: SnapshotMode = SnapshotMode.NONE, target: LogTarget | None = None) -> Iterator[None]:
        pipe, failures = self.pipe(once=False, snapshot=snapshot, target=target), []

        def run() -> None:
            try:
                pipe.run()
            except Exception as error:  # noqa: BLE001 (it is raised below)
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            pipe.stop()
            thread.join()
        assert not failures, failures

    def behind_s(self, read: str = "") -> float:
        """Return the age of the position up to which the log was read, or read again."""
        reached = (committed_offset(self.state / "checkpoint") or {}).get(f"{self.name}{read}")
        return time.time() - reached[1] / S if reached else float("inf")

    def rows(self) -> list[object]:
        table = describe(self.session, self.name)
        try:
            return list(shown(self.sink, table))
        except Exception:  # noqa: BLE001 (the view is not there before the pipe has begun)
            return []

    def assert_equal(self) -> None:
        table = describe(self.session, self.name)
        assert shown(self.sink, table) == selected(self.session, table)

    def letters(self) -> list[tuple[str, str, str]]:
        """Return state, position and reason of each late row in `headrace.errors`."""
        own = self.sink.sink.own_tables()
        found = own.select(ERRORS, ("state", "position", "reason", "table"), "1", "position") if own.exists(ERRORS) else []
        return [(state, position, reason) for state, position, reason, table in found if table == str(self.name)]


@pytest.fixture
def source(cql: CqlSession, keyspace: str, target: ClickHouseTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    without_spark(monkeypatch)
    return Source(cql, keyspace, CellSink(ClickHouseSink(target)), tmp_path / "state")


def test_reading_from_the_beginning_starts_at_the_first_row_for_any_ttl(source: Source) -> None:
    """New rows, and rows whose timestamps are older than the log's TTL: all are in the log, and all are read.

    The first window holds some of them: the pipe reads them about a second after they are written.
    """
    for key in range(16):
        source.insert(key, (2 * DAY + key, 3 * DAY - 40, 0)[key % 3])
    source.pipe(once=True).run()
    assert len(source.rows()) == 16
    source.assert_equal()
    tail = Tail(source.session.address, replace(source.choices, audit=0), Selection((str(source.name),)), oldest=True, once=True)
    keys = [json.loads(document)["key"]["p"] for document in tail.documents(threading.Event())]
    assert sorted(keys) == list(range(16)), "headrace tail --from-beginning shows each of them once"
    # A second run has nothing to report: all of them were read.
    source.pipe(once=True).run()
    assert source.view.progress().late_rows == 0


def test_a_running_pipe_reads_its_look_back_window_and_reports_later_rows(source: Source) -> None:
    source.insert(1)
    with source.running():
        wait_until(lambda: len(source.rows()) == 1, PATIENCE_S)
        # Each further read must have caught up: until then it also reads rows that arrive before its position.
        wait_until(lambda: source.behind_s() < 6 and source.behind_s(" again 3") < 60, PATIENCE_S)
        # Within the window: before the first further read and after it.
        source.insert(2, 8)
        source.insert(3, 14)
        wait_until(lambda: len(source.rows()) == 3, PATIENCE_S)
        # Beyond it: counted and located.
        source.insert(4, 3600)
        wait_until(lambda: source.view.progress().late_rows == 1, PATIENCE_S)
        assert len(source.rows()) == 3
        [(state, place, reason)] = source.letters()
        assert (state, place) == ("late", source.view.progress().late_place)
        assert place.startswith(f"log of {source.name}, stream 0x")
        assert re.search(r" 3(59|60)\d s later than their timestamps say", reason)
        # resync copies the table again, and the audits since do not count what it has copied.
        request_resync(StateDirectory(source.state, make=False), (str(source.name),))
        wait_until(lambda: len(source.rows()) == 4, PATIENCE_S)
        source.assert_equal()
        time.sleep(5)
        assert source.view.progress().late_rows == 0
        assert [state for state, _, _ in source.letters()] == ["superseded"]
    # A restart finds what arrived while the pipe was stopped, also what is older than the log's TTL.
    source.view = StatusCollector()
    source.insert(5, 2 * DAY)
    with source.running():
        wait_until(lambda: source.view.progress().late_rows == 1, PATIENCE_S)


def test_verify_repairs_what_arrived_too_late(source: Source) -> None:
    source.insert(1)
    with source.running(SnapshotMode.LOCK_FREE):
        wait_until(
            lambda: len(source.rows()) == 1 and SnapshotProgress(StateDirectory(source.state)).tables[source.name].is_complete, PATIENCE_S
        )
        source.insert(2, 3600)
        source.captured.execute(
            f"DELETE FROM {source.keyspace}.t USING TIMESTAMP {time.time_ns() // 1000 - 1800 * S} WHERE p = 1 AND c = 1"
        )
        source.captured.execute(
            f"UPDATE {source.keyspace}.t USING TIMESTAMP {time.time_ns() // 1000 - 1800 * S} SET v = 'x' WHERE p = 3 AND c = 3"
        )
        wait_until(lambda: source.view.progress().late_rows == 3, PATIENCE_S)
        pipe = source.pipe(once=True)._settings.pipe_name

        def stand() -> PipePosition[int]:
            stored = source.sink.sink.progress_store().progress(pipe)
            assert stored is not None
            return pipe_position_of(stored)

        def verify(repair: ScyllaOptions | None) -> TableResult:
            watermark = Watermark(pipe, stand, 30)
            [found] = verify_logged(source.session, source.sink, Selection((str(source.name),)), watermark, repair=repair)
            return found

        found = verify(None)
        assert found.verdict is Verdict.DIFFERENT
        found = verify(source.choices)
        assert (found.verdict, found.repaired) == (Verdict.EQUAL, 2)
        source.assert_equal()
        assert {state for state, _, _ in source.letters()} == {"done"}
        wait_until(lambda: source.view.progress().late_rows == 0, PATIENCE_S)


@pytest.mark.slow(because="test_targets_outside_of_clickhouse_get_late_rows_too[kafka], by the planner, reader and read times of a tail")
def test_tail_shows_a_row_once_however_often_the_log_is_read(source: Source) -> None:
    """Stdout and Kafka cannot retract a row: each row must be delivered by one read only."""
    stop = threading.Event()
    tail = Tail(source.session.address, replace(source.choices, audit=0), Selection((str(source.name),)))
    found: list[int] = []

    def look() -> None:
        found.extend(json.loads(document)["key"]["p"] for document in tail.documents(stop))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        time.sleep(3)
        for key in range(12):
            # In time, before the first read, between the reads, and within the window from before the start.
            source.insert(key, (0, 0.5, 1, 2, 3, 8)[key % 6])
            time.sleep(0.3)
        wait_until(lambda: len(set(found)) == 12, PATIENCE_S)
        time.sleep(22)
    finally:
        stop.set()
        thread.join()
    assert sorted(found) == list(range(12))


@pytest.mark.slow("cql", because="test_targets_outside_of_clickhouse_get_late_rows_too[kafka]; test_rows_of_a_snapshot_and_the_log_meet")
@pytest.mark.parametrize("kind", ["cql", "kafka"])
def test_targets_outside_of_clickhouse_get_late_rows_too(
    source: Source, cassandra: PrivateCassandra | GivenCluster, broker: PrivateBroker, kind: str
) -> None:
    """Rows within the look-back window arrive, once in a topic; those beyond it are counted; also across a restart."""
    if kind == "cql":
        other = LogReplay(source.session, cassandra.url(scheme="cql"), None, f"{source.keyspace}_to")
        address = cassandra.url(other.target, scheme="cql")
    else:
        address = broker.url()

    def keys() -> list[int]:
        if kind == "cql":
            try:
                return sorted(row[0] for row in source.session.execute(f"SELECT p FROM {other.target}.t"))
            except Exception:  # noqa: BLE001 (the table is not there before the pipe has begun)
                return []
        topic = f"headrace.{source.name}"
        if topic not in broker.admin().list_topics(timeout=20).topics:
            return []
        return (
            sorted(json.loads(kept.key or b"")["p"] for kept in read_topic(broker, topic))
            if topic in broker.admin().list_topics(timeout=20).topics
            else []
        )

    def check(late: tuple[int, ...], total: int, outside: int, counted: int) -> None:
        wait_until(lambda: source.behind_s() < 6 and source.behind_s(" again 3") < 60, PATIENCE_S)
        for number, age_s in enumerate((8, 14)):
            source.insert(late[number], age_s)
        source.insert(outside, 3600)
        wait_until(lambda: len(set(keys())) == total, PATIENCE_S)
        wait_until(lambda: source.view.progress().late_rows == counted, PATIENCE_S)

    with open_log_target(address, UserSettings(), source.state, "127.0.0.1") as target:
        source.insert(1)
        with source.running(target=target):
            wait_until(lambda: keys() == [1], PATIENCE_S)
            check((2, 3), 3, outside=4, counted=1)
        # A restart does not repeat rows, and keeps the count of late rows.
        source.view = StatusCollector()
        with source.running(target=target):
            source.insert(5)
            wait_until(lambda: 5 in keys(), PATIENCE_S)
            check((6, 7), 6, outside=8, counted=2)
            # Longer than the look-back window: every further read has passed all of these rows.
            time.sleep(22)
    assert keys() == [1, 2, 3, 5, 6, 7], "no row twice, none that is counted as late"
    if kind == "cql":
        query = "SELECT p, c, v, WRITETIME(v) FROM {}.t"
        there = {tuple(row) for row in source.session.execute(query.format(other.target))}
        here = {tuple(row) for row in source.session.execute(query.format(source.keyspace)) if row[0] not in (4, 8)}
        assert there == here
