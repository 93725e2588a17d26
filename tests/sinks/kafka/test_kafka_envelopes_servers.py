"""A pipe that sends Debezium's events, without Spark, to a real broker: the `debezium` source reads the source's rows from them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.kafka.messages.options import KafkaOptions, MessageFormat
from headrace.sinks.kafka.sink import KafkaSink
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.mysql.rows import row_decoder
from testkit.generators.workload import TABLES, Workload, run_transaction
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import log_end, source_rows
from testkit.oracles.topics import Kept, read_topic
from testkit.pipelines.local_pipeline import without_spark
from testkit.recordings.debezium_recordings import KafkaRecord, as_batches
from testkit.recordings.debezium_replay import Replay
from testkit.servers.broker import PrivateBroker

PREFIX = "srv"


@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_debezium_s_events[mysql]; test_read_back_by_the_debezium_source_the_events_are_the_changes"),
)
@pytest.mark.parametrize("schemas", [False, True])
def test_snapshot_and_changes_are_read_back_from_the_topics(
    server: PrivateServer, database: str, broker: PrivateBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schemas: bool
) -> None:
    without_spark(monkeypatch)
    # Small blocks, so that their bounds cut events.
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    Workload(server, database, 7).prepare()
    choices = KafkaOptions(format=MessageFormat.DEBEZIUM, prefix=PREFIX, partitions=3, schemas=schemas)
    settings = PipeSettings(Selection((f"{database}.*",)), tmp_path / "state", once=True, flush_seconds=0.0, master="local[2]")
    chance = random.Random(7)
    with open_logbook(server, database) as book, server.root_connection(database, autocommit=False) as connection:
        for _ in range(2):
            for _ in range(20):
                run_transaction(connection, chance)
            MySQLPipe(book.address, KafkaSink.from_url(broker.url(), choices), "sink", settings, LogView()).run()
    replay = Replay(DebeziumReader())
    headers: set[str] = set()
    for table in TABLES:
        topic = f"{PREFIX}.{database}.{table}"
        messages = read_topic(broker, topic)
        headers |= {name for message in messages for name in message.headers}
        _check_places(messages, server)
        replay.feed_all(as_batches([_record(topic, message) for message in messages]), chance)
        name = TableName(database, table)
        columns = [column.name for column in replay.reader.tables[name].schema.columns]
        rows = [tuple(row[column] for column in columns) for row in replay.rows(name)]
        expected = source_rows(server, database, table)
        if schemas:
            assert sorted(rows, key=repr) == expected
        assert len(rows) == len(expected)
    assert replay.refused == []
    assert {"__debezium.newkey", "__debezium.oldkey", "headrace.position"} <= headers


def _record(topic: str, message: Kept) -> KafkaRecord:
    headers: list[tuple[str, bytes | None]] = list(message.headers.items())
    return KafkaRecord(topic, message.partition, message.offset, message.timestamp_ms, message.key, message.value, tuple(headers))


def _check_places(messages: list[Kept], server: PrivateServer) -> None:
    """Every event names the server's log file, and a position in it."""
    number, end = log_end(server)
    events = [json.loads(message.value) for message in messages if message.value is not None]
    for event in events:
        payload = event.get("payload", event)
        source = payload["source"]
        assert (source["connector"], source["name"], source["file"]) == (server.flavour, PREFIX, f"binlog.{number:06d}")
        assert 0 < source["pos"] < end
        assert (payload["op"] == "r") == (source["snapshot"] == "true") == (source["gtid"] is None)
    assert {"r", "c", "u", "d"} <= {event.get("payload", event)["op"] for event in events}
