"""Pipes from real brokers, by the command and through Spark: logins over mutual TLS, start positions, invalid records, added partitions,
and Avro with a registry."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.registry_http import HttpRepository
from headrace.pipes.debezium.pipe_notes import DebeziumPipeNotes
from headrace.pipes.state.pipe_state import StateDirectory
from testkit.oracles.both_ends import sink_client
from testkit.oracles.topics import read_topic
from testkit.pipelines.pipeline import Finished, Run, run_command
from testkit.recordings.debezium_recordings import KafkaRecord, load_records, load_schemas, load_truth
from testkit.servers.broker import BrokerTls, PrivateBroker
from testkit.servers.certificates import Authority
from testkit.servers.schema_registry import PrivateRegistry
from testkit.servers.servers import execute

OLD, NEW = 1_714_521_600_000, 1_717_200_000_000
"""1 May and 1 June 2024."""


class Target:
    """A private database in ClickHouse, queried by clickhouse-connect."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.database = f"reach_{secrets.token_hex(4)}"
        self.url = f"clickhouse://default@127.0.0.1:{server.port}/{self.database}"
        self._server = server

    def query(self, sql: str) -> list[list[Any]]:
        with closing(sink_client(f"http://127.0.0.1:{self._server.port}")) as client:
            return [list(row) for row in client.query(sql.replace("$", f"`{self.database}`")).result_rows]

    def rows(self, table: str, columns: str) -> list[list[Any]]:
        """None if there is no table."""
        there = self.query(f"SELECT count() FROM system.tables WHERE database = '{self.database}' AND name = '{table}'")
        return self.query(f"SELECT {columns} FROM $.{table} FINAL ORDER BY 1") if there[0][0] else []


@pytest.fixture
def target(clickhouse: EmbeddedServer) -> Target:
    return Target(clickhouse)


def event(number: int, name: str, **more: Any) -> dict[str, Any]:
    """The event of a MySQL connector for an inserted row."""
    source = {"connector": "mysql", "db": "shop", "table": "goods", "snapshot": "false", "server_id": 1, "file": "bin.000001"}
    place = {"pos": 100 * number, "row": 0}
    value = {"before": None, "after": {"id": number, "name": name}, "source": {**source, **place}, "op": "c"}
    return {"key": json.dumps({"id": number}).encode(), "value": json.dumps(value).encode(), **more}


def test_logins_over_tls_on_both_sides(
    mariadb_server: PrivateServer, fresh_broker: Callable[..., PrivateBroker], target: Target, tmp_path: Path, capfd: Any
) -> None:
    """MariaDB to Kafka to ClickHouse: brokers with mutual TLS of a private authority, and a password."""
    database = f"reach_{secrets.token_hex(4)}"
    broker = fresh_broker(accounts={"me": "s ec:ret"}, tls=BrokerTls.made(tmp_path))
    url = broker.url().replace("s ec:ret", "s%20ec%3Aret")
    execute(
        mariadb_server,
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.goods (id INT PRIMARY KEY, name TEXT)",
        f"INSERT INTO {database}.goods VALUES (1, 'apple'), (2, NULL), (3, 'plum')",
    )
    into = ["replicate", mariadb_server.url(database), url, "--once", "--set", "kafka.format=debezium", "--set", "kafka.schemas=true"]
    out_of = ["replicate", url, target.url, "--once", "--topics", f"headrace.{database}.*"]
    for number, arguments in enumerate((into, out_of)):
        done = run_command(*arguments, "--state", str(tmp_path / f"state_{number}"))
        assert done.code == 0, done.output
        kept = b"".join(file.read_bytes() for file in (tmp_path / f"state_{number}").rglob("*") if file.is_file()) + done.output.encode()
        assert b"ec:ret" not in kept
        assert b"PRIVATE KEY" not in kept
    assert target.rows("goods", "id, name") == [[1, "apple"], [2, None], [3, "plum"]]

    other = Authority(tmp_path, "other").cert
    wrong = {
        url.replace("authority.pem", other.name): "ssl.ca.location",
        url.replace("s%20ec%3Aret", "guessed"): "password",
        url.replace("authority.pem", "nowhere.pem"): "ssl.ca.location failed",
    }
    for number, (address, named) in enumerate(wrong.items()):
        for arguments in (into, out_of):
            states = ["--state", str(tmp_path / f"wrong_{number}_{arguments is into}")]
            assert cli.main([address if word == url else word for word in arguments] + states) == cli.FAILED
            said = capfd.readouterr().err
            assert named in said, said
            assert "guessed" not in said


class Readers:
    """A pipe from a broker's topics that begin with a prefix."""

    def __init__(self, broker: PrivateBroker, prefix: str, target: Target, directory: Path) -> None:
        self._source = f"{broker.url()}?metadata.max.age.ms=1000"
        self._prefix, self._target, self._directory = prefix, target, directory

    def start(self, *more: str) -> Run:
        log = self._directory / f"{len(list(self._directory.iterdir()))}.log"
        ends = ("replicate", self._source, self._target.url, "--topics", f"{self._prefix}.*", "--state", str(self._directory / "state"))
        return Run([*ends, *more], log)

    def once(self, *more: str) -> Finished:
        return self.start("--once", *more).wait()


def registered(name: str, prefix: str, registry: PrivateRegistry) -> list[KafkaRecord]:
    """A recording in Avro, its schemas in a registry: its records contain the ids of that registry."""
    repository = HttpRepository(registry.url)
    ids = {number: repository.register(f"{prefix}-{number}", parse_schema(schema)) for number, schema in load_schemas(name).items()}

    def renamed(value: bytes | None) -> bytes | None:
        return None if value is None else b"\0" + ids[int.from_bytes(value[1:5], "big")].to_bytes(4, "big") + value[5:]

    records = [one for one in load_records(name) if one.topic.endswith(".sbtest1")]
    return [
        KafkaRecord(f"{prefix}.shop.sbtest1", one.partition, one.offset, one.timestamp, renamed(one.key), renamed(one.value), one.headers)
        for one in records
    ]


def dead_letters_to(topic: str) -> list[str]:
    return ["--set", "debezium.on_malformed=topic", "--set", f"debezium.dead_letter_topic={topic}"]


def send_a_malformed_record_and_add_partitions(run: Run, broker: PrivateBroker, topic: str, target: Target) -> None:
    """Send the records from offset 2 on to a running pipe, and wait for their rows."""
    broker.produce(topic, [{"key": b"k", "value": b"{no record", "headers": [("h", b"1")]}, event(3, "after it")])
    run.until(lambda: target.rows("goods", "id") == [[2], [3]])
    # The request fails if its client is deleted before the answer.
    admin = broker.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    broker.produce(topic, [event(4, "in a new partition", partition=2), event(5, "in the old one", partition=0)])
    run.until(lambda: target.rows("goods", "id") == [[2], [3], [4], [5]])


def assert_dead_letter(broker: PrivateBroker, letters: str, topic: str) -> None:
    # (After a kill it may store a dead letter again, with the same position.)
    (letter,) = {(one.key, one.value, tuple(sorted(one.headers.items()))) for one in read_topic(broker, letters)}
    assert letter[:2] == (b"k", b"{no record")
    said = {name.removeprefix("headrace.error."): value for name, value in letter[2]}
    assert said.pop("reason")
    assert said.pop("pipe")
    assert said == {"h": b"1", "topic": topic.encode(), "partition": b"0", "offset": b"2"}


def test_a_running_pipe_reads_added_partitions_and_sends_a_malformed_record_to_a_topic(
    broker: PrivateBroker, target: Target, tmp_path: Path
) -> None:
    prefix = f"reach{secrets.token_hex(4)}"
    topic, letters = broker.create_topic(f"{prefix}.shop.goods"), broker.create_topic()
    broker.produce(topic, [event(1, "before"), event(2, "first")])
    start = json.dumps({topic: {"0": 1}})
    with Readers(broker, prefix, target, tmp_path).start("--start", start, *dead_letters_to(letters)).killed() as run:
        send_a_malformed_record_and_add_partitions(run, broker, topic, target)
    assert_dead_letter(broker, letters, topic)


@pytest.mark.slow(
    because=(
        "test_a_running_pipe_reads_added_partitions_and_sends_a_malformed_record_to_a_topic; "
        "test_a_record_that_is_none_halts_or_is_kept_once; test_recorded_avro_leads_to_what_the_server_showed"
    )
)
def test_offsets_to_start_at_avro_a_record_that_is_none_and_partitions_that_come(
    broker: PrivateBroker, schema_registry: PrivateRegistry, target: Target, tmp_path: Path
) -> None:
    prefix = f"reach{secrets.token_hex(4)}"
    plain, letters = broker.create_topic(f"{prefix}.shop.goods"), broker.create_topic()
    broker.produce(plain, [event(1, "before"), event(2, "first")])
    records = registered("mysql-avro", prefix, schema_registry)
    avro = broker.create_topic(records[0].topic)
    broker.produce(avro, [{"key": one.key, "value": one.value, "headers": list(one.headers)} for one in records])
    readers = Readers(broker, prefix, target, tmp_path)
    start = json.dumps({plain: {"0": 1}, avro: {"0": -2}})
    settings = ["--set", f"debezium.registry={schema_registry.url}", *dead_letters_to(letters)]
    run = readers.start("--start", start, *settings)
    truth = load_truth("mysql")["sbtest1"]
    try:
        run.until(lambda: target.rows("goods", "id") == [[2]] and len(target.rows("sbtest1", "id")) == len(truth.rows))
        send_a_malformed_record_and_add_partitions(run, broker, plain, target)
    finally:
        run.kill()
    names = ", ".join(f"toString({name})" for name, _ in truth.columns)
    assert sorted(map(repr, target.rows("sbtest1", names))) == sorted(repr(list(row)) for row in truth.rows)
    assert_dead_letter(broker, letters, plain)
    # (Killed between a batch and its commit, it repeats the batch; then no record is left.)
    assert readers.once(*settings).code == 0
    ended = readers.once(*settings)
    assert (ended.code, "nothing new" in ended.output) == (0, True), ended.output
    assert target.rows("goods", "id") == [[2], [3], [4], [5]]
    # Whatever was sent again, the state counts the record once.
    assert DebeziumPipeNotes.load(StateDirectory(tmp_path / "state", make=False)).sent == 1


def test_a_moment_to_start_at(broker: PrivateBroker, target: Target, tmp_path: Path) -> None:
    """Partitions whose records are all older have nothing to read yet."""
    prefix = f"reach{secrets.token_hex(4)}"
    # The broker deletes records as old as these after five minutes, unless the topic keeps them.
    topic = broker.create_topic(f"{prefix}.shop.goods", partitions=2, retention_ms=-1)
    broker.produce(topic, [event(1, "may", partition=0, timestamp=OLD), event(2, "june", partition=0, timestamp=NEW)])
    broker.produce(topic, [event(3, "may", partition=1, timestamp=OLD)])
    readers = Readers(broker, prefix, target, tmp_path)
    ended = readers.once("--start", "2024-05-15T00:00:00Z")
    assert ended.code == 0, ended.output
    assert target.rows("goods", "id, name") == [[2, "june"]]
