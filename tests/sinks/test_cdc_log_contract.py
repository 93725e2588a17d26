"""The contract of `headrace.sinks.cdc_log_sink` for every registered sink.

Repeated and reordered blocks leave the same rows, or only repeat messages.

A sink joins the suite by a fixture named after its connector. `test_every_registered_log_sink_has_a_case` fails if one is missing.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cql.blocks import LogBlock
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.log import Operation
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.runtime.tasks import DeferringWriter
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.postimages import PostimageSink, qualified
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.cql.options import ReplayOptions
from headrace.sinks.kafka.options import KafkaOptions
from headrace.sinks.registry import SINK_CONNECTORS
from testkit.generators.cql_blocks import log_block
from testkit.oracles.cell_views import shown
from testkit.oracles.topics import read_topic
from testkit.pipelines.sink_places import Place
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import GivenCluster, PrivateCassandra

CDC_LOGS = ("clickhouse", "embedded_clickhouse", "kafka", "cql", "stdout")
CASES = (*CDC_LOGS, "row_images")
"""ClickHouse has a second sink, which stores postimages."""


def test_every_registered_log_sink_has_a_case() -> None:
    assert {one.name for one in SINK_CONNECTORS if one.open_log is not None} == set(CDC_LOGS)


@dataclass(frozen=True)
class Logged:
    """A sink of log rows, and a way to see a table: its rows, or the set of its messages."""

    sink: LogSink
    keyspace: str
    rows: Callable[[CqlTable], list[dict[str, Any]]] | None
    messages: Callable[[CqlTable], set[str]] | None = None
    images: bool = False
    """Whether the log needs a postimage of each change."""


def _cells(place: Place, name: str, directory: Path) -> Iterator[Logged]:
    with place.open_log(name, directory) as named:
        sink = named.sink
        assert isinstance(sink, CellSink)
        yield Logged(sink, "contract", lambda table: shown(sink, table))
        disconnect(sink.sink.target)


@pytest.fixture
def clickhouse_log(clickhouse_place: Place, tmp_path: Path) -> Iterator[Logged]:
    yield from _cells(clickhouse_place, "clickhouse", tmp_path)


@pytest.fixture
def embedded_clickhouse_log(embedded_clickhouse_place: Place, tmp_path: Path) -> Iterator[Logged]:
    yield from _cells(embedded_clickhouse_place, "embedded_clickhouse", tmp_path)


@pytest.fixture
def row_images_log(embedded_clickhouse_place: Place, tmp_path: Path) -> Iterator[Logged]:
    with embedded_clickhouse_place.open_log("embedded_clickhouse", tmp_path, row_images=True) as named:
        sink = named.sink
        assert isinstance(sink, PostimageSink)

        def rows(table: CqlTable) -> list[dict[str, Any]]:
            names = [column.name for column in table.columns]
            found = sink.sink.reader().query(f"SELECT {', '.join(names)} FROM {qualified(table, sink.sink.scope)} FINAL")[1]
            return [dict(zip(names, row, strict=True)) for row in found]

        yield Logged(sink, "contract", rows, images=True)
        disconnect(sink.sink.target)


@pytest.fixture
def cql_log(cassandra: PrivateCassandra | GivenCluster, cql: CqlSession, keyspace: str, tmp_path: Path) -> Iterator[Logged]:
    def rows(table: CqlTable) -> list[dict[str, Any]]:
        names = [column.name for column in table.columns]
        found = cql.execute(f"SELECT {', '.join(names)} FROM {keyspace}.{table.name.table}")
        return [dict(zip(names, row, strict=True)) for row in found]

    with Place(cassandra.url(keyspace, scheme="cql"), ReplayOptions()).open_log("cql", tmp_path) as named:
        yield Logged(named.sink, "contract", rows)


@pytest.fixture
def kafka_log(broker: PrivateBroker, tmp_path: Path) -> Iterator[Logged]:
    with Place(broker.url(), KafkaOptions(partitions=1, prefix="contract")).open_log("kafka", tmp_path) as named:
        sink = named.sink

        def messages(table: CqlTable) -> set[str]:
            return {f"{one.key!r} {one.value!r}" for one in read_topic(broker, sink.target_of(table.name))}

        yield Logged(sink, "contract", None, messages)


@pytest.fixture
def stdout_log(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Logged]:
    printed: list[str] = []

    def messages(table: CqlTable) -> set[str]:
        printed.extend(capsysbinary.readouterr().out.decode().splitlines())
        return {line for line in printed if table.name.table in line}

    with Place("stdout:").open_log("stdout", tmp_path) as named:
        yield Logged(named.sink, "contract", None, messages)


@pytest.fixture(params=CASES)
def logged(request: pytest.FixtureRequest) -> Logged:
    found: Logged = request.getfixturevalue(f"{request.param}_log")
    return found


def log_of(table: CqlTable, *, images: bool) -> list[LogBlock]:
    """Two rows: one is inserted and updated, one is inserted and deleted. `images`: changes come with their postimages."""
    update, insert, delete, start = 1, 2, 3, 1_700_000_000_000_000
    entries: list[dict[str, Any]] = [
        {"op": insert, "at": start, "p": 1, "c": 1, "v": "old"},
        {"op": insert, "at": start + 5, "p": 1, "c": 2, "v": "gone"},
        {"op": update, "at": start + 10, "p": 1, "c": 1, "v": "new"},
        {"op": delete, "at": start + 20, "p": 1, "c": 2},
    ]
    shown = Operation.POSTIMAGE.value
    return [log_block(table, [entry, {**entry, "op": shown}] if images and "v" in entry else [entry]) for entry in entries]


def test_repeated_and_reordered_log_rows_leave_the_same_data(logged: Logged) -> None:
    definition = f"CREATE TABLE t_{secrets.token_hex(6)} (p int, c int, v text, PRIMARY KEY (p, c))"
    [table] = CqlCatalog(logged.keyspace).apply_all(definition).tables.values()
    blocks = log_of(table, images=logged.images)
    logged.sink.prepare([table])
    logged.sink.prepare([table])
    writer = pickle.loads(pickle.dumps(logged.sink)).for_replay().writer()
    for one in [*reversed(blocks), *blocks, blocks[0]]:
        writer.write(one)
    if isinstance(writer, DeferringWriter):
        writer.complete()
    writer.close()
    if logged.rows is not None:
        assert [(row["p"], row["c"], row["v"]) for row in logged.rows(table)] == [(1, 1, "new")]
    else:
        assert logged.messages is not None
        assert len(logged.messages(table)) == len(blocks)


def test_a_log_sink_without_a_table_store_keeps_its_rows(logged: Logged) -> None:
    store = logged.sink.table_store()
    assert (store is None) == (not isinstance(logged.sink, CellSink | PostimageSink))
    if store is not None and logged.rows is not None:
        definition = f"CREATE TABLE t_{secrets.token_hex(6)} (p int, c int, v text, PRIMARY KEY (p, c))"
        [table] = CqlCatalog(logged.keyspace).apply_all(definition).tables.values()
        logged.sink.prepare([table])
        writer = logged.sink.writer()
        for one in log_of(table, images=logged.images):
            writer.write(one)
        writer.close()
        for _ in range(2):
            store.clear(table)
            assert logged.rows(table) == []
