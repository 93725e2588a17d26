"""Servers fail during replication: the pipe waits, continues by itself, and loses no change.

One run per flavour survives all faults, under a workload: cut connections, a restart and a crash of the database server, a crash of
ClickHouse. The same run checks that no password is visible and that the state directory has one owner.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest

from headrace.demo.private_process import find_free_port
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import ping
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.machine.wait_condition import wait_until
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.pipelines.pipeline import Pipeline, Run, command_lines
from testkit.servers.accounts import create_replica_account
from testkit.servers.servers import execute


@contextmanager
def serving(directory: Path, port: int) -> Iterator[Run]:
    """`headrace serve`, as a user runs it; killed at the end."""
    run = Run(["serve", str(directory / "clickhouse"), "--port", str(port)], directory / "serve.log")
    try:
        run.until(lambda: ping("127.0.0.1", port), 60)
        yield run
    finally:
        run.kill()


def catch_up(run: Run, pipeline: Pipeline, server: PrivateServer) -> None:
    end = log_end(server)
    run.until(lambda: (pipeline.committed_position() or (0, 0)) >= end, 90)


@pytest.mark.slow(because="test_quick_changes_and_reconnections, test_a_server_that_is_away_is_waited_for")
@pytest.mark.soak("mysql", because="test_checksum_changes reconnects to both, the hour of make soak breaks every wire of both")
@pytest.mark.timeout(900)
def test_replication_outlives_its_servers(fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    server = fresh_server()
    account = create_replica_account(server)
    execute(server, "CREATE DATABASE shop CHARACTER SET utf8mb4")
    Workload(server, "shop", 0).prepare()
    port = find_free_port()
    sink = f"clickhouse://default@127.0.0.1:{port}"
    pipeline = Pipeline(account.url("shop"), sink, tmp_path / "state", ("--chunk-rows", "200", "--flush-bytes", "256K"))
    with serving(tmp_path, port) as first_sink, pipeline.running() as run:
        run.until(lambda: pipeline.last_committed_batch() >= 0 or "snapshot: complete" in run.output)
        with Workload(server, "shop", 1, pause_s=0.005):
            run.until(lambda: pipeline.last_committed_batch() >= 2)
            check_secrecy(run, pipeline, account.password, server.password)
            second = pipeline.start()
            for _ in range(3):
                assert kill_connections(server, account.user) >= 1
                time.sleep(0.4)
            first_sink.kill()
            time.sleep(2.5)
        assert run.code is None
        server.restart()
        refused = second.wait(60)
        assert refused.code == 2
        assert "another headrace process uses this state directory" in refused.output
        with serving(tmp_path, port):
            with Workload(server, "shop", 2, pause_s=0.005) as workload:
                time.sleep(1)
            crash_under_load(server)
            server.start()
            with Workload(server, "shop", 4, pause_s=0.005):
                # Rows change all the time, and none is reported as different.
                live = pipeline.verify("--wait", "15")
            assert live.code in (0, 3), live.output
            # Rows that changed at each comparison are undecided; the summary then does not report "0 differences".
            assert "(different)" not in live.output, live.output
            assert live.output.splitlines()[-1].endswith(" 0 differences") == (live.code == 0), live.output
            assert workload.transactions > 10
            catch_up(run, pipeline, server)
            verified = pipeline.verify()
            assert (verified.code, verified.output.splitlines()[-1][-13:]) == (0, "0 differences"), verified.output
            with sink_client(sink) as client:
                assert assert_equal(client, server, "shop", TABLES, KEYS) > 500
                client.command("ALTER TABLE shop.accounts DELETE WHERE id < 100 SETTINGS mutations_sync = 2")
                repaired = pipeline.verify("--repair")
                assert repaired.code == 0, repaired.output
                assert "rows were different and have been repaired" in repaired.output
                assert assert_equal(client, server, "shop", TABLES, KEYS) > 500
            done = run.terminate(signal.SIGTERM)
    assert done.code == 143, done.output
    assert_nothing_left(run, pipeline)
    assert "Traceback" not in done.output
    assert account.password not in done.output


def crash_under_load(server: PrivateServer) -> None:
    """SIGKILL during the workload: an unacknowledged commit may or may not be in the log."""
    workload = Workload(server, "shop", 3, pause_s=0).start()
    wait_until(lambda: workload.transactions > 10, 60)
    server.kill()
    assert isinstance(workload.stop(), pymysql.err.MySQLError)


def kill_connections(server: PrivateServer, user: str) -> int:
    """Kill the replication connections on the server; return their number."""
    query = f"SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%%' AND user = '{user}'"
    with server.root_connection() as connection, connection.cursor() as cursor:
        for _ in range(50):
            if cursor.execute(query):
                break
            time.sleep(0.1)
        threads = [row[0] for row in cursor.fetchall()]
        for thread in threads:
            cursor.execute(f"KILL {thread}")
    return len(threads)


def check_secrecy(run: Run, pipeline: Pipeline, *passwords: str) -> None:
    """Neither the process list nor any file of the run shows a password."""
    processes = run.processes()
    lines = command_lines(processes)
    assert len(processes) >= 4
    assert "replicate" in lines
    files = [path for path in pipeline.state.rglob("*") if path.is_file()]
    assert len(files) >= 5
    for password in passwords:
        assert password not in lines
        assert password not in run.output
        assert [str(path) for path in files if path.exists() and password.encode() in path.read_bytes()] == []


def assert_nothing_left(run: Run, pipeline: Pipeline) -> None:
    """Check that no process and no scratch file is left. (Spark's Java process may end a moment after its parent.)"""
    wait_until(lambda: not run.processes(), 15, message=lambda: command_lines(run.processes()))
    assert not (pipeline.state / "relay").exists()
    assert not re.search("blockmgr", " ".join(str(path) for path in pipeline.state.rglob("*")))
