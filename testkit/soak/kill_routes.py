"""The kinds of pipes in the kill rounds: how each is created, how its source changes, and how both ends are compared.

A route has one pipe at a time. `begin` makes another one: new tables at the source, a new state directory, a new target.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.cql.schema_reader import describe
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cells.sink import CellSink
from testkit.generators.cql_changes import COLUMNS as CQL_COLUMNS
from testkit.generators.cql_changes import AllKinds
from testkit.generators.workload import KEYS, TABLES, Workload, run_transaction
from testkit.machine.wait_condition import wait_until
from testkit.oracles.both_ends import assert_equal, log_end, sink_client, source_rows
from testkit.oracles.cell_views import selected, shown
from testkit.oracles.counted_rows import ENGINES, check_history, check_sums
from testkit.oracles.topic_rows import as_rows, assert_ordered, fold, folded_rows, read_sent
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.logged_cluster import LoggedCluster
from testkit.soak.kill_peers import KillPeers

COLUMNS = {"accounts": ("id", "owner", "balance", "changed"), "parts": ("account", "line", "amount"), "notes": ("title", "body", "stars")}
PARTITIONS = 3
_AVRO_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "balance": Decimal,
    "changed": datetime.fromisoformat,
    "amount": float,
    "body": bytes.decode,
}
_ARRIVAL_S = 600.0


class KillRoute(ABC):
    """One kind of pipe."""

    title: ClassVar[str]
    sink: ClassVar[str] = "embedded_clickhouse"
    """The name of the sink's connector."""

    def __init__(self, peers: KillPeers) -> None:
        self.peers = peers
        self.slug = type(self).__name__.lower()
        self.directory = peers.directory / self.slug
        self.directory.mkdir(parents=True)
        self.cycle = 0
        self.pipeline: Pipeline

    @property
    def place(self) -> Path:
        """The directory of the present pipe."""
        return self.directory / str(self.cycle)

    @property
    def sink_dir(self) -> Path:
        return self.place / "sink"

    def begin(self, *, keep: bool = False) -> None:
        """Create another pipe; `keep` preserves the directory of the previous one."""
        if self.cycle and not keep:
            shutil.rmtree(self.place)
        self.cycle += 1
        self.place.mkdir()
        self.pipeline = self._make()

    @abstractmethod
    def _make(self) -> Pipeline:
        """Create the source's tables and what the target needs."""

    @abstractmethod
    def change(self, chooser: Random) -> None:
        """Change the source while no pipe runs."""

    @abstractmethod
    def changing(self, seed: int) -> AbstractContextManager[object]:
        """Change the source while the block runs."""

    def settle(self) -> None:
        """Wait until a pipe can read the last change; most sources log it at once."""
        return

    @abstractmethod
    def compare(self) -> int:
        """Compare the target with the source's own SELECT, row by row; the number of rows. A difference is an AssertionError."""

    def steps(self) -> tuple[int, int]:
        """Return the pipe's progress from its state files: bytes of its snapshot's journal, and planned batches."""
        files = [self.pipeline.state / name for name in ("snapshot.jsonl", "copies.jsonl")]
        return sum(file.stat().st_size for file in files if file.exists()), self.pipeline.last_planned_batch()


class TableRoute(KillRoute):
    """From the tables of `testkit.generators.workload` in a MariaDB or MySQL database."""

    flavour: ClassVar[str]

    @property
    def database(self) -> str:
        return f"{self.slug}_{self.cycle}"

    def _make(self) -> Pipeline:
        server = self.peers.database_server(self.flavour)
        if self.cycle > 1:
            self.peers.execute(self.flavour, f"DROP DATABASE {self.slug}_{self.cycle - 1}")
        self.peers.execute(self.flavour, f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
        Workload(server, self.database, 0).prepare()
        return self._connect()

    def _connect(self) -> Pipeline:
        return Pipeline(self._source(), self._sink(), self.place / "state", self._options())

    def _source(self) -> str:
        return self.peers.account(self.flavour).url(self.database)

    @abstractmethod
    def _sink(self) -> str: ...

    def _options(self) -> tuple[str, ...]:
        return ("--chunk-rows", "300")

    def change(self, chooser: Random) -> None:
        server = self.peers.database_server(self.flavour)
        with closing(server.root_connection(self.database, autocommit=False)) as connection:
            for _ in range(chooser.choice((0, 3, 20))):
                run_transaction(connection, chooser)

    def changing(self, seed: int) -> AbstractContextManager[object]:
        return Workload(self.peers.database_server(self.flavour), self.database, seed, pause_s=0.05)


class EmbeddedRoute(TableRoute):
    """Into an embedded ClickHouse."""

    def _sink(self) -> str:
        return f"chdb:{self.sink_dir}"

    def compare(self) -> int:
        with self.pipeline.sink_served(self.sink_dir) as url, closing(sink_client(url)) as client:
            return assert_equal(client, self.peers.database_server(self.flavour), self.database, TABLES, KEYS)


class MariaDbToEmbedded(EmbeddedRoute):
    title, flavour = "MariaDB to embedded ClickHouse", "mariadb"


class MySqlToEmbedded(EmbeddedRoute):
    title, flavour = "MySQL to embedded ClickHouse", "mysql"


class CountingEngines(EmbeddedRoute):
    """Into engines that count rows: a change that is stored twice makes a difference."""

    title, flavour = "MySQL to engines that count rows", "mysql"

    def _options(self) -> tuple[str, ...]:
        return tuple(word for table, engine in ENGINES.items() for word in ("--set", f'tables."{self.database}.{table}".engine={engine}'))

    def compare(self) -> int:
        server = self.peers.database_server(self.flavour)
        with self.pipeline.sink_served(self.sink_dir) as url, closing(sink_client(url)) as client:
            for table in ("accounts", "parts"):
                check_sums(client, server, self.database, table)
            check_history(client, server, self.database)
        return sum(len(source_rows(server, self.database, table)) for table in ENGINES)


class MariaDbToServer(TableRoute):
    title, flavour = "MariaDB to a ClickHouse server", "mariadb"
    sink = "clickhouse"

    def _sink(self) -> str:
        server = self.peers.clickhouse
        return f"clickhouse://default:{server.password}@127.0.0.1:{server.port}"

    def compare(self) -> int:
        with closing(sink_client(self._sink())) as client:
            return assert_equal(client, self.peers.database_server(self.flavour), self.database, TABLES, KEYS)


class DirectoryLog(EmbeddedRoute):
    """From copied log files. More of the log is copied before each start."""

    title, flavour = "Log files of MariaDB to embedded ClickHouse", "mariadb"
    _first = 0

    @property
    def _files(self) -> Path:
        return self.place / "files"

    def _make(self) -> Pipeline:
        self._files.mkdir()
        self.peers.execute(self.flavour, "FLUSH BINARY LOGS")
        self._first = log_end(self.peers.database_server(self.flavour))[0]
        pipeline = super()._make()
        self._copy()
        return pipeline

    def _connect(self) -> Pipeline:
        return Pipeline(f"binlog:{self._files}", self._sink(), self.place / "state", tables=(f"{self.database}.*",))

    def change(self, chooser: Random) -> None:
        super().change(chooser)
        self._copy()

    def changing(self, seed: int) -> AbstractContextManager[object]:
        del seed
        return nullcontext()

    def _copy(self) -> None:
        for path in self.peers.database_server(self.flavour).binlog_dir.glob("binlog.0*"):
            if int(path.suffix[1:]) >= self._first:
                shutil.copy(path, self._files)


class KafkaRoute(TableRoute):
    """Into topics of a broker."""

    def _sink(self) -> str:
        return self.peers.broker.url()

    def compare(self) -> int:
        total = 0
        for table in TABLES:
            expected = source_rows(self.peers.database_server(self.flavour), self.database, table)
            found = self._read(table)
            missing, extra = set(expected) - set(found), set(found) - set(expected)
            assert found == expected, f"{table}: {len(missing)} missing, {len(extra)} extra; {list(missing)[:3]}; {list(extra)[:3]}"
            total += len(expected)
        return total

    @abstractmethod
    def _read(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a reader of the table's topic."""


class MySqlToDebeziumJson(KafkaRoute):
    title, flavour = "MySQL to Kafka, Debezium JSON", "mysql"
    sink = "kafka"

    def _options(self) -> tuple[str, ...]:
        return ("--set", "kafka.format=debezium", "--set", f"kafka.partitions={PARTITIONS}")

    def _read(self, table: str) -> list[tuple[Any, ...]]:
        return folded_rows(self.peers.broker, f"headrace.{self.database}.{table}", COLUMNS[table])


class MariaDbToAvro(KafkaRoute):
    title, flavour = "MariaDB to Kafka, Avro", "mariadb"
    sink = "kafka"

    def _options(self) -> tuple[str, ...]:
        return ("--set", f"kafka.partitions={PARTITIONS}")

    def _read(self, table: str) -> list[tuple[Any, ...]]:
        messages = read_sent(self.peers.broker, f"{self.database}_{table}_generic")
        # An interrupted snapshot sends its rows again at a later position, then changes from before it (docs/kafka.md).
        assert_ordered([message for message in messages if not message.is_snapshot])
        return as_rows(fold(messages, by_position=False).values(), COLUMNS[table], _avro_value)


def _avro_value(name: str, value: Any) -> Any:
    return _AVRO_VALUES[name](value) if name in _AVRO_VALUES and value is not None else value


class DebeziumTopics(EmbeddedRoute):
    """From topics that Debezium writes. Another pipe reads the same topics from their beginning."""

    title, flavour = "Topics of Debezium to embedded ClickHouse", "mysql"
    database, _prefix = "shop_of_debezium", "deb"
    _marks = 0

    def _make(self) -> Pipeline:
        if self.cycle == 1:
            self.peers.execute(self.flavour, f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
            Workload(self.peers.database_server(self.flavour), self.database, 0).prepare()
            self.peers.start_debezium(self.database, self._prefix)
            self.settle()
        return self._connect()

    def _connect(self) -> Pipeline:
        options = ("--topics", f"{self._prefix}.{self.database}.*", "--max-offsets", "1000")
        return Pipeline(self.peers.broker.url(), self._sink(), self.place / "state", options)

    def settle(self) -> None:
        """Write a row to each table and wait until Debezium has sent it: it sends a table's changes in the order of the log."""
        self._marks += 1
        mark = f"mark {self._marks:06}"
        rows = {"accounts": f"(1000000, '{mark}', 0, NULL)", "parts": f"('{mark}', 1, 0)", "notes": f"('the last', '{mark}', 0)"}
        self.peers.execute(self.flavour, *(f"REPLACE INTO {self.database}.{table} VALUES {row}" for table, row in rows.items()))
        topics = [f"{self._prefix}.{self.database}.{table}" for table in rows]
        wait_until(lambda: all(self._holds(topic, mark.encode()) for topic in topics), _ARRIVAL_S, 0.2)

    def _holds(self, topic: str, mark: bytes) -> bool:
        """Whether one of the last messages of the topic's partitions holds the mark."""
        consumer = Consumer(self.peers.broker.client_settings(group_id="oracle", enable_auto_commit=False))
        try:
            found = consumer.list_topics(timeout=20).topics
            places = [TopicPartition(topic, number) for number in (found[topic].partitions if topic in found else ())]
            ends = [(place, consumer.get_watermark_offsets(place, timeout=20)[1]) for place in places]
            tails = [TopicPartition(place.topic, place.partition, max(end - 3, 0)) for place, end in ends if end]
            consumer.assign(tails)
            messages = consumer.consume(3 * len(tails), timeout=1) if tails else []
            return any(mark in (message.value() or b"") for message in messages)
        except KafkaException:
            # A topic that was created just now has no leader yet; the caller asks again.
            return False
        finally:
            consumer.close()


class ScyllaToEmbedded(KillRoute):
    """From ScyllaDB's log: Apache Cassandra behind the capture layer."""

    title = "ScyllaDB's log to embedded ClickHouse"

    @property
    def keyspace(self) -> str:
        return f"{self.slug}_{self.cycle}"

    def _make(self) -> Pipeline:
        self._create(self.keyspace)
        cluster = LoggedCluster(self.peers.cql, self.keyspace, f"CREATE TABLE {self.keyspace}.t ({CQL_COLUMNS})")
        changes = AllKinds(self.peers.cql, self.keyspace, self.cycle)
        for _ in range(60):
            cluster.execute(changes.statement())
        return Pipeline(self.peers.cassandra.url(self.keyspace), self._sink(), self.place / "state", tuple(cluster.settings), tables=("t",))

    def _create(self, keyspace: str) -> None:
        self.peers.cql.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")

    def _sink(self) -> str:
        return f"chdb:{self.sink_dir}"

    def change(self, chooser: Random) -> None:
        with AllKinds(self.peers.cql, self.keyspace, chooser.randrange(1 << 30)).going_on():
            time.sleep(chooser.uniform(0, 0.5))

    def changing(self, seed: int) -> AbstractContextManager[object]:
        return AllKinds(self.peers.cql, self.keyspace, seed).going_on()

    def compare(self) -> int:
        table = describe(self.peers.cql, TableName(self.keyspace, "t"))
        with self.pipeline.sink_served(self.sink_dir) as url:
            here = shown(CellSink.from_url(url.replace("http://", "clickhouse://")), table)
        return _same(selected(self.peers.cql, table), here)


class ScyllaToCql(ScyllaToEmbedded):
    """Into another keyspace of the same cluster."""

    title = "ScyllaDB's log to a CQL cluster"
    sink = "cql"

    def _sink(self) -> str:
        self._create(f"{self.keyspace}_to")
        return self.peers.cassandra.url(f"{self.keyspace}_to", scheme="cql")

    def compare(self) -> int:
        tables = [describe(self.peers.cql, TableName(keyspace, "t")) for keyspace in (self.keyspace, f"{self.keyspace}_to")]
        return _same(*(selected(self.peers.cql, table) for table in tables))


def _same(there: list[dict[str, Any]], here: list[dict[str, Any]]) -> int:
    different = [row for row in here if row not in there] + [row for row in there if row not in here]
    assert not different, f"{len(different)} rows differ: {different[:4]}"
    return len(there)


ROUTES: tuple[type[KillRoute], ...] = (
    MariaDbToEmbedded,
    MySqlToDebeziumJson,
    ScyllaToEmbedded,
    CountingEngines,
    MariaDbToServer,
    DebeziumTopics,
    DirectoryLog,
    MySqlToEmbedded,
    ScyllaToCql,
    MariaDbToAvro,
)
