"""A history with a column for deletions instead of operations: an interrupted snapshot takes none of the stream's changes away.

The oracle is the list of statements that the test has run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.pipes.mysql.stream_runner import StreamRunner
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from headrace.sinks.clickhouse.sink import ClickHouseTableStore
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.driven_pipe import Crash, DrivenPipe, crash_at


@pytest.fixture
def clickhouse(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "clickhouse") as running:
        yield running


@pytest.fixture
def client(clickhouse: EmbeddedServer) -> Iterator[Client]:
    with sink_client(clickhouse.url) as found:
        yield found


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    with open_logbook(server, database) as found:
        yield found


@contextmanager
def failing_after_send() -> Iterator[None]:
    """Let an attempt fail when its rows are in the sink."""
    real = ClickHouseWriter._send

    def call(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        raise DefiniteError("unreachable")

    with mock.patch.object(ClickHouseWriter, "_send", call):
        yield


def test_changes_that_the_stream_wrote_stay(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    database, state = book.database, tmp_path / "state"
    choices = ClickHouseOptions(tables=(("*.t", (("engine", TargetEngine.HISTORY),)),))

    def piped() -> DrivenPipe:
        return DrivenPipe(book, f"clickhouse://default@127.0.0.1:{clickhouse.port}", state, choices=choices)

    def images() -> list[tuple[int, int]]:
        return sorted(client.query(f"SELECT id, v FROM `{database}`.t").result_rows)

    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    client.command(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    client.command(f"CREATE TABLE `{database}`.t (id Int32, v Int32, _version UInt64, _sign Int8) ENGINE = MergeTree ORDER BY id")
    pipe = piped().open()
    assert images() == [(1, 10), (2, 20)]

    # The stream writes a change after the resync is planned, and before its first attempt.
    request_resync(StateDirectory(state), (f"{database}.t",))
    pipe.parts.resyncs.plan_pending(nullcontext)
    book.run("INSERT INTO t VALUES (3, 30)")
    pipe._stream()
    # Each attempt leaves its rows, and the next one deletes those and nothing else.
    with pytest.raises(Crash), crash_at([(ClickHouseWriter, "_send")], 0, after=True):
        pipe._copy()
    assert images().count((3, 30)) == 2
    with pytest.raises(Crash), crash_at([(ClickHouseWriter, "_send")], 0, after=True):
        piped().open()
    pipe = piped().open()
    assert images() == [(1, 10), (1, 10), (2, 20), (2, 20), (3, 30), (3, 30)]
    book.run("UPDATE t SET v = 11 WHERE id = 1")
    pipe.catch_up()
    assert images().count((1, 11)) == 1

    # The process is killed during an attempt, after Spark has planned a batch that it could not start.
    before = images()
    request_resync(StateDirectory(state), (f"{database}.t",))
    pipe.parts.resyncs.plan_pending(nullcontext)
    with pytest.raises(Crash), crash_at([(ClickHouseWriter, "_send")], 0, after=True):
        pipe._copy()
    book.run("UPDATE t SET v = 21 WHERE id = 2")
    with pytest.raises(Crash), crash_at([(StreamRunner, "_task")], 0, after=False):
        pipe._stream()
    # The next start fails before it deletes anything, and the one after it during its own attempt.
    unreachable = mock.patch.object(ClickHouseTableStore, "discard_partial_snapshot", side_effect=DefiniteError("unreachable"))
    with pytest.raises(DefiniteError, match="unreachable"), unreachable:
        piped().open()
    with pytest.raises(DefiniteError, match="unreachable"), failing_after_send():
        piped().open()
    pipe = piped().open()
    pipe.catch_up()
    assert images() == sorted([*before, (1, 11), (2, 21), (3, 30)])
    book.run("UPDATE t SET v = 12 WHERE id = 1")
    pipe.catch_up()

    # The stream continues after an attempt: no column distinguishes its changes from the attempt's rows.
    request_resync(StateDirectory(state), (f"{database}.t",))
    pipe.parts.resyncs.plan_pending(nullcontext)
    with pytest.raises(DefiniteError, match="unreachable"), failing_after_send():
        pipe._copy()
    book.run("INSERT INTO t VALUES (4, 40)")
    pipe._stream()
    before = images()
    with pytest.raises(DefiniteError, match="no column tells them apart: it has no operation") as caught:
        piped().open()
    assert images() == before
    statement = re.search(r"\((ALTER TABLE .* DELETE WHERE [^)]*)\)", caught.value.hint)
    assert statement is not None
    client.command(statement[1], settings={"mutations_sync": 2})
    pipe = piped().open()
    pipe.catch_up()
    found = images()
    assert {one: found.count(one) for one in ((1, 12), (2, 21), (3, 30), (4, 40))} == {(1, 12): 2, (2, 21): 2, (3, 30): 4, (4, 40): 1}
