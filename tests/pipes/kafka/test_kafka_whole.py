"""A database to ClickHouse with Kafka between: once written by the real Debezium, once by Headrace itself, under a hostile workload with
rows that change their keys. Headrace's processes, the embedded ClickHouse and the broker are killed in between and restarted. At the end
both sides are equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.machine.wait_condition import wait_until
from testkit.oracles.both_ends import assert_equal, sink_client
from testkit.pipelines.pipeline import Pipeline, run_command
from testkit.servers.accounts import create_locking_account
from testkit.servers.broker import PrivateBroker
from testkit.servers.debezium import Worker, json_converters, mysql_settings
from testkit.servers.servers import execute_in

pytestmark = pytest.mark.scaled

PARTITIONS = 3
LAST = {
    "accounts": "(1000000, 'the last', 0, NOW(6))",
    "parts": "('the last', 1, 0)",
    "notes": "('the last', NULL, 0)",
}


class Readers:
    """The pipe from the topics to an embedded ClickHouse."""

    def __init__(self, broker: PrivateBroker, prefix: str, database: str, directory: Path) -> None:
        self.sink_dir = directory / "clickhouse"
        options = ("--topics", f"{prefix}.{database}.*", "--max-offsets", "5000")
        self.pipeline = Pipeline(broker.url(), f"chdb:{self.sink_dir}", directory / "reader", options)

    def killed_after(self, batches: int) -> None:
        """Run until more batches are committed, then kill all processes."""
        before = self.pipeline.last_committed_batch()
        with self.pipeline.running() as run:
            run.until(lambda: self.pipeline.last_committed_batch() >= before + batches)

    def finish(self) -> None:
        done = self.pipeline.once(timeout_s=240)
        assert done.code == 0, done.output


@pytest.mark.slow(because="test_one_kill[DebeziumTopics] kills such a pipe once")
@pytest.mark.timeout(900)
def test_debezium_to_kafka_to_clickhouse(mysql_server: PrivateServer, fresh_broker: Callable[..., PrivateBroker], tmp_path: Path) -> None:
    database = "whole_debezium"
    broker = fresh_broker()
    with _database(mysql_server, database), Workload(mysql_server, database, 7, pause_s=0.02) as workload:
        settings = {
            **mysql_settings(mysql_server, "deb", tmp_path / "history.dat", [database], PARTITIONS),
            **json_converters(schemas=True),
            # The broker is stopped in the meantime.
            "errors.max.retries": "-1",
        }
        with Worker(tmp_path / "connect", broker.servers) as worker:
            worker.add("deb", settings)
            # A worker that is killed earlier takes another snapshot and never sends the deletions between the two.
            worker.await_noted()
            readers = Readers(broker, "deb", database, tmp_path)
            _shake(readers, broker, worker.kill, worker.start)
            assert workload.stop() is None
            _write_last(mysql_server, database)
            _await_last(broker, "deb", database)
        readers.finish()
        _compare(readers, mysql_server, database, workload)


@pytest.mark.soak(because="test_kafka_crash and test_kafka_pipe kill such a pipe")
@pytest.mark.timeout(900)
def test_headrace_to_kafka_to_clickhouse(server: PrivateServer, fresh_broker: Callable[..., PrivateBroker], tmp_path: Path) -> None:
    database = "whole_headrace"
    broker = fresh_broker()
    with _database(server, database), Workload(server, database, 8, pause_s=0.02) as workload:
        # A snapshot at one position, which a topic needs, may lock the table for a moment.
        account = create_locking_account(server)
        options = ("--set", "kafka.format=debezium", "--set", f"kafka.partitions={PARTITIONS}", "--set", "kafka.schemas=true")
        writer = Pipeline(account.url(database), broker.url(), tmp_path / "writer", options)
        readers = Readers(broker, "headrace", database, tmp_path)
        with writer.running() as run:
            run.until(lambda: writer.last_committed_batch() >= 2)
            readers.killed_after(2)
        with writer.running() as run:
            before = writer.last_committed_batch()
            run.until(lambda: writer.last_committed_batch() >= before + 2)
            broker.kill()
            time.sleep(1)
            broker.start()
            before = writer.last_committed_batch()
            run.until(lambda: writer.last_committed_batch() >= before + 2)
            readers.killed_after(2)
        assert workload.stop() is None
        done = writer.once(timeout_s=240)
        assert done.code == 0, done.output
        readers.finish()
        _compare(readers, server, database, workload)


def _shake(readers: Readers, broker: PrivateBroker, kill: Callable[[], None], start: Callable[[], object]) -> None:
    """Kill the reader, the writer, and the broker under a running reader, while changes flow."""
    readers.killed_after(2)
    kill()
    start()
    with readers.pipeline.running() as run:
        before = readers.pipeline.last_committed_batch()
        run.until(lambda: readers.pipeline.last_committed_batch() >= before + 2)
        broker.kill()
        time.sleep(1)
        broker.start()
        before = readers.pipeline.last_committed_batch()
        run.until(lambda: readers.pipeline.last_committed_batch() >= before + 2)
    readers.killed_after(1)


@contextmanager
def _database(server: PrivateServer, name: str) -> Iterator[None]:
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            Workload(server, name, 0).prepare()
            yield
        finally:
            cursor.execute(f"DROP DATABASE {name}")


def _write_last(server: PrivateServer, database: str) -> None:
    execute_in(server, database, *(f"INSERT INTO {table} VALUES {values}" for table, values in LAST.items()))


def _await_last(broker: PrivateBroker, prefix: str, database: str) -> None:
    """Wait until the last row of each table is in its topic: a connector sends a table's changes in the order of the log."""
    for table in LAST:
        command = ("tail", broker.url(f"{prefix}.{database}.{table}"), "--offset", "-5", "--once")
        wait_until(lambda command=command: "the last" in run_command(*command).output, 180)  # type: ignore[misc]


def _compare(readers: Readers, server: PrivateServer, database: str, workload: Workload) -> None:
    verified = run_command("verify", server.url(database), f"chdb:{readers.sink_dir}")
    assert (verified.code, verified.output.splitlines()[-1].rpartition(", ")[2]) == (0, "0 differences"), verified.output
    assert "3 tables" in verified.output
    with readers.pipeline.sink_served(readers.sink_dir) as url, sink_client(url) as client:
        assert assert_equal(client, server, database, TABLES, KEYS) > 500
    assert workload.transactions > 100
