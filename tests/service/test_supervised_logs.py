"""Debezium's topics and ScyllaDB's log as pipes of one process: each is paused, fails, is repaired and continues on its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.config.load import load
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.model.schema import TableName
from headrace.service.status import PipeStage
from headrace.service.supervisor import Supervisor
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sources.scylla.capture.captured_session import capture
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.supervision import await_stage, counted, until
from testkit.recordings.debezium_recordings import load_records, load_truth
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import PrivateCassandra
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation

TOPIC, TABLE = "schema.shop.sbtest1", "sbtest1"
FILE = """
[headrace]
state = "state"
listen = ""
retry_seconds = 1

[sources.topics]
url = "{broker}"
topics = ["{topic}"]

[sources.log]
url = "{cassandra}"
tables = ["t"]
confidence = 1
window = 0.2
generations = "{keyspace}"
tablets = "{keyspace}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.events]
source = "topics"
sink = "warehouse"

[pipes.cells]
source = "log"
sink = "warehouse"
"""


def send(broker: PrivateBroker, records: list[Any]) -> None:
    broker.produce(TOPIC, [{"key": one.key, "value": one.value, "headers": list(one.headers)} for one in records])


@pytest.mark.slow(
    because=(
        "test_pipes_share_a_process_and_nothing_else pauses, fails and skips; test_one_kill[DebeziumTopics] and "
        "test_one_kill[ScyllaToCql] run such pipes"
    ),
)
@pytest.mark.timeout(600)
def test_topics_and_a_log_in_one_process(
    fresh_broker: Any, cassandra: PrivateCassandra, cql: CqlSession, keyspace: str, tmp_path: Path
) -> None:
    broker: PrivateBroker = fresh_broker()
    broker.create_topic(TOPIC)
    records = [one for one in load_records("mysql-schema") if one.topic == TOPIC]
    create_tables(cql, keyspace)
    add_generation(cql, keyspace, make_generation(time.time_ns() // 1_000_000, 2, 2))
    cql.execute(f"CREATE TABLE {keyspace}.t (p int, c int, v text, m map<int, text>, PRIMARY KEY (p, c))")
    log = capture(cql, [f"{keyspace}.t"], keyspace)
    file = tmp_path / "headrace.toml"
    file.write_text(FILE.format(broker=broker.url(), topic=TOPIC, cassandra=cassandra.url(keyspace), keyspace=keyspace))
    table = describe(cql, TableName(keyspace, "t"))

    def write(number: int) -> None:
        log.execute(f"INSERT INTO {keyspace}.t (p, c, v, m) VALUES ({number}, 1, 'v{number}', {{0: 'a', {number}: 'b'}})")

    def seen(supervisor: Supervisor) -> int:
        return counted(supervisor, "cells", f"{keyspace}.t")

    def row_total(supervisor: Supervisor) -> int:
        there = counted(supervisor, "events", f"system.tables WHERE database = 'shop' AND name = '{TABLE}'")
        return counted(supervisor, "events", f"shop.{TABLE} FINAL") if there else 0

    write(1)
    with Supervisor(load(file)) as supervisor:
        await_stage(supervisor, PipeStage.STREAMING, "events", "cells")
        until("the copied row", lambda: seen(supervisor) == 1, supervisor)
        # One is paused: the other continues, and the paused one catches up later.
        supervisor.pause("cells")
        await_stage(supervisor, PipeStage.PAUSED, "cells")
        write(2)
        send(broker, records[:3])
        until("the topic's rows", lambda: row_total(supervisor) > 0, supervisor)
        assert seen(supervisor) == 1
        supervisor.resume("cells")
        until("the held row", lambda: seen(supervisor) == 2, supervisor)
        # An invalid record ends its pipe and is named; skipped by that name, the pipe continues.
        broker.produce(TOPIC, [{"key": b"{}", "value": b"no JSON", "headers": []}])
        send(broker, records[3:])
        write(3)
        await_stage(supervisor, PipeStage.FAILED, "events")
        error = supervisor.pipe("events").error
        assert error is not None
        assert error.skippable
        assert TOPIC in error.place
        until("the log's row", lambda: seen(supervisor) == 3, supervisor)
        supervisor.skip("events", error.skippable)
        await_stage(supervisor, PipeStage.STREAMING, "events")
        expected = len(load_truth("mysql")[TABLE].rows)
        until("all of the topic", lambda: row_total(supervisor) == expected, supervisor)
        assert supervisor.pipe("cells").stage is PipeStage.STREAMING
    # Another process continues where this one ended.
    write(4)
    with Supervisor(load(file)) as supervisor:
        until("the last row", lambda: seen(supervisor) == 4, supervisor)
        assert row_total(supervisor) == expected
        holder = read_serving_process(tmp_path / "warehouse")
        assert holder is not None
        assert shown(CellSink.from_url(f"clickhouse://default@127.0.0.1:{holder.port}"), table) == selected(cql, table)
