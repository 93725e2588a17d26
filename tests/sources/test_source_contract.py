"""The contract of a source (`headrace.sources.base`), for every source that plans its own batches, on real servers.

A checkpoint stores offsets only. After a crash another process plans the same range again: it must read the same changes under the same
identities, or rows would be lost or repeated. Debezium's topics have no planner (Spark plans their offsets); their readers have
`sources/debezium/test_partition_reader.py`.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cql import timeuuid
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table, create_table
from headrace.cql.log import END, SEQUENCE, STREAM, TIME
from headrace.cql.options import CdcOptions
from headrace.cql.session import CqlSession
from headrace.demo.private_server import PrivateServer
from headrace.model.table_selection import Selection
from headrace.sources.base import Offset, Planner, Reader, Source, Split
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import BinlogDirectory, MySQLSource
from headrace.sources.mysql.split_reader import MySQLReader
from headrace.sources.scylla.generations import LogStart, ServerCatalog, oldest
from headrace.sources.scylla.log_tables import log_name
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_planner import ScyllaSource
from headrace.sources.scylla.window_reader import LogReader, TableLog
from headrace.sources.splits import decode_split, encode_split
from testkit.oracles.binlogs import images_of, open_logbook
from testkit.servers.accounts import Account
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation

CHANGES = 240


@dataclass
class Case:
    """A source, its reader, and a way to make changes."""

    source: Source
    reader: Reader[Any, Any, Any]
    write: Callable[[int, int], None]
    """Makes changes: the first number, and how many."""
    identities: Callable[[Iterable[Any]], list[Any]]
    """The identity of each change in blocks: its version, or its place in the log."""


def mysql_cases(server: PrivateServer, database: str, account: Account, directory: Path) -> Iterator[dict[str, Case]]:
    with open_logbook(server, database) as book:
        book.run("FLUSH BINARY LOGS", "CREATE TABLE t (id INT PRIMARY KEY, body VARCHAR(200))")
        place = book.place()
        start, mariadb = BinlogPosition(place.file, place.offset), server.flavour == "mariadb"
        limits = BatchLimits(flush_rows=50, flush_seconds=0, parallelism=2)
        address = parse_mysql_url(account.url())
        tables = book.catalog("t").tables
        selection = Selection((f"{database}.t",))

        def write(first: int, count: int) -> None:
            for number in range(first, first + count):
                book.run(f"INSERT INTO t VALUES ({number}, REPEAT('x', {number % 190}))")

        def identities(blocks: Iterable[Any]) -> list[Any]:
            return [image.version for image in images_of(list(blocks))]

        server_source = MySQLSource(address, start, directory / "relay", 1 << 30, limits, mariadb)
        files_source = BinlogDirectory(server.binlog_dir, start, limits, mariadb)
        yield {
            "server": Case(server_source, MySQLReader(address, tables, selection, ReadOptions(), 0), write, identities),
            "files": Case(files_source, MySQLReader(None, tables, selection, ReadOptions(), 0), write, identities),
        }


@pytest.fixture(params=["server", "files"])
def mysql_case(
    request: pytest.FixtureRequest, server: PrivateServer, database: str, replica_account: Account, tmp_path: Path
) -> Iterator[Case]:
    for cases in mysql_cases(server, database, replica_account, tmp_path):
        yield cases[request.param]


@pytest.fixture
def scylla_case(cql: CqlSession, keyspace: str, tmp_path: Path) -> Case:
    table = CqlCatalog().apply_all(f"CREATE TABLE {keyspace}.t (pk int, v text, PRIMARY KEY (pk))").named(f"{keyspace}.t")
    for statement in (create_table(table), create_log_table(table, CdcOptions(ttl=0), cassandra=True)):
        cql.execute(statement.rstrip(";"))
    create_tables(cql, keyspace)
    begin = time.time_ns() // 1000 - 4_000_000_000
    generation = make_generation(begin // 1000, 3, 2)
    add_generation(cql, keyspace, generation)
    options = ScyllaOptions(confidence=1, window=0.5, batch_rows=50, streams_per_query=2, generations=keyspace, tablets=keyspace)
    log = f"{keyspace}.{log_name(table.name).table}"

    def write(first: int, count: int) -> None:
        for number in range(first, first + count):
            values = {
                STREAM: generation.streams[number % len(generation.streams)],
                TIME: timeuuid.make(begin + 1000 + number * 15_000_000 if number < CHANGES else time.time_ns() // 1000, number | 1 << 63),
                SEQUENCE: 0,
                "cdc$operation": 1,
                "pk": number,
                "v": "x" * (number % 190),
                END: True,
            }
            columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join(["%s"] * len(values))
            cql.execute(f"INSERT INTO {log} ({columns}) VALUES ({marks})", list(values.values()))

    def identities(blocks: Iterable[Any]) -> list[Any]:
        rows = [row for block in blocks for row in block.rows.select([STREAM, TIME, SEQUENCE]).to_pylist()]
        return [(row[STREAM], row[TIME], row[SEQUENCE]) for row in rows]

    start = LogStart(oldest(ServerCatalog(cql, options).generations(table.name)), 0, 0)
    source = ScyllaSource(cql.address, {table.name: start}, options, 2, tmp_path / "pace.json")
    return Case(source, LogReader(cql.address, {table.name: TableLog(table, 0)}, options), write, identities)


def read(case: Case, splits: Iterable[Split]) -> list[Any]:
    """The identities in splits, sorted: streams of a log are read in parallel.

    Each split goes through JSON, and the reader is pickled, as for a task of another process.
    """
    reader = pickle.loads(pickle.dumps(case.reader))
    decoded = [decode_split(encode_split(split), reader.split_types) for split in splits if isinstance(split, reader.split_types)]
    return sorted(case.identities(block for split in decoded for block in reader.read(split)))


def opened(case: Case) -> Planner:
    return pickle.loads(pickle.dumps(case.source)).planner()


def batches(case: Case, planner: Planner, start: Offset, count: int) -> list[tuple[Offset, Offset, list[object]]]:
    """The batches from `start` on until they hold `count` changes; offsets go through JSON, as the checkpoint stores them."""
    found: list[tuple[Offset, Offset, list[object]]] = []
    deadline = time.monotonic() + 60
    while sum(len(changes) for _, _, changes in found) < count:
        assert time.monotonic() < deadline, f"{sum(len(changes) for _, _, changes in found)} of {count} changes were read"
        end = json.loads(json.dumps(planner.plan(start)))
        if end != start:
            found.append((start, end, read(case, planner.splits(start, end))))
            start = end
    return found


def check_contract(case: Case) -> None:
    planner = opened(case)
    try:
        case.write(0, CHANGES)
        first = batches(case, planner, json.loads(json.dumps(planner.initial())), CHANGES)
        once = [change for _, _, changes in first for change in changes]
        assert len(once) == len(set(once)) == CHANGES, "every change is read once"
        assert len([changes for _, _, changes in first if changes]) > 1, "the limits cut the changes into several batches"
        # The same planner, asked again for the same ranges, as after a failed task.
        for start, end, changes in first:
            assert read(case, planner.splits(start, end)) == changes
        # Commit half of the batches. What is left can be read after that.
        middle = len(first) // 2
        planner.commit(first[middle - 1][1])
        for start, end, changes in first[middle:]:
            assert read(case, planner.splits(start, end)) == changes
        # Later changes come behind all others, and none comes twice.
        case.write(CHANGES, CHANGES // 2)
        more = batches(case, planner, first[-1][1], CHANGES // 2)
        later = [change for _, _, changes in more for change in changes]
        assert len(set(once) | set(later)) == CHANGES + CHANGES // 2
    finally:
        planner.stop()
    # Another process plans the range of the last batch again, as after a crash.
    other = opened(case)
    try:
        start, end, changes = next(batch for batch in reversed(first) if batch[2])
        assert read(case, other.splits(start, end)) == changes
    finally:
        other.stop()


def test_a_binary_log(mysql_case: Case) -> None:
    check_contract(mysql_case)


def test_a_log_table(scylla_case: Case) -> None:
    check_contract(scylla_case)
