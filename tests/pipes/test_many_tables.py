"""One pipe with many tables: the snapshot, changes of every table, new tables and ALTER statements end with 0 differences.

The normal run has some hundred tables and drives the pipe without Spark. With HEADRACE_SOAK=1 (`make soak-suites`) the real command has
3,000 tables of each server (HEADRACE_TABLES: another number), and the test prints time and memory of each phase.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.tables import target_cache
from headrace.sinks.clickhouse.tables.target_table import TargetTable
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Finished, Pipeline, Run, resident_bytes
from testkit.servers.accounts import create_locking_account

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
TABLES = int(os.environ.get("HEADRACE_TABLES", "3000")) if SOAK else 150
NEW_TABLES = min(TABLES // 30, 30)
TIMEOUT_S = 3600.0
ROWS = 10
SHAPES = (
    "(id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(9,2))",
    "(part INT, line INT, at DATETIME(6), PRIMARY KEY (part, line))",
    "(a INT, b VARCHAR(20))",
)
ALTERATIONS = (
    "ADD COLUMN added INT NOT NULL DEFAULT 7",
    "ADD COLUMN first_one VARCHAR(9) DEFAULT 'x' FIRST",
    "COMMENT 'altered'",
)


def table_name(number: int) -> str:
    return f"t{number:04d}"


def rows_of(number: int, first: int, count: int) -> str:
    """The VALUES of an INSERT into a table of this number."""
    kind = number % len(SHAPES)
    rows = {0: "({n}, 'name {n}', {n}.25)", 1: "({n}, {t}, '2024-05-06 07:08:09.{n:06d}')", 2: "({n}, 'row {n}')"}
    return ", ".join(rows[kind].format(n=n, t=number) for n in range(first, first + count))


def create_tables(book: Logbook, numbers: range) -> None:
    for number in numbers:
        book.run(f"CREATE TABLE {table_name(number)} {SHAPES[number % len(SHAPES)]}")
        book.run(f"INSERT INTO {table_name(number)} VALUES {rows_of(number, 0, ROWS)}")


def change_tables(book: Logbook, numbers: range) -> None:
    """Run an INSERT, an UPDATE and a DELETE in every table; many tables share a transaction."""
    key = {0: "id", 1: "part", 2: "a"}
    value = {0: "name = 'other'", 1: "at = '2025-01-01'", 2: "b = 'other'"}
    book.run("BEGIN")
    for number in numbers:
        name, kind = table_name(number), number % len(SHAPES)
        book.run(f"INSERT INTO {name} VALUES {rows_of(number, ROWS, 3)}")
        book.run(f"UPDATE {name} SET {value[kind]} WHERE {key[kind]} % 4 = 1")
        book.run(f"DELETE FROM {name} WHERE {key[kind]} % 5 = 2")
        if number % 100 == 99:
            book.run("COMMIT", "BEGIN")
    book.run("COMMIT")


def alter_tables(book: Logbook, numbers: range) -> None:
    for number in numbers:
        book.run(f"ALTER TABLE {table_name(number)} {ALTERATIONS[number % len(ALTERATIONS)]}")
        key = ("id", "part", "a")[number % len(SHAPES)]
        book.run(f"DELETE FROM {table_name(number)} WHERE {key} = 3")


@contextmanager
def peaks(run: Run) -> Iterator[dict[str, int]]:
    """The peak memory of each kind of process of a run, by name, in bytes."""
    found: dict[str, int] = {}
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.5):
            for pid, size in resident_bytes(run.processes()).items():
                name = "driver" if pid == run.pid else process_name(pid)
                found[name] = max(found.get(name, 0), size)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def process_name(pid: int) -> str:
    """Return the program of the process: `java`, or a Python module."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended"
    return words[words.index("-m") + 1] if "-m" in words[:4] else Path(words[0]).name


def run_once(pipeline: Pipeline, phase: str) -> Finished:
    started = time.monotonic()
    run = pipeline.start("--once")
    with peaks(run) as memory:
        done = run.wait(TIMEOUT_S)
    assert done.code == 0, done.output
    sizes = ", ".join(f"{name} {size >> 20} MiB" for name, size in sorted(memory.items()))
    print(f"{phase}: {time.monotonic() - started:.1f} s; peak memory: {sizes}")
    return done


def check_sink(client: Client, book: Logbook) -> None:
    assert_same(client, book, [table_name(number) for number in range(TABLES + NEW_TABLES)])


def change_and_alter(book: Logbook) -> None:
    create_tables(book, range(TABLES, TABLES + NEW_TABLES))
    alter_tables(book, range(0, TABLES, TABLES // NEW_TABLES))
    change_tables(book, range(TABLES, TABLES + NEW_TABLES))


# One server: only the logs differ, and other tests read both.
@pytest.mark.slow(because="test_whole_tables has eight tables in one pipe")
@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)
@pytest.mark.timeout(600)
def test_hundreds_of_tables_in_one_pipe(server: PrivateServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if SOAK:
        pytest.skip("the real command does the same with 3,000 tables")
    asked: list[int] = []
    read_target_tables = target_cache.read_target_tables

    def counted(scope: target_cache.TargetScope, wanted: list[TableSchema]) -> list[TargetTable]:
        asked.append(len(wanted))
        return read_target_tables(scope, wanted)

    monkeypatch.setattr(target_cache, "read_target_tables", counted)
    with open_logbook(server, database) as book, EmbeddedServer(tmp_path / "ch") as sink:
        create_tables(book, range(TABLES))
        pipe = DrivenPipe(book, url_of(sink), tmp_path / "state")
        pipe.open().catch_up()
        assert len(asked) < 10, "a request for each table would take minutes with thousands of them"
        change_tables(book, range(TABLES))
        change_and_alter(book)
        pipe.catch_up()
        with sink_client(sink.url) as client:
            check_sink(client, book)


@pytest.mark.soak(because="test_hundreds_of_tables_in_one_pipe has hundreds")
@pytest.mark.timeout(7200)
def test_thousands_of_tables_in_one_pipe(server: PrivateServer, database: str, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    # MySQL locks a table without a key for a moment.
    pipeline = Pipeline(create_locking_account(server).url(database), f"chdb:{sink}", tmp_path / "state")
    with open_logbook(server, database) as book:
        create_tables(book, range(TABLES))
        run_once(pipeline, f"snapshot of {TABLES} tables")
        change_tables(book, range(TABLES))
        run_once(pipeline, f"changes of {TABLES} tables")
        change_and_alter(book)
        run_once(pipeline, f"{NEW_TABLES} new tables and {NEW_TABLES} ALTER statements")
        started = time.monotonic()
        with pipeline.sink_served(sink) as url, sink_client(url) as client:
            check_sink(client, book)
        print(f"oracle: {time.monotonic() - started:.1f} s")
    started = time.monotonic()
    verified = pipeline.verify(timeout_s=TIMEOUT_S)
    assert verified.code == 0, verified.output
    assert f"{database}.{table_name(TABLES + NEW_TABLES - 1)}" in verified.output
    print(f"verify: {time.monotonic() - started:.1f} s")
