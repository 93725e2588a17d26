"""Records Debezium: one workload on a real server, read by several connectors with different settings at the same time.

`python -m testkit.recordings.debezium_recorder [mysql] [mariadb] [postgres]`, or `make record` for all of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient

from testkit.oracles.binlogs import Logbook, Place, open_logbook
from testkit.recordings.debezium_cases import DATABASE, MARIADB, MYSQL, POSTGRES, SENTINEL, UNALTERED, Case
from testkit.recordings.debezium_recordings import GOLDEN, KafkaRecord, RecordedLog, Truth, save_log, save_records, save_schemas, save_truth
from testkit.servers.broker import PrivateBroker
from testkit.servers.debezium import Worker, avro_converters, flattened, json_converters, mysql_settings, postgres_settings
from testkit.servers.postgres import PrivatePostgres
from testkit.servers.schema_registry import PrivateRegistry
from testkit.servers.servers import build, execute

PATIENCE_S = 180.0
HEARTBEATS = 2
"""How many heartbeats of a partition are kept: their number depends on the machine."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A connector's settings."""

    name: str
    settings: Mapping[str, str]
    typed_only: bool = False
    """Whether it covers only the tables with every type."""
    tables: tuple[str, ...] = ()


_TEXTS = {"decimal.handling.mode": "string", "time.precision.mode": "isostring", "binary.handling.mode": "hex"}
_DOUBLES = {"decimal.handling.mode": "double", "time.precision.mode": "connect", "binary.handling.mode": "base64-url-safe"}
_PROPAGATED = {"column.propagate.source.type": ".*", "decimal.handling.mode": "string"}
_ALL_OPERATIONS = {"skipped.operations": "none"}
_PLACES = {"mysql": "source.file,source.pos,source.row,source.gtid", "postgres": "source.lsn"}


def variants(connector: str, registry: str = "") -> list[Variant]:
    """Return the variants of a connector; Avro if there is a registry."""
    # Every record has the same four headers; one recording with them is enough.
    bare = {"extended.headers.enabled": "false"}
    silent = {} if connector == "postgres" else {"include.schema.changes": "false"}
    schemas, plain = {**json_converters(schemas=True), **bare}, {**json_converters(schemas=False), **bare}
    headers = {"header.converter": "org.apache.kafka.connect.json.JsonConverter", "header.converter.schemas.enable": "false"}
    beats = {"heartbeat.interval.ms": "1000", "extended.headers.enabled": "true"}
    quiet = silent if connector == "mariadb" else {}
    transactions = {} if connector == "mariadb" else {"provide.transaction.metadata": "true"}
    unsigned = {} if connector == "postgres" else {"bigint.unsigned.handling.mode": "precise"}
    times = ("kinds",) if connector == "postgres" else ("times",)
    found = [
        Variant("schema", {**schemas, **_ALL_OPERATIONS, **quiet, **transactions}),
        Variant("plain", {**plain, **quiet, **_ALL_OPERATIONS, **headers, **beats}),
        Variant("flat", {**plain, **silent, **flattened("rewrite-with-tombstone")}),
        Variant("texts", {**schemas, **silent, **_TEXTS, **unsigned}, typed_only=True),
        Variant("doubles", {**schemas, **silent, **_DOUBLES}, typed_only=True),
    ]
    if connector != "mariadb":
        found += [
            Variant("propagated", {**schemas, **silent, **_PROPAGATED}, typed_only=True),
            Variant(
                "flatplaces",
                {**plain, **silent, **flattened("rewrite", f"op,table,source.ts_ms,{_PLACES[connector]}")},
                tables=("sbtest1",),
            ),
            Variant("flatschema", {**schemas, **silent, **flattened("delete-to-tombstone")}, tables=("sbtest1", "evolving")),
            *(Variant(mode, {**schemas, **silent, "time.precision.mode": mode}, tables=times) for mode in ("microseconds", "nanoseconds")),
        ]
    if connector == "mysql":
        found += [Variant(f"flat{mode}", {**plain, **silent, **flattened(mode)}, tables=("sbtest1",)) for mode in ("drop", "tombstone")]
    if connector == "postgres":
        more = {"interval.handling.mode": "string", "time.precision.mode": "adaptive", "include.unknown.datatypes": "true"}
        found.append(Variant("intervals", {**schemas, **more}, tables=times))
    if registry:
        avro = {**avro_converters(registry), **bare, **silent}
        found.append(Variant("avro", {**avro, **_ALL_OPERATIONS}))
        if connector == "mysql":
            places = flattened("rewrite-with-tombstone", f"op,source.ts_ms,{_PLACES[connector]}")
            found.append(Variant("flatavro", {**avro, **places}, tables=("sbtest1",)))
    return found


@dataclass(slots=True)
class Bench:
    """A broker, a worker and the server that is recorded."""

    broker: PrivateBroker
    worker: Worker
    case: Case
    settings: Callable[[str], dict[str, str]]
    """A connector's settings by its prefix."""
    run: Callable[[str], None]
    prefix: str = "public"
    """The qualifier of a table's name in settings and topics."""
    before_stream: Callable[[], None] = lambda: None
    log: RecordedLog | None = None
    recorded: dict[str, list[KafkaRecord]] = field(default_factory=dict)

    def record(self, chosen: list[Variant]) -> None:
        for statement in self.case.before:
            self.run(statement)
        self.run(f"INSERT INTO {SENTINEL} VALUES (1)")
        self.worker.add_all({variant.name: self._connector(variant) for variant in chosen})
        readers = {variant.name: _Reader(self.broker, variant.name) for variant in chosen}
        topic = f"{self.prefix}.{SENTINEL}"
        for variant in chosen:
            readers[variant.name].until(f"{variant.name}.{topic}", 1, lambda name=variant.name: self.worker.runs(name))
        self.before_stream()
        for statement in self.case.stream:
            self.run(statement)
        self.run(f"INSERT INTO {SENTINEL} VALUES (2)")
        for variant in chosen:
            readers[variant.name].until(f"{variant.name}.{topic}", 2, lambda name=variant.name: self.worker.runs(name))
            self.recorded[variant.name] = readers[variant.name].close()

    def _connector(self, variant: Variant) -> dict[str, str]:
        tables = variant.tables or (self.case.typed if variant.typed_only else ())
        chosen = {"table.include.list": ",".join(f"{self.prefix}.{table}" for table in (*tables, SENTINEL))} if tables else {}
        return {**self.settings(variant.name), **chosen, **variant.settings}


class _Reader:
    """All records of the topics of a prefix."""

    def __init__(self, broker: PrivateBroker, prefix: str) -> None:
        self._consumer = Consumer(
            broker.client_settings(group_id=f"recorder-{prefix}", auto_offset_reset="earliest", enable_auto_commit=False)
        )
        self._prefix = prefix
        self._assigned: set[tuple[str, int]] = set()
        self._found: list[KafkaRecord] = []

    def until(self, topic: str, count: int, alive: Callable[[], bool]) -> None:
        """Read until the topic has returned `count` records, and other topics the records that were sent before them."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(record.topic == topic for record in self._found) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{topic} has not {count} records after {PATIENCE_S} s")
            alive()
            self._assign()
            self._read(0.5)
        # The sentinel's record is the last that was sent, but partitions are read in any order.
        self._assign()
        while self._read(1.0):
            pass

    def close(self) -> list[KafkaRecord]:
        self._consumer.close()
        beats: dict[tuple[str, int], int] = {}
        kept = []
        for record in self._found:
            place = (record.topic, record.partition)
            beats[place] = beats.get(place, 0) + 1
            if "heartbeat" not in record.topic or beats[place] <= HEARTBEATS:
                kept.append(record)
        return kept

    def _assign(self) -> None:
        topics = self._consumer.list_topics(timeout=30).topics
        mine = [name for name in topics if name.split(".")[0] == self._prefix or name == f"__debezium-heartbeat.{self._prefix}"]
        new = {(name, partition) for name in mine for partition in topics[name].partitions} - self._assigned
        if new:
            self._assigned |= new
            self._consumer.incremental_assign([TopicPartition(name, partition, 0) for name, partition in sorted(new)])

    def _read(self, seconds: float) -> bool:
        messages = self._consumer.consume(500, seconds)
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    continue
                raise KafkaException(error)
            headers = tuple((name, value) for name, value in message.headers() or ())
            self._found.append(
                KafkaRecord(
                    message.topic(), message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), headers
                )
            )
        return bool(messages)


def record_binlog(flavour: str, scratch: Path, chosen: list[Variant]) -> tuple[Bench, dict[str, Truth]]:
    """Record MySQL or MariaDB: the records of each variant, and the final tables."""
    case = {"mysql": MYSQL, "mariadb": MARIADB}[flavour]
    server = build(flavour, scratch / "server", server_id=7).start()
    try:
        execute(server, f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        with open_logbook(server, DATABASE) as book, _bench(scratch, case, flavour) as bench:
            bench.prefix = DATABASE
            bench.run = book.run
            bench.settings = lambda name: mysql_settings(server, name, bench.worker.history_file(name), [DATABASE], partitions=2)
            starts: list[Place] = []
            bench.before_stream = lambda: starts.append(book.place())
            bench.record(chosen)
            bench.log = _log(book, starts[0])
            return bench, {table: _binlog_truth(book, table) for table in case.tables}
    finally:
        server.remove()


def record_postgres(scratch: Path, chosen: list[Variant]) -> tuple[Bench, dict[str, Truth]]:
    """Record PostgreSQL."""
    with PrivatePostgres() as server, server.connect() as connection, _bench(scratch, POSTGRES) as bench:
        bench.run = lambda statement: connection.execute(statement) and None
        bench.settings = lambda name: postgres_settings(server, name, ["public"], partitions=2)
        bench.record(chosen)
        truth = {table: _postgres_truth(connection, table) for table in POSTGRES.tables}
        bench.worker.kill()
        server.drop_slots()
        return bench, truth


@contextmanager
def _bench(scratch: Path, case: Case, flavour: str = "") -> Iterator[Bench]:
    def unset(_: str) -> Any:
        raise AssertionError("not set")

    broker = PrivateBroker(scratch / "broker").start()
    try:
        with Worker(scratch / "connect", broker.servers, mariadb=flavour == "mariadb") as worker:
            yield Bench(broker, worker, case, unset, unset)
    finally:
        broker.remove()


def _log(book: Logbook, start: Place) -> RecordedLog:
    end = book.place()
    data = (book.server.binlog_dir / start.file).read_bytes()[: end.offset]
    checksum = book.fetch("SELECT @@GLOBAL.binlog_checksum")[0][0] != "NONE"
    return RecordedLog(start.file, start.offset, checksum, tuple(book.schema(table) for table in UNALTERED), data)


def _binlog_truth(book: Logbook, table: str) -> Truth:
    schema = book.schema(table)
    columns = tuple((column.name, column.source_type) for column in schema.columns)
    return Truth(columns, schema.row_key, tuple(book.select(schema)))


def _postgres_truth(connection: Any, table: str) -> Truth:
    columns = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table,),
    ).fetchall()
    key = connection.execute(
        "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)"
        " WHERE indrelid = %s::regclass AND indisprimary ORDER BY array_position(indkey::int2[], attnum)",
        (table,),
    ).fetchall()
    shown = ", ".join(f'"{name}"::text' for name, _ in columns)
    rows = connection.execute(f"SELECT {shown} FROM {table} ORDER BY 1, 2").fetchall()
    return Truth(tuple(columns), tuple(name for (name,) in key), tuple(rows))


def save(connector: str, bench: Bench, truth: dict[str, Truth], registry: str) -> None:
    """Replace the recordings of a connector."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for path in GOLDEN.glob(f"{connector}*"):
        path.unlink()
    for name, records in bench.recorded.items():
        save_records(f"{connector}-{name}", records)
    save_truth(connector, truth)
    if bench.log is not None:
        save_log(connector, bench.log)
    for name, records in bench.recorded.items():
        if name.endswith("avro"):
            save_schemas(f"{connector}-{name}", _schemas(registry, records))


def _schemas(registry: str, records: list[KafkaRecord]) -> dict[int, str]:
    """Return the schemas that records refer to: a zero byte, then the schema's number in four bytes."""
    named = {payload[1:5] for record in records for payload in (record.key, record.value) if payload}
    numbers = sorted(int.from_bytes(one, "big") for one in named)
    with closing(SchemaRegistryClient({"url": registry})) as client:
        return {number: client.get_schema(number).schema_str or "" for number in numbers}


def main(wanted: list[str]) -> None:
    for connector in wanted or ["mysql", "mariadb", "postgres"]:
        with tempfile.TemporaryDirectory(prefix="headrace-record-") as name, ExitStack() as stack:
            scratch = Path(name)
            avro = connector != "mariadb"
            registry = stack.enter_context(PrivateRegistry(scratch / "registry")).url if avro else ""
            chosen = variants(connector, registry)
            bench, truth = record_postgres(scratch, chosen) if connector == "postgres" else record_binlog(connector, scratch, chosen)
            save(connector, bench, truth, registry)
        for variant, records in bench.recorded.items():
            print(f"{connector}-{variant}: {len(records)} records")


if __name__ == "__main__":
    main(sys.argv[1:])
