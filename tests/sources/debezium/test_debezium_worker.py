"""The Debezium worker of the testkit: it reads a real server, is killed, and continues."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.pipes.debezium.record_task import newest_snapshots
from headrace.sources.debezium.events.event_versions import TableVersioning, VersionRule
from headrace.sources.debezium.events.options import SecondSnapshot
from headrace.sources.debezium.events.records import KnownTable
from headrace.sources.debezium.offset_range_reader import OffsetRange, read_offset_range
from headrace.sources.debezium.reader import DebeziumReader
from testkit.oracles.topics import read_topic
from testkit.servers.broker import PrivateBroker
from testkit.servers.debezium import Worker, json_converters, mysql_settings

PATIENCE_S = 60.0


def _read(broker: PrivateBroker, topic: str, last: int) -> list[tuple[Any, Any]]:
    """Keys and values of a topic of one partition, up to the first value whose row has the id `last`."""
    consumer = Consumer(broker.client_settings(group_id="oracle", enable_auto_commit=False, topic_metadata_refresh_interval_ms=200))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[Any, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(100, 0.2):
                if message.error() is None:
                    value = message.value()
                    found.append((json.loads(message.key() or b"null"), None if value is None else json.loads(value)))
            if any(value and value["after"] and value["after"]["id"] == last for _, value in found):
                return found
    finally:
        consumer.close()
    raise AssertionError(f"{topic} has no row {last} after {PATIENCE_S} s, but {found}")


@pytest.mark.slow(because="test_one_kill[DebeziumTopics] reads what a real worker writes; test_a_connector_that_starts_again_may_go_back")
def test_a_killed_worker_resumes_and_repeats_uncommitted_events(
    server: PrivateServer, database: str, broker: PrivateBroker, connect_worker: Callable[..., Worker]
) -> None:
    prefix, table = f"live-{database}", f"{database}.t"
    topic = f"{prefix}.{table}"
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))")
        cursor.execute(f"INSERT INTO {table} VALUES (1, 'read')")
        cursor.execute(f"CREATE TABLE {database}.keyless (id INT)")
        cursor.execute(f"INSERT INTO {database}.keyless VALUES (1), (1), (2)")
        worker = connect_worker(broker, mariadb=server.flavour == "mariadb")
        settings = mysql_settings(server, prefix, worker.history_file("live"), [database])
        worker.add("live", {**settings, **json_converters(schemas=False)})
        _read(broker, topic, 1)
        cursor.execute(f"INSERT INTO {table} VALUES (2, 'followed')")
        before = _read(broker, topic, 2)
        worker.await_noted()
        worker.kill()
        cursor.execute(f"UPDATE {table} SET id = 3 WHERE id = 1")
        worker.start()
        after = _read(broker, topic, 3)
        worker.kill()
        worker.forget()
        cursor.execute(f"INSERT INTO {database}.keyless VALUES (3)")
        worker.start()
        _read(broker, f"{prefix}.{database}.keyless", 3)
    _check_second_snapshot(broker, f"{prefix}.{database}.keyless")
    assert after[: len(before)] == before
    [first, *_] = before
    assert (first[1]["op"], first[1]["after"]) == ("r", {"id": 1, "v": "read"})
    # At least once: a repeated event has the same position.
    places = {
        (value["source"]["file"], value["source"]["pos"]) for _, value in after if value and value["after"] and value["after"]["id"] == 2
    }
    assert len(places) == 1
    assert [(key, value and value["op"]) for key, value in after[-3:]] == [({"id": 1}, "d"), ({"id": 1}, None), ({"id": 3}, "c")]


def _check_second_snapshot(broker: PrivateBroker, topic: str) -> None:
    """A connector that lost its offsets reads all tables again: a table without a key is recognised by that."""
    (records,) = read_offset_range(parse_kafka_url(broker.url()), OffsetRange(topic, 0, 0, len(read_topic(broker, topic))))
    known = {
        one.schema.name: KnownTable(one.schema, order=TableVersioning(VersionRule.BINLOG)) for one in DebeziumReader().read(records).found
    }
    seen = DebeziumReader(tables=known).read(records).snapshots
    assert sorted(len(one.begins) for one in seen) == [1, 1]
    with pytest.raises(DefiniteError, match="second snapshot"):
        newest_snapshots({}, seen, SecondSnapshot.HALT, lambda _: True)
    counting, replaced = newest_snapshots({}, seen, SecondSnapshot.REPLACE, lambda _: True)
    ((_, counts),) = counting.items()
    assert [one.version for one in replaced] == [counts.version] == [max(one.version for one in seen)]
