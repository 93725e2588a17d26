"""A clock that is set forward and back by an hour, of the machine that runs a pipe and of the source server: 0 differences.

Versions and positions come from the log, not from a clock. What does depend on a clock (heartbeats, the creation times of log files) is
checked, too. The monotonic clock of all processes is not changed, as when a real clock is set.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.faults.clock import Clock, ClockedServer
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import assert_equal, sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline, Run
from testkit.servers.accounts import Account
from testkit.servers.servers import execute, execute_in

HOUR_S = 3600
OFFSETS_S = (HOUR_S, -HOUR_S, 0)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "ch") as running:
        yield running


def heartbeat_age_s(sink: EmbeddedServer, clock: Clock) -> float:
    """The age of the pipe's last heartbeat by the pipe's clock."""
    with sink_client(sink.url) as client:
        [[seen]] = client.query("SELECT toUnixTimestamp64Micro(seen_at) FROM headrace.positions FINAL").result_rows
    return clock.now() - seen / 1e6


def await_batches(run: Run, pipeline: Pipeline, count: int) -> None:
    batch = pipeline.last_committed_batch() + count
    run.until(lambda: pipeline.last_committed_batch() >= batch)


@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)
def test_the_clock_of_a_pipe_without_spark_is_set(
    book: Logbook, sink: EmbeddedServer, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver, reader and writer share this process. They get the new time between two batches, and at a restart."""
    real_s, real_ns = time.time, time.time_ns
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    pipe = DrivenPipe(book, url_of(sink), tmp_path / "state").open()
    with sink_client(sink.url) as client:
        for number, offset_s in enumerate(OFFSETS_S, 10):
            monkeypatch.setattr(time, "time", lambda offset_s=offset_s: real_s() + offset_s)
            monkeypatch.setattr(time, "time_ns", lambda offset_s=offset_s: real_ns() + offset_s * 10**9)
            for _ in range(2):
                book.run("UPDATE t SET v = v + 1", f"REPLACE INTO t VALUES ({number}, 0)", f"DELETE FROM t WHERE id = {number - 1}")
                pipe.catch_up()
                assert_same(client, book, ["t"])
                assert abs(heartbeat_age_s(sink, clock)) < 30
                pipe = DrivenPipe(book, url_of(sink), tmp_path / "state").open()


# One server, whose clock is right. The other direction is tested on both.
@pytest.mark.slow(because="test_the_clock_of_a_pipe_without_spark_is_set, test_heartbeats_continue_after_the_clock_is_set")
@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)
@pytest.mark.timeout(600)
def test_the_clock_of_the_pipe_is_set(
    server: PrivateServer, database: str, replica_account: Account, sink: EmbeddedServer, clock: Clock, tmp_path: Path
) -> None:
    """Driver, workers and the source's process get the new time while they run, and another time at each restart."""
    target = url_of(sink)
    pipeline = Pipeline(replica_account.url(database), target, tmp_path / "state", environment=clock.python_environment)
    workload = Workload(server, database, 7, pause_s=0.1)
    workload.prepare()
    with workload, pipeline.running() as run:
        run.until(lambda: "snapshot: complete" in run.output)
        for offset_s in OFFSETS_S:
            clock.set(offset_s)
            await_batches(run, pipeline, 2)
            run.until(lambda: abs(heartbeat_age_s(sink, clock)) < 30, poll_s=1)
        assert run.terminate().code == 143, run.output
    for offset_s in OFFSETS_S[:2]:
        clock.set(offset_s)
        execute_in(server, database, "UPDATE accounts SET balance = balance + 1")
        done = pipeline.once()
        assert done.code == 0, done.output
    verified = pipeline.verify()
    assert verified.code == 0, verified.output
    with sink_client(sink.url) as client:
        assert assert_equal(client, server, database, TABLES, KEYS) > 500
    assert workload.transactions > 20


class ClockedSource:
    """A server with its own clock, and one pipe from it that is opened again for each step."""

    def __init__(self, server: ClockedServer, book: Logbook, sink: EmbeddedServer, state: Path) -> None:
        self.server, self.book, self._sink, self._state = server, book, sink, state

    def replicate(self) -> None:
        """Run the pipe: it must recognise the log, and end with the source's rows."""
        pipe = DrivenPipe(self.book, url_of(self._sink), self._state)
        pipe.open().catch_up()
        with sink_client(self._sink.url) as client:
            assert_same(client, self.book, ["t"])

    def change(self, number: int) -> None:
        self.book.run(
            "UPDATE t SET v = v + 1, at = NOW(6)", f"INSERT INTO t VALUES ({number}, 0, NOW(6))", f"DELETE FROM t WHERE id = {number - 2}"
        )

    def restart(self, clock: Clock, offset_s: int) -> None:
        """Stop the server and start it with another time."""
        self.book.connection.close()
        self.server.stop()
        clock.set(offset_s)
        self.server.start()
        self.book.connection.connect()

    def now(self) -> datetime:
        [(said,)] = self.book.fetch("SELECT SYSDATE(6)")
        return datetime.fromisoformat(str(said))


@pytest.fixture
def source(flavour: str, clock: Clock, sink: EmbeddedServer, tmp_path: Path) -> Iterator[ClockedSource]:
    server = ClockedServer(flavour, tmp_path / "server", clock)
    try:
        server.start()
        execute(server, "CREATE DATABASE d CHARACTER SET utf8mb4")
        with open_logbook(server, "d") as book:
            book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, at DATETIME(6))", "INSERT INTO t VALUES (1, 1, NOW(6)), (2, 2, NOW(6))")
            yield ClockedSource(server, book, sink, tmp_path / "state")
    finally:
        server.remove()


@pytest.mark.slow("mysql", because="test_the_clock_of_the_source_is_set[mariadb]")
@pytest.mark.timeout(600)
def test_the_clock_of_the_source_is_set(source: ClockedSource, clock: Clock) -> None:
    """Set the clock in the middle of a log file, and before a rotation, whose file is then older than the previous one."""
    source.replicate()
    number = 10
    for offset_s in OFFSETS_S:
        before = source.now()
        clock.set(offset_s)
        assert abs((source.now() - before).total_seconds()) > HOUR_S / 2
        for statement in ("SELECT 1", "FLUSH BINARY LOGS"):
            source.book.run(statement)
            number += 1
            source.change(number)
            source.replicate()
            # A later update of the same row wins at any time of the clock.
            source.change(number + 1)
            source.replicate()
            number += 1


@pytest.mark.slow(because="test_the_clock_of_the_source_is_set[mariadb]")
@pytest.mark.soak("mysql", because="the clock of the other server is set as well")
@pytest.mark.timeout(600)
def test_the_source_restarts_with_another_clock(source: ClockedSource, clock: Clock) -> None:
    """The log continues in a file that is older than the previous one."""
    source.replicate()
    for number, offset_s in ((10, HOUR_S), (20, -HOUR_S)):
        source.change(number)
        source.restart(clock, offset_s)
        source.replicate()
        source.change(number + 1)
        source.replicate()
