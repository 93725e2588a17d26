"""Dozens of ALTER statements, between changes of rows, while the pipe is far behind: 0 differences when it has caught up.

Both servers accept every statement; `id` and `v` stay in every table, so that rows can always be changed. The normal run has 50,000 row
changes and drives the pipe without Spark. With HEADRACE_SOAK=1 (`make soak-suites`) the real command is a million row changes behind, and
the test prints time and memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.oracles.binlogs import Logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline, resident_bytes
from testkit.servers.accounts import Account

TABLES = ("a", "b", "c", "d")
_COLUMNS = (
    "(id INT NOT NULL, v INT NOT NULL DEFAULT 0, name VARCHAR(20) DEFAULT 'n', amount INT DEFAULT 5, kind ENUM('x', 'y') DEFAULT 'x',"
    " at DATETIME DEFAULT '2024-01-02 03:04:05', text VARCHAR(10) DEFAULT '12'{key})"
)
_NUMBERS = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT i, i FROM n"
ALTERATIONS = (
    "ALTER TABLE a ADD COLUMN last_one INT NOT NULL DEFAULT 7",
    "ALTER TABLE b ADD COLUMN first_one VARCHAR(9) DEFAULT 'x' FIRST",
    "ALTER TABLE c ADD COLUMN middle BIGINT UNSIGNED DEFAULT 3 AFTER v",
    "ALTER TABLE d ADD COLUMN e1 INT, ADD COLUMN e2 VARCHAR(5) DEFAULT 'e'",
    "ALTER TABLE a RENAME COLUMN name TO title",
    "ALTER TABLE b CHANGE name label VARCHAR(40) DEFAULT 'l'",
    "ALTER TABLE c MODIFY v BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE d MODIFY name VARCHAR(60) DEFAULT 'm'",
    "ALTER TABLE a MODIFY amount BIGINT DEFAULT 6",
    "ALTER TABLE b MODIFY amount INT NOT NULL DEFAULT 5",
    "ALTER TABLE c MODIFY amount DECIMAL(12, 2) DEFAULT 1.25",
    "ALTER TABLE d MODIFY amount VARCHAR(20) DEFAULT '8'",
    "ALTER TABLE a MODIFY text INT DEFAULT 13",
    "ALTER TABLE b MODIFY kind ENUM('x', 'y', 'z') DEFAULT 'z'",
    "ALTER TABLE c MODIFY kind VARCHAR(9) DEFAULT 'w'",
    "ALTER TABLE d MODIFY at DATETIME(6) DEFAULT '2024-01-02 03:04:05.678901'",
    "ALTER TABLE a RENAME COLUMN title TO text, RENAME COLUMN text TO title",
    "ALTER TABLE b DROP COLUMN first_one",
    "ALTER TABLE c DROP COLUMN middle, ADD COLUMN middle INT DEFAULT 9",
    "ALTER TABLE d ADD COLUMN doubled INT AS (v * 2) STORED",
    "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
    "ALTER TABLE b ADD UNIQUE KEY by_id (id, label)",
    "ALTER TABLE c ADD INDEX by_v (v)",
    "ALTER TABLE d COMMENT 'altered'",
    "RENAME TABLE a TO aside, b TO a, aside TO b",
    "ALTER TABLE c DROP INDEX by_v",
    "ALTER TABLE d CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE a ALTER COLUMN v SET DEFAULT 4",
    "ALTER TABLE b DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
    "TRUNCATE TABLE c",
    "ALTER TABLE d MODIFY amount VARCHAR(20) FIRST",
    "ALTER TABLE a ADD COLUMN made DATETIME DEFAULT CURRENT_TIMESTAMP",
    "ALTER TABLE b ENGINE = InnoDB",
    "ALTER TABLE c DROP PRIMARY KEY",
    "ALTER TABLE d DROP COLUMN doubled, DROP COLUMN e1",
    "ALTER TABLE a MODIFY label VARCHAR(15) NOT NULL DEFAULT 'short'",
    "ALTER TABLE b ADD COLUMN js JSON",
    "ALTER TABLE c ADD PRIMARY KEY (id)",
    "ALTER TABLE d RENAME TO moved",
    "ALTER TABLE moved RENAME TO d, ADD COLUMN back INT DEFAULT 1",
    "DROP TABLE c",
    "CREATE TABLE c LIKE b",
    "INSERT INTO c SELECT * FROM b",
    "ALTER TABLE c DROP COLUMN js, MODIFY amount INT UNSIGNED DEFAULT 2",
)


def create_tables(rows: int) -> Iterator[str]:
    """The statements that create the tables with their rows."""
    for name in TABLES:
        yield f"CREATE TABLE {name} {_COLUMNS.format(key=', PRIMARY KEY (id)')}"
        yield from _fill(name, rows)


def alter_and_change(rows: int) -> Iterator[tuple[str, bool]]:
    """Return all statements, each with whether it changes a definition. Changes of two tables' rows follow each alteration."""
    there = set(TABLES)
    for number, statement in enumerate(ALTERATIONS):
        yield statement, not statement.startswith("INSERT")
        there = {"DROP TABLE c": there - {"c"}, "CREATE TABLE c LIKE b": there | {"c"}}.get(statement, there)
        for name in sorted(there)[number % 2 :: 2]:
            if statement == "ALTER TABLE d RENAME TO moved" and name == "d":
                continue
            for change in _changes(name, number, rows):
                yield change, False
        if statement == "TRUNCATE TABLE c":
            yield from ((filling, False) for filling in _fill("c", rows))


def _fill(name: str, rows: int) -> Iterator[str]:
    # MySQL limits the depth of a recursion to 1,000: tables grow by doubling.
    yield f"INSERT INTO {name} (id, v) {_NUMBERS.format(rows=min(rows, 500))}"
    filled = 500
    while filled < rows:
        yield f"INSERT INTO {name} (id, v) SELECT id + {filled}, v FROM {name} WHERE id <= {rows - filled}"
        filled *= 2


def _changes(name: str, number: int, rows: int) -> Iterator[str]:
    yield f"UPDATE {name} SET v = v + 1 WHERE id % 2 = {number % 2}"
    yield f"DELETE FROM {name} WHERE id % 40 = {number % 40}"
    chosen = f"id <= {rows} AND id % 40 = {(number + 1) % 40}"
    yield f"INSERT INTO {name} (id, v) SELECT id + {rows * (number + 1)}, v FROM {name} WHERE {chosen}"


SOAK = bool(os.environ.get("HEADRACE_SOAK"))
ROWS = 25_000 if SOAK else 1_250
CHANGES = 1_000_000 if SOAK else 50_000
ALTERS = 36


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run(*create_tables(ROWS))
    return book


def fall_behind(book: Logbook) -> tuple[int, int]:
    """Run all statements; return how many rows and how many definitions they changed."""
    changes = definitions = 0
    with book.connection.cursor() as cursor:
        for statement, defines in alter_and_change(ROWS):
            rows = cursor.execute(statement)
            definitions += defines
            changes += 0 if defines else rows
    assert (definitions >= ALTERS, changes >= CHANGES) == (True, True), (definitions, changes)
    return changes, definitions


@pytest.mark.soak("mysql", because="test_schema_changes is on both")
def test_alters_far_behind(book: Logbook, tmp_path: Path) -> None:
    if SOAK:
        pytest.skip("the real command does the same with a million changes")
    with EmbeddedServer(tmp_path / "ch") as sink:
        url = url_of(sink)
        DrivenPipe(book, url, tmp_path / "state").open().catch_up()
        fall_behind(book)
        DrivenPipe(book, url, tmp_path / "state").open().catch_up()
        with sink_client(sink.url) as client:
            assert_same(client, book, TABLES)


@pytest.mark.soak(because="test_alters_far_behind has 50,000 changes")
@pytest.mark.timeout(3600)
def test_alters_a_million_changes_behind(book: Logbook, database: str, replica_account: Account, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink}", tmp_path / "state")
    first = pipeline.once()
    assert first.code == 0, first.output
    changes, definitions = fall_behind(book)
    started = time.monotonic()
    run, peaks = pipeline.start("--once"), dict[int, int]()
    while run.code is None:
        peaks.update(resident_bytes(run.processes()))
        assert time.monotonic() - started < 1800, run.output
        time.sleep(0.5)
    assert run.code == 0, run.output
    caught_up_s = time.monotonic() - started
    # Tables that were to be read again at the very end.
    again = pipeline.once()
    assert again.code == 0, again.output
    verified = pipeline.verify()
    assert verified.code == 0, verified.output
    with pipeline.sink_served(sink) as url, sink_client(url) as client:
        assert_same(client, book, TABLES)
        [[rows]] = client.query("SELECT count() FROM headrace.schema_changes FINAL").result_rows
    memory = ", ".join(f"{size >> 20} MiB" for size in sorted(peaks.values(), reverse=True)[:4])
    print(f"{book.server.flavour}: {changes} changes, {definitions} definitions, {rows} in the ledger: {caught_up_s:.1f} s; {memory}")
