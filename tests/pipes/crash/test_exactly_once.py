"""Engines that count rows get every change once: after interruptions, repeated writes and lost responses.

The pipe runs without Spark (`testkit.pipelines.local_pipeline`), so that it can be ended at every block it writes. Both sides are checked
without Headrace: the source by its SELECT and by `mysql-replication`, the sink by its sums.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.model.version import unpack_version
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.rows import row_decoder
from headrace.sources.mysql.segments import segment_reader
from testkit.oracles.binlogs import Logbook, Place, open_logbook
from testkit.oracles.both_ends import source_rows
from testkit.pipelines.local_pipeline import Cutter, Killed, without_spark
from testkit.servers.replication import await_executed, executed, promote, start_replica
from testkit.servers.servers import execute

pytestmark = pytest.mark.scaled

ENGINES = {
    "folded": TargetEngine.COLLAPSING,
    "paired": TargetEngine.VERSIONED,
    "events": TargetEngine.HISTORY,
    "latest": TargetEngine.REPLACING,
}
TABLES = (*ENGINES, "folded_parted", "events_parted")
COUNTING = tuple(table for table in TABLES if table != "latest")
COLUMNS = "id, n, s"


@pytest.fixture
def sink(target: ClickHouseTarget) -> ClickHouseSink:
    tables = tuple((f"*.{table}", (("engine", engine),)) for table, engine in ENGINES.items())
    parted = tuple((f"*.{table}_parted", (("engine", engine), ("partition_by", "n % 3"))) for table, engine in ENGINES.items())
    return ClickHouseSink(target, ClickHouseOptions(tables=(*tables, *parted)))


class Runs:
    """One pipe, run again and again."""

    def __init__(self, book: Logbook, sink: ClickHouseSink, state: Path) -> None:
        self.book, self.sink, self.state = book, sink, state

    def __call__(self, *, slots: int = 2, flush_rows: int = 0, snapshot: SnapshotMode = SnapshotMode.LOCK_FREE) -> None:
        """Replicate up to now."""
        settings = PipeSettings(
            Selection((f"{self.book.database}.*",)),
            self.state,
            once=True,
            flush_rows=flush_rows,
            flush_seconds=0.0,
            snapshot=snapshot,
            chunk_rows=40,
            master=f"local[{slots}]",
        )
        MySQLPipe(self.book.address, self.sink, "sink", settings, LogView()).run()


@pytest.fixture
def runs(book: Logbook, sink: ClickHouseSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    without_spark(monkeypatch)
    # Small blocks, so that a small workload has many.
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    monkeypatch.setattr(segment_reader, "_WINDOW_EVENTS", 16)
    return Runs(book, sink, tmp_path / "state")


def prepare(book: Logbook, rows: int = 100) -> None:
    for table in TABLES:
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT NOT NULL, s VARCHAR(40))")
        book.insert(table, [(i, i % 7, f"row {i}") for i in range(rows)])
    book.run(f"ANALYZE TABLE {', '.join(TABLES)}")


def change(book: Logbook, step: int) -> None:
    """Make every kind of change to every table: rows inserted and deleted in one step, changed keys, changed partitions."""
    for table in TABLES:
        new = 1000 + step * 10
        book.run("BEGIN", f"INSERT INTO {table} VALUES {', '.join(f'({new + i}, {i}, NULL)' for i in range(8))}")
        book.run(
            f"UPDATE {table} SET n = n + 1 WHERE id % 5 = {step % 5}", f"DELETE FROM {table} WHERE id IN ({step}, {new + 3})", "COMMIT"
        )
        book.run(f"UPDATE {table} SET id = id + 50000 WHERE id = {new + 4}", f"UPDATE {table} SET s = 'step {step}' WHERE id = {new + 1}")
        book.run(f"INSERT INTO {table} VALUES ({step}, 0, 'again')")


def check(client: Client, book: Logbook, database: str) -> None:
    """Check that the sink's sums equal the source's rows, and the history the source's log."""
    for table in TABLES:
        expected = Counter(source_rows(book.server, book.database, table))
        place = f"`{database}`.{table}"
        if table.startswith("events"):
            check_history(client, book, place, table)
            continue
        # A row that moved to another partition collapses in each of them; merged, their order would be lost.
        apart = " SETTINGS do_not_merge_across_partitions_select_final = 1" if table == "folded_parted" else ""
        final = client.query(f"SELECT {COLUMNS} FROM {place} FINAL WHERE _sign = 1{apart}").result_rows
        assert Counter(map(tuple, final)) == expected, table
        if table != "latest":
            sums = client.query(f"SELECT {COLUMNS}, toInt32(sum(_sign)) AS times FROM {place} GROUP BY {COLUMNS} HAVING times != 0")
            assert Counter({tuple(row[:-1]): row[-1] for row in sums.result_rows}) == expected, table


def check_history(client: Client, book: Logbook, place: str, table: str) -> None:
    """Check that the history has each snapshot row once, and each later change of the log once."""
    found = Counter(tuple(row) for row in client.query(f"SELECT _operation, {COLUMNS} FROM {place}").result_rows)
    [(versions, position)] = client.query(
        f"SELECT uniqExact(_version), max(_version) FROM {place} WHERE _operation = 'snapshot'"
    ).result_rows
    assert versions == 1, table
    _, number, offset = unpack_version(position)
    start = Place(f"{book.place().file.rpartition('.')[0]}.{number:06}", offset)
    changes = book.replicated(start, table)
    moving = ("id", "n") if table.endswith("parted") else ("id",)
    moves = {n for n, (old, new) in enumerate(itertools.pairwise(changes)) if old[0] == "before" and _differ(old[1], new[1], moving)}
    logged = Counter((kind, *row.values()) for n, (kind, row) in enumerate(changes) if kind != "before" or n in moves)
    assert logged == Counter({row: times for row, times in found.items() if row[0] != "snapshot"}), table
    assert sum(logged.values()) > 0
    # The snapshot rows plus the log's changes give the source's rows.
    now = Counter({row[1:]: times for row, times in found.items() if row[0] == "snapshot"})
    for kind, row in changes:
        now[tuple(row.values())] += -1 if kind in ("before", "delete") else 1
    assert +now == Counter(source_rows(book.server, book.database, table)), table


def _differ(old: dict[str, Any], new: dict[str, Any], columns: tuple[str, ...]) -> bool:
    return any(old[column] != new[column] for column in columns)


def survive(runs: Runs, cutter: Cutter, block: int, *, answered: bool, **settings: Any) -> bool:
    """Run until the chosen block ends the pipe; return whether it did."""
    cutter.arm(block, answered=answered)
    try:
        runs(**settings)
    except Killed:
        return True
    finally:
        cutter.disarm()
    return False


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_one_kill[MySqlToDebeziumJson]")
def test_killed_at_every_block(runs: Runs, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    book, database = runs.book, runs.sink.target.database
    prepare(book)
    cutter = Cutter(monkeypatch)
    # First the snapshot, then the stream: each run gets one block further, with other settings.
    landed: Counter[str] = Counter()
    for step, block in enumerate((0, 2, 5, 9)):
        mode = SnapshotMode.CONSISTENT if step % 3 == 1 else SnapshotMode.LOCK_FREE
        if survive(runs, cutter, block, answered=step % 2 == 0, slots=1 + step % 3, snapshot=mode):
            landed["snapshot"] += 1
        change(book, step)
    runs()
    check(client, book, database)
    for step, block in enumerate((0, 3, 8, 14, 20), 20):
        change(book, step)
        flush_rows = (0, 150, 40)[step % 3]
        if survive(runs, cutter, block, answered=step % 2 == 0, slots=1 + step % 3, flush_rows=flush_rows):
            landed["stream"] += 1
    assert landed["snapshot"] >= 3
    assert landed["stream"] >= 4
    runs(slots=3)
    check(client, book, database)


def shown(client: Client, book: Logbook, sink: ClickHouseSink) -> None:
    """Check that every table shows the source's rows, and that the sums of collapsing ones equal them."""
    for table in TABLES:
        expected = Counter(source_rows(book.server, book.database, table))
        read = sink.without_cache().reader().read_range(book.schema(table))
        assert Counter(tuple(row[column] for column in ("id", "n", "s")) for row in read.to_pylist()) == expected, table
        if table.startswith(("folded", "paired")):
            place = f"`{sink.target.database}`.{table}"
            sums = client.query(f"SELECT {COLUMNS}, toInt32(sum(_sign)) AS times FROM {place} GROUP BY {COLUMNS} HAVING times != 0")
            assert Counter({tuple(row[:-1]): row[-1] for row in sums.result_rows}) == expected, table


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_one_kill[MySqlToDebeziumJson]")
def test_truncation_and_resync(runs: Runs, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is truncated, or read again on demand, counts the changes after that, also after a crash."""
    book, sink = runs.book, runs.sink
    prepare(book, rows=40)
    runs()
    cutter = Cutter(monkeypatch)
    change(book, 1)
    book.run(*(f"TRUNCATE TABLE {table}" for table in TABLES))
    change(book, 2)
    assert survive(runs, cutter, 3, answered=True)
    change(book, 3)
    assert survive(runs, cutter, 9, answered=False)
    runs()
    shown(client, book, sink)
    # The tables in the sink are damaged, and read again.
    for table in COUNTING:
        client.command(f"INSERT INTO `{sink.target.database}`.{table} SELECT * FROM `{sink.target.database}`.{table}")
    directory = StateDirectory(runs.state)
    request_resync(directory, (f"{book.database}.folded*", f"{book.database}.paired*"))
    change(book, 4)
    assert survive(runs, cutter, 1, answered=True)
    change(book, 5)
    assert survive(runs, cutter, 2, answered=True, snapshot=SnapshotMode.CONSISTENT)
    change(book, 6)
    runs()
    shown(client, book, sink)


def test_existing_rows_are_not_counted(runs: Runs, client: Client) -> None:
    book, database = runs.book, runs.sink.target.database
    prepare(book, rows=5)
    runs.sink.prepare([book.schema(table) for table in TABLES])
    client.command(f"INSERT INTO `{database}`.folded (id, n, _sign, _version) VALUES (1, 1, 1, 1)")
    with pytest.raises(DefiniteError, match="holds rows already, and its engine adds rows up"):
        runs()
    client.command(f"TRUNCATE TABLE `{database}`.folded")
    runs()
    change(book, 1)
    runs()
    check(client, book, database)


@pytest.mark.usefixtures("flavour")
@pytest.mark.soak("mysql", because="test_failover_stream fails over on both")
def test_another_server_takes_over(
    sink: ClickHouseSink,
    client: Client,
    fresh_server: Callable[..., PrivateServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replica's log has the same changes with other versions: tables that count are read again, and a half-written batch is not counted
    twice."""
    without_spark(monkeypatch)
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    cutter = Cutter(monkeypatch)
    primary = fresh_server()
    replica = start_replica(primary, fresh_server)
    execute(primary, "CREATE DATABASE shop CHARACTER SET utf8mb4")
    with open_logbook(primary, "shop") as book:
        prepare(book, rows=30)
        before = Runs(book, sink, tmp_path / "state")
        before()
        change(book, 1)
        assert survive(before, cutter, 9, answered=True)
        await_executed(replica, executed(primary))
    primary.stop()
    promote(replica)
    with open_logbook(replica, "shop") as book:
        after = Runs(book, sink, tmp_path / "state")
        change(book, 2)
        assert survive(after, cutter, 2, answered=False)
        change(book, 3)
        after()
        shown(client, book, sink)
        change(book, 4)
        after()
        shown(client, book, sink)
