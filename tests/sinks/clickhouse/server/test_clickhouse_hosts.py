"""Several hosts, and hosts that refuse for now: on real servers, with real faults."""

from __future__ import annotations

import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.retry import WaitState, current_wait, retrying, use_wait_state
from headrace.sinks.clickhouse.maintenance.table_setup import check_same, check_shared
from headrace.sinks.clickhouse.server.client import connect, disconnect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target, same_sink
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.write import writer as writing
from testkit.pipelines.embedded_access import PASSWORD, target_of

SCHEMA = TableSchema(TableName("shop", "t"), (Column("id", Kind.INT32, False), Column("v", Kind.STRING)), ("id",))
LOOPBACK = "127.0.0.1"


def block_of(*ids: int, version: int = 1) -> ChangeBlock:
    rows = len(ids)
    images = pa.record_batch([pa.array(ids, pa.int32()), pa.array(["x"] * rows)], schema=SCHEMA.arrow_schema)
    ops, versions = pa.array([Op.INSERT] * rows, pa.uint8()), pa.array([version] * rows, pa.uint64())
    return ChangeBlock(SCHEMA, images, ops, versions, pa.array([0] * rows, pa.int64()))


def ids_at(target: ClickHouseTarget) -> list[int]:
    return [row[0] for row in ClickHouseSink(target).reader().query(f"SELECT id FROM {target.database}.t FINAL ORDER BY id")[1]]


@pytest.fixture
def sink(sink: ClickHouseSink) -> ClickHouseSink:
    sink.prepare([SCHEMA])
    return sink


def unused_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def test_the_next_host_is_taken_at_once_and_the_first_again_when_it_is_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two independent servers show which of them was written to; the check that forbids this is disabled."""
    first, second = EmbeddedServer(tmp_path / "1").start(), EmbeddedServer(tmp_path / "2").start()
    target = target_of(first, database="d", others=((LOOPBACK, second.port),))
    writer, waited = ClickHouseSink(target).writer(), []

    def write(*ids: int) -> None:
        retrying(lambda: writer.write(block_of(*ids)), deadline_s=30, sleep=waited.append)

    try:
        for index in range(2):
            ClickHouseSink(target.at(index)).prepare([SCHEMA])
        write(1)
        first.stop()
        write(2)
        write(3)
        assert waited == [0.0]
        assert f"{LOOPBACK}:{first.port}/d" in caplog.text
        assert "going on at the next host" in caplog.text
        first = EmbeddedServer(tmp_path / "1", port=first.port).start()
        write(4)
        second.stop()
        write(5)
        assert waited == [0.0, 0.0]
        assert ids_at(target.at(0)) == [1, 5]
        second = EmbeddedServer(tmp_path / "2", port=second.port).start()
        assert ids_at(target.at(1)) == [2, 3, 4]
    finally:
        for server in (first, second):
            server.stop()
        for one in (target, target.at(0), target.at(1)):
            disconnect(one)


def test_the_client_waits_only_after_every_host_has_failed(clickhouse: EmbeddedServer) -> None:
    ports = [unused_port() for _ in range(3)]
    target = ClickHouseTarget(LOOPBACK, ports[0], password=PASSWORD, others=tuple((LOOPBACK, port) for port in ports[1:]))
    with pytest.raises(TransientError, match="cannot be reached") as caught:
        connect(target)
    assert not caught.value.elsewhere
    answering = replace(target, others=(*target.others, (LOOPBACK, clickhouse.port)))
    assert connect(answering).client.query("SELECT 1").result_rows == [(1,)]
    disconnect(answering)


def test_a_definite_error_is_not_taken_to_another_host(tmp_path: Path, clickhouse: EmbeddedServer) -> None:
    with EmbeddedServer(tmp_path / "data", password="secret") as closed:
        target = ClickHouseTarget(LOOPBACK, closed.port, password="wrong", others=((LOOPBACK, clickhouse.port),))
        with pytest.raises(DefiniteError) as caught:
            connect(target)
        assert f":{closed.port}/" in caught.value.place
        assert str(clickhouse.port) not in caught.value.place


def test_an_unknown_name_among_several_hosts_is_a_host_that_is_down(clickhouse: EmbeddedServer) -> None:
    target = ClickHouseTarget("no-such-host.invalid", 1, password=PASSWORD, others=((LOOPBACK, clickhouse.port),))
    assert connect(target).client.query("SELECT 1").result_rows == [(1,)]
    disconnect(target)


def test_threads_that_fail_together_resume_together(tmp_path: Path, clickhouse: EmbeddedServer) -> None:
    database = f"d_{secrets.token_hex(4)}"
    gone = EmbeddedServer(tmp_path / "data").start()
    target = target_of(gone, database=database, others=((LOOPBACK, clickhouse.port),))
    for index in range(2):
        ClickHouseSink(target.at(index)).prepare([SCHEMA])
    writers = [ClickHouseSink(target).writer() for _ in range(8)]
    for number, writer in enumerate(writers):
        writer.write(block_of(number))
    gone.stop()
    failures: list[TransientError] = []

    def run(number: int) -> None:
        try:
            retrying(lambda: writers[number].write(block_of(100 + number)), deadline_s=20)
        except TransientError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ids_at(target.at(1)) == [100 + number for number in range(8)]
    disconnect(target)


def test_tables_that_each_host_has_for_itself_are_refused(clickhouse: EmbeddedServer) -> None:
    target = target_of(clickhouse, database=f"d_{secrets.token_hex(4)}", others=((LOOPBACK, unused_port()),))
    with pytest.raises(DefiniteError, match="each of the 2 hosts would have for itself") as caught:
        ClickHouseSink(target).prepare([SCHEMA])
    assert "cluster" in caught.value.hint
    ClickHouseSink(target.at(0)).prepare([SCHEMA])
    with pytest.raises(DefiniteError, match="is ReplacingMergeTree, which each of the 2 hosts"):
        ClickHouseSink(target).prepare([SCHEMA])
    disconnect(target)


def test_which_engines_are_the_same_everywhere() -> None:
    target = parse_target("clickhouse://a,b/", {})
    shared = ["ReplicatedReplacingMergeTree('/p', '{replica}', v)", "SharedMergeTree('/p', 'r')", "Distributed('c', 'd', 't', rand())"]
    check_shared(target, {("d", str(n)): engine for n, engine in enumerate(shared)})
    with pytest.raises(DefiniteError, match=r"d\.t is MergeTree, which"):
        check_shared(target, {("d", "t"): "MergeTree ORDER BY id"})
    check_same(target, [("a", {("d", "t"): "/p/1"}), ("b", {("d", "t"): "/p/1"})])
    with pytest.raises(DefiniteError, match=r"not the same table on a \(/p/1\) and on b \(/p/2\)") as caught:
        check_same(target, [("a", {("d", "t"): "/p/1"}), ("b", {("d", "t"): "/p/2"})])
    assert "Distributed" in caught.value.hint


def test_a_state_resumes_with_another_host_of_the_same_cluster() -> None:
    assert same_sink("clickhouse://u@a:1,b:2/d", "clickhouse://v@b:2,c:3/d")
    assert not same_sink("clickhouse://u@a:1/d", "clickhouse://u@b:1/d")
    assert not same_sink("clickhouse://u@a:1/d", "clickhouse://u@a:1/e")
    assert not same_sink("chdb:here", "chdb:there")
    assert same_sink("chdb:here", "chdb:here")


Repair = Callable[[], None]


def _crowded(sink: ClickHouseSink, _: pytest.MonkeyPatch) -> Repair:
    table, query = f"{sink.target.database}.t", sink.reader().query
    query(f"SYSTEM STOP MERGES {table}")
    sink.writer().write(block_of(0))
    query(f"ALTER TABLE {table} MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1")
    return lambda: query(f"ALTER TABLE {table} RESET SETTING parts_to_throw_insert, parts_to_delay_insert") and None


def _watched(sink: ClickHouseSink, expression: str) -> None:
    """Make every insert compute something."""
    database, query = sink.target.database, sink.reader().query
    query(f"CREATE TABLE {database}.seen (n UInt64) ENGINE = MergeTree ORDER BY n")
    query(f"CREATE MATERIALIZED VIEW {database}.watch TO {database}.seen AS SELECT {expression} AS n FROM {database}.t")


def _short_of_memory(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> Repair:
    _watched(sink, "(SELECT length(groupArray(number)) FROM numbers(3000000))")
    # As in a user's profile on a server.
    monkeypatch.setattr(writing, "INSERT_SETTINGS", {**writing.INSERT_SETTINGS, "max_memory_usage": "5000000"})
    return monkeypatch.undo


def _slow(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> Repair:
    _watched(sink, "sleepEachRow(0.3)")
    monkeypatch.setattr(writing, "INSERT_SETTINGS", {**writing.INSERT_SETTINGS, "max_execution_time": "0.2"})
    return monkeypatch.undo


@pytest.mark.parametrize(("fault", "code"), [(_crowded, 252), (_short_of_memory, 241), (_slow, 159)], ids=["parts", "memory", "time"])
def test_a_server_that_refuses_for_now_is_waited_for_and_reported(
    sink: ClickHouseSink,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[ClickHouseSink, pytest.MonkeyPatch], Repair],
    code: int,
) -> None:
    repair, tries = fault(sink, monkeypatch), itertools.count(1)

    def write() -> None:
        if next(tries) == 3:
            repair()
        # A writer of a new task each time, as after a restart.
        sink.writer().write(block_of(1, 2, 3))

    with caplog.at_level(logging.WARNING):
        retrying(write, deadline_s=30)
    assert f"waiting: ClickHouse error {code}" in caplog.text
    assert "try 2, again in" in caplog.text
    assert current_wait().current() is not None
    assert [one for one in ids_at(sink.target) if one] == [1, 2, 3]


def test_a_process_that_is_asked_to_end_does_not_wait() -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(time.monotonic())
        raise TransientError("away")

    begun, mine = time.monotonic(), WaitState()
    timer = threading.Timer(0.5, lambda: setattr(mine, "ending", True))
    timer.start()
    with use_wait_state(mine), pytest.raises(TransientError):
        retrying(call, first_wait_s=60, most_wait_s=60)
    timer.join()
    assert len(calls) == 2
    assert time.monotonic() - begun < 5
