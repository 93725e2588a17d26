"""A pipe from log tables on a real server into a real ClickHouse, batch by batch in this process: altered, added and dropped tables, and
errors. The view is compared with the server's SELECT."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession, connect
from headrace.cql.timeuuid import micros
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.scylla.pipe import ScyllaPipe
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.state.event_skips import ASKED, PASSED, RECORD, SKIPPED, request_skip, skipped_events
from headrace.retry import retrying
from headrace.runtime.checkpoint import committed_offset
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import connect as clickhouse
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.captured_session import CapturedSession, capture
from headrace.sources.scylla.capture.stream_ids import Generations, from_description
from headrace.sources.scylla.generations import ServerCatalog
from headrace.sources.scylla.log_tables import check_tables_readable
from headrace.sources.scylla.position import LogPosition
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.transforms.options import Transforms
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.local_pipeline import without_spark
from testkit.servers.cassandra import PrivateCassandra
from testkit.servers.scylla_tables import add_generation, add_tablet_generation, create_tables, make_generation

CHOICES = ScyllaOptions(confidence=0.5, window=0.2, streams_per_query=2)


@dataclass
class Source:
    """A keyspace with generations of streams, and the pipe from it."""

    session: CqlSession
    keyspace: str
    sink: CellSink
    state: Path
    choices: ScyllaOptions = field(init=False)
    snapshot: SnapshotMode = SnapshotMode.NONE
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.choices = replace(CHOICES, generations=self.keyspace, tablets=self.keyspace)
        create_tables(self.session, self.keyspace)
        self.new_generation(2, 2, age_s=20)

    def new_generation(self, ranges: int, streams: int, age_s: int = 0) -> None:
        add_generation(self.session, self.keyspace, make_generation(time.time_ns() // 1_000_000 - age_s * 1000, ranges, streams))

    def create(self, name: str, columns: str) -> CapturedSession:
        """A table with a log, and a session that writes both."""
        self.session.execute(f"CREATE TABLE {self.keyspace}.{name} ({columns})")
        return self.captured(name)

    def captured(self, *names: str) -> CapturedSession:
        return capture(self.session, [f"{self.keyspace}.{name}" for name in names], self.keyspace)

    def pipe(self, *, start_at: str = "", once: bool = True) -> ScyllaPipe:
        tables, left_out = (tuple(f"{self.keyspace}.{glob}" for glob in globs) for globs in (self.include, ("cdc_*", *self.exclude)))
        settings = PipeSettings(Selection(tables, left_out), self.state, once=once, start_at=start_at, snapshot=self.snapshot, patience=30)
        target = LogTarget(self.sink, "clickhouse://there/", self.sink.sink.progress_store())
        return ScyllaPipe(self.session.address, self.choices, target, settings, LogView())

    def run(self, **more: Any) -> None:
        self.pipe(**more).run()

    @contextmanager
    def running(self) -> Iterator[list[Exception]]:
        """Run the pipe in a thread during the block; return its errors."""
        pipe, failures = self.pipe(once=False), []

        def run() -> None:
            try:
                pipe.run()
            except Exception as error:  # noqa: BLE001 (it is raised where the test waits)
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield failures
        finally:
            pipe.stop()
            thread.join()
        assert not failures, failures

    def await_rows(self, name: str, rows: int, failures: list[Exception]) -> None:
        """Wait until the view of a table shows `rows` rows."""
        table = describe(self.session, TableName(self.keyspace, name))
        deadline = time.monotonic() + 90
        while not failures and time.monotonic() < deadline:
            if self.is_known(name) and len(shown(self.sink, table)) >= rows:
                return
            time.sleep(0.1)
        raise AssertionError(f"{name} does not show {rows} rows: {failures}")

    def is_known(self, name: str) -> bool:
        """Whether the pipe has read the table."""
        return f"{self.keyspace}.{name}" in (committed_offset(self.state / "checkpoint") or {})

    def assert_equal(self, *names: str) -> int:
        """Check that the views equal SELECT; return the number of rows."""
        rows = 0
        for name in names:
            table = describe(self.session, TableName(self.keyspace, name))
            there, here = selected(self.session, table), shown(self.sink, table)
            assert here == there, name
            rows += len(there)
        return rows


@pytest.fixture
def source(cql: CqlSession, keyspace: str, target: ClickHouseTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    without_spark(monkeypatch)
    return Source(cql, keyspace, CellSink(ClickHouseSink(target)), tmp_path / "state")


def test_alterations_generations_and_new_tables(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    ks = source.keyspace
    source.session.execute(f"CREATE TYPE {ks}.ut (a int, b text)")
    captured = source.create("t", "p int, c int, s text static, v int, m map<int, text>, u ut, PRIMARY KEY (p, c)")
    for p in range(5):
        captured.execute(f"INSERT INTO {ks}.t (p, c, s, v, m, u) VALUES ({p}, 1, 's', {p}, {{1: 'a', 2: 'b'}}, {{a: 1, b: 'x'}})")
    source.run()
    assert source.assert_equal("t") == 5
    # The TTL of the log must be known: a pipe that was stopped for longer would lose rows silently.
    assert check_tables_readable(source.session, [TableName(ks, "t")], source.choices)[TableName(ks, "t")].ttl == CdcOptions().ttl > 0

    # Columns and fields are added, and the generation of streams changes.
    captured.execute(f"ALTER TABLE {ks}.t ADD w set<text>")
    captured.execute(f"ALTER TYPE {ks}.ut ADD d int")
    source.new_generation(3, 1)
    captured = source.captured("t")
    captured.execute(f"UPDATE {ks}.t SET w = {{'new'}}, u.d = 7, m[2] = null WHERE p = 1 AND c = 1")
    captured.execute(f"INSERT INTO {ks}.t (p, c, u) VALUES (9, 9, {{a: 1, d: 9}})")
    captured.execute(f"DELETE FROM {ks}.t WHERE p = 2 AND c > 0")
    with caplog.at_level(logging.INFO, "headrace"):
        source.run()
    # (One partition has only static columns left.)
    assert source.assert_equal("t") == 6
    assert f"table {ks}.t: column w added (set<text>), the user type in column u was altered" in caplog.text
    [place] = LogPosition.from_json(committed_offset(source.state / "checkpoint") or {}).places.values()
    assert place.generation == max(ServerCatalog(source.session, source.choices).generations(TableName(ks, "t")))

    # A column is dropped and added again, empty; a table with rows is added.
    captured.execute(f"ALTER TABLE {ks}.t DROP v")
    captured.execute(f"UPDATE {ks}.t SET w = w + {{'more'}} WHERE p = 3 AND c = 1")
    source.run()
    source.assert_equal("t")
    captured.execute(f"ALTER TABLE {ks}.t ADD v int")
    captured.execute(f"UPDATE {ks}.t SET v = 70 WHERE p = 3 AND c = 1")
    other = source.create("other", "k text PRIMARY KEY, l list<int>")
    other.execute(f"INSERT INTO {ks}.other (k, l) VALUES ('k', [1, 2])")
    source.run()
    assert source.assert_equal("t", "other") == 7


def test_repeated_alterations_of_a_running_pipe(source: Source) -> None:
    ks = source.keyspace
    source.session.execute(f"CREATE TYPE {ks}.ut (f int)")
    captured = source.create("t", "p int, c int, v int, u ut, PRIMARY KEY (p, c)")
    captured.execute(f"INSERT INTO {ks}.t (p, c, v) VALUES (0, 0, 0)")
    with source.running() as failures:
        for number in range(4):
            captured.execute(f"ALTER TABLE {ks}.t ADD x{number} map<int, text>")
            captured.execute(f"UPDATE {ks}.t SET x{number} = {{1: 'a'}}, v = {number} WHERE p = {number} AND c = 1")
            captured.execute(f"ALTER TYPE {ks}.ut ADD f{number} text")
            time.sleep(0.4)
            captured.execute(f"UPDATE {ks}.t SET x{number}[2] = 'b', u.f{number} = 'field' WHERE p = {number} AND c = 1")
            if number % 2:
                # Dropped while windows with its values may still be read.
                captured.execute(f"ALTER TABLE {ks}.t DROP x{number}")
        # A new table is added while the pipe runs.
        source.create("late", "k int PRIMARY KEY, v text").execute(f"INSERT INTO {ks}.late (k, v) VALUES (1, 'x')")
        source.await_rows("late", 1, failures)
    source.run()
    assert source.assert_equal("t", "late") == 6


def test_a_ttl_ends_while_the_log_is_idle(source: Source) -> None:
    """Merged rows are merged again without a change of the table."""
    table = source.create("t", "p int PRIMARY KEY, v int")
    with source.running() as failures:
        table.execute(f"INSERT INTO {source.keyspace}.t (p, v) VALUES (1, 1) USING TTL 10")
        source.await_rows("t", 1, failures)
        deadline = time.monotonic() + 60
        while (
            not failures and time.monotonic() < deadline and shown(source.sink, describe(source.session, TableName(source.keyspace, "t")))
        ):
            time.sleep(0.2)
    assert source.assert_equal("t") == 0


def test_transforms_and_other_ones_at_the_next_start(source: Source) -> None:
    """The rows are filled again from their cells; nothing is read again."""
    writer = source.create("t", "p int PRIMARY KEY, email text, secret text")
    writer.execute(f"INSERT INTO {source.keyspace}.t (p, email, secret) VALUES (1, 'anna@example.com', 'x')")
    plain = source.sink
    name = f"{source.keyspace}.t"
    for options, query, expected in (
        ({"mask": (("email", "email"),), "drop": ("secret",)}, "SELECT * FROM {}", [(1, "a***@example.com")]),
        ({"rename": (("email", "mail"),)}, "SELECT mail, secret FROM {} WHERE p = 1", [("anna@example.com", "x")]),
        ({}, "SELECT email, secret FROM {} WHERE p = 1", [("anna@example.com", "x")]),
    ):
        source.sink = replace(plain, transforms=Transforms(((name, tuple(options.items())),)))
        source.run()
        table = describe(source.session, TableName(source.keyspace, "t"))
        found = clickhouse(plain.sink.target).client.query(query.format(plain.locations(table).view)).result_rows
        assert list(found) == expected
    source.assert_equal("t")


def test_late_rows_are_written_by_the_second_read(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    ks = source.keyspace
    source.choices = replace(source.choices, again=10, log_ttl=86400)
    captured = source.create("t", "k int PRIMARY KEY, v text")
    captured.execute(f"INSERT INTO {ks}.t (k, v) VALUES (1, 'in time')")
    with source.running() as failures:
        source.await_rows("t", 1, failures)
        # From a client with a slow clock: the log was read beyond that time.
        slow = time.time_ns() // 1000 - 5_000_000
        assert slow < (committed_offset(source.state / "checkpoint") or {})[f"{ks}.t"][1]
        captured.execute(f"INSERT INTO {ks}.t (k, v) VALUES (2, 'late') USING TIMESTAMP {slow}")
        source.await_rows("t", 2, failures)
    source.assert_equal("t")
    assert "1 rows arrived later than scylla.confidence allows" in caplog.text


def test_a_server_that_is_killed_and_comes_back(
    fresh_cassandra: Callable[..., PrivateCassandra], target: ClickHouseTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    server = fresh_cassandra()
    with connect(server.address()) as session:
        session.execute("CREATE KEYSPACE away WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        source = Source(session, "away", CellSink(ClickHouseSink(target)), tmp_path / "state")
        captured = source.create("t", "k int PRIMARY KEY, m map<int, text>")
        captured.execute("INSERT INTO away.t (k, m) VALUES (1, {1: 'a'})")
        with source.running() as failures:
            source.await_rows("t", 1, failures)
            server.kill()
            time.sleep(1)
            server.start()
            captured = retrying(lambda: source.captured("t"))
            captured.execute("UPDATE away.t SET m[2] = 'b' WHERE k = 1")
            captured.execute("INSERT INTO away.t (k, m) VALUES (2, {1: 'c'})")
            source.await_rows("t", 2, failures)
        assert source.assert_equal("t") == 2


def test_a_table_with_tablets_and_one_without(source: Source) -> None:
    ks = source.keyspace
    tablets = make_generation(time.time_ns() // 1_000_000, 4, 1)
    add_tablet_generation(source.session, ks, TableName(ks, "tab"), tablets)
    vnodes = source.create("plain", "k int PRIMARY KEY, v int")
    source.session.execute(f"CREATE TABLE {ks}.tab (k int PRIMARY KEY, v int)")
    streams = Generations((from_description(tablets.time, [(end, list(found)) for end, found in tablets.ranges]),))
    other = capture(source.session, [f"{ks}.tab"], streams)
    for k in range(10):
        vnodes.execute(f"INSERT INTO {ks}.plain (k, v) VALUES ({k}, {k})")
        other.execute(f"INSERT INTO {ks}.tab (k, v) VALUES ({k}, {k})")
    source.run()
    assert source.assert_equal("plain", "tab") == 20
    used = {row[0] for row in source.session.execute(f'SELECT DISTINCT "cdc$stream_id" FROM {ks}.tab_scylla_cdc_log')}
    assert used <= set(tablets.streams)
    assert len(used) > 1


def test_an_empty_keyspace_is_waited_for(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.run()
    assert f"matches {source.keyspace}.*; a table that is created later will be replicated" in caplog.text
    with source.running() as failures:
        time.sleep(1.5)
        written = source.create("late", "k int PRIMARY KEY, v int")
        for k in range(10):
            written.execute(f"INSERT INTO {source.keyspace}.late (k, v) VALUES ({k}, {k})")
        source.await_rows("late", 10, failures)
    assert source.assert_equal("late") == 10
    # The remedy for a dropped table that was the only one.
    source.session.execute(f"DROP TABLE {source.keyspace}.late")
    with pytest.raises(DefiniteError, match="no longer exists") as caught:
        source.run()
    assert f"--exclude {source.keyspace}.late" in caught.value.hint
    source.exclude = ("late",)
    source.run()


def test_errors_at_the_start_of_a_pipe(source: Source) -> None:
    ks = source.keyspace
    source.include = ("nothing",)
    with pytest.raises(DefiniteError, match=f"the source has no table {ks}.nothing"):
        source.run()
    source.include = ("*",)
    source.session.execute(f"CREATE TABLE {ks}.bare (k int PRIMARY KEY)")
    with pytest.raises(DefiniteError, match=f"the table {ks}.bare has no CDC log") as raised:
        source.run()
    assert f"ALTER TABLE {ks}.bare WITH cdc = {{'enabled': true}}" in raised.value.hint
    source.create("t", "k int PRIMARY KEY")
    with pytest.raises(DefiniteError, match="is no place in a log"):
        source.run(start_at="binlog.000001:4")
    source.snapshot = SnapshotMode.CONSISTENT
    with pytest.raises(DefiniteError, match="no moment at which all tables"):
        source.run()
    source.snapshot, source.include = SnapshotMode.NONE, ("t", "bare")
    with pytest.raises(DefiniteError, match=f"the table {ks}.bare has no CDC log"):
        source.run()
    source.include = ("*",)
    source.choices = replace(source.choices, log_ttl=3600)
    with pytest.raises(DefiniteError, match=r"keeps its rows for 3600 s: those that were written before .* have expired"):
        source.run(start_at="2020-01-01T00:00:00Z")
    source.run(start_at="now")
    # The same command after those rows have expired: a new table is read from its first row on.
    source.create("late", "k int PRIMARY KEY").execute(f"INSERT INTO {ks}.late (k) VALUES (1)")
    source.run(start_at="2020-01-01T00:00:00Z")
    assert source.assert_equal("late") == 1
    stranger = replace(source, include=("t",))
    stranger.sink = source.sink
    pipe = stranger.pipe()
    pipe._sink_name = "clickhouse://elsewhere/"
    with pytest.raises(DefiniteError, match="the state belongs to"):
        pipe.run()


def test_what_halts_a_pipe_that_has_begun(source: Source) -> None:
    ks = source.keyspace
    for name in ("dropped", "silent", "remade", "altered", "kept"):
        source.create(name, "k int PRIMARY KEY, v text").execute(f"INSERT INTO {ks}.{name} (k, v) VALUES (1, 'x')")
    source.run()
    assert source.assert_equal("dropped", "silent", "remade", "altered", "kept") == 5
    for statement, message in (
        (f"DROP TABLE {ks}.dropped", f"the table {ks}.dropped no longer exists"),
        (f"DROP TABLE {ks}.silent_scylla_cdc_log", f"the table {ks}.silent has no CDC log"),
        (f'ALTER TABLE {ks}.altered_scylla_cdc_log DROP "cdc$deleted_v"', "was altered: its column cdc\\$deleted_v should be boolean"),
    ):
        source.session.execute(statement)
        with pytest.raises(DefiniteError, match=message):
            source.run()
        source.exclude = (*source.exclude, message.split(f"{ks}.")[1].split(" ")[0] if f"{ks}." in message else "altered")
    for table in ("remade", "remade_scylla_cdc_log"):
        source.session.execute(f"DROP TABLE {ks}.{table}")
    source.create("remade", "k int PRIMARY KEY, v text")
    with pytest.raises(DefiniteError, match=f"the table {ks}.remade was dropped and recreated"):
        source.run()
    source.exclude = (*source.exclude, "remade")
    source.captured("kept").execute(f"INSERT INTO {ks}.kept (k, v) VALUES (2, 'y')")
    source.run()
    assert source.assert_equal("kept") == 2
    # An unknown operation is not skipped.
    stream = source.session.execute(f'SELECT "cdc$stream_id" FROM {ks}.kept_scylla_cdc_log LIMIT 1')[0][0]
    source.session.execute(
        f'INSERT INTO {ks}.kept_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$end_of_batch") '
        "VALUES (%s, now(), 0, 42, true)",
        (stream,),
    )
    strange = f'SELECT "cdc$time" FROM {ks}.kept_scylla_cdc_log WHERE "cdc$operation" = 42 ALLOW FILTERING'
    [(written,)] = source.session.execute(strange)
    with pytest.raises(DefiniteError, match="operation 42, which Headrace does not know"):
        source.run()
    assert LogPosition.from_json(committed_offset(source.state / "checkpoint") or {}).reached < micros(written), (
        "the batch is not committed"
    )
    # The failed batch continues without the table, as the error's hint says.
    source.create("other", "k int PRIMARY KEY, v text").execute(f"INSERT INTO {ks}.other (k, v) VALUES (1, 'z')")
    source.exclude = (*source.exclude, "kept")
    source.run()
    assert source.assert_equal("other") == 1


def test_batches_that_are_left_out_by_request(source: Source) -> None:
    """A row with an unknown operation and one with a date outside of ClickHouse's range: each is named, skipped and recorded; the others
    arrive."""
    ks = source.keyspace
    table = source.create("t", "k int PRIMARY KEY, v text, d date")
    table.execute(f"INSERT INTO {ks}.t (k, v) VALUES (1, 'before')")
    source.run()
    [(stream,)] = source.session.execute(f'SELECT "cdc$stream_id" FROM {ks}.t_scylla_cdc_log LIMIT 1')
    source.session.execute(
        f'INSERT INTO {ks}.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$end_of_batch") '
        "VALUES (%s, now(), 0, 42, true)",
        (stream,),
    )
    table.execute(f"INSERT INTO {ks}.t (k, v, d) VALUES (2, 'far', 2220000000)")
    table.execute(f"INSERT INTO {ks}.t (k, v, d) VALUES (3, 'behind', '2020-01-01')")
    for reason in ("operation 42", "is not one that ClickHouse holds"):
        with pytest.raises(DefiniteError, match=reason) as raised:
            source.run()
        assert raised.value.event == raised.value.place.removesuffix(", column d")
        request_skip(source.state, raised.value.event)
    source.run()
    assert [row["k"] for row in shown(source.sink, describe(source.session, TableName(ks, "t")))] == [1, 3]
    lines = [json.loads(line) for line in (source.state / RECORD).read_text().splitlines()]
    assert [line["what"] for line in lines if line["what"] != PASSED] == [ASKED, ASKED, SKIPPED, SKIPPED]
    assert skipped_events(source.state) == 2
    # No other row is skipped for them later.
    table.execute(f"INSERT INTO {ks}.t (k, v) VALUES (4, 'after')")
    source.run()
    assert len(shown(source.sink, describe(source.session, TableName(ks, "t")))) == 3
