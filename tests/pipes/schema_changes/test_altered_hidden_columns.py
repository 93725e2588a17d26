"""A pipe with `hidden_columns`: `SELECT *` returns the source's columns after every statement, replay and resync.

An older table of the same pipe continues with its visible columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from headrace.model.table_selection import Selection
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.verify.result import Verdict
from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables
from headrace.verify.watched_pipe import KnownPipe, find_watermark
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import Crash, DrivenPipe, crash_at
from testkit.pipelines.embedded_access import url_of

HIDDEN = ClickHouseOptions(all_tables=(("hidden_columns", True),))
TABLES = ("older", "t")
STATEMENTS = (
    ("UPDATE {} SET a = a + 1 WHERE id % 2", "DELETE FROM {} WHERE id = 4", "UPDATE {} SET id = 40 WHERE id = 5"),
    ("ALTER TABLE {} ADD COLUMN c INT DEFAULT 5 AFTER id", "INSERT INTO {} VALUES (11, 1, 2, 'eleven')"),
    ("SET sql_mode = ''", "ALTER TABLE {} MODIFY b VARCHAR(3) NOT NULL", "DELETE FROM {} WHERE id = 2"),
    ("ALTER TABLE {} CHANGE a z BIGINT AFTER b", "UPDATE {} SET z = 1 << 40 WHERE id = 1"),
    ("ALTER TABLE {} DROP COLUMN c", "DELETE FROM {} WHERE id = 11"),
    ("ALTER TABLE {} DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)", "UPDATE {} SET b = 'new' WHERE id = 7"),
)
OWN = {"t": [], "older": ["_sign", "_version"]}


def starred(client: Client, book: Logbook, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows of the target's `SELECT *`."""
    found = client.query(f"SELECT * FROM `{book.database}`.`{table}` FINAL ORDER BY id")
    return list(found.column_names), [tuple(row) for row in found.result_rows]


def check(client: Client, book: Logbook, when: str = "") -> None:
    assert_same(client, book, TABLES)
    for table in TABLES:
        expected = [str(name) for name, *_ in book.fetch(f"SHOW COLUMNS FROM `{table}`")]
        columns, rows = starred(client, book, table)
        assert columns == expected + OWN[table], when
        assert len(rows) == int(book.fetch(f"SELECT COUNT(*) FROM `{table}`")[0][0]), when


@pytest.fixture
def pipe(book: Logbook, clickhouse: EmbeddedServer, tmp_path: Path) -> DrivenPipe:
    """A pipe of an earlier release, which created `older`, continued with hidden columns."""
    book.run(*made("older"))
    DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open().catch_up()
    book.run(*made("t"))
    return opened(book, clickhouse, tmp_path)


def made(table: str) -> tuple[str, str]:
    rows = ", ".join(f"({number}, {number * 10}, 'text {number}')" for number in range(1, 9))
    return f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b VARCHAR(20) NOT NULL)", f"INSERT INTO {table} VALUES {rows}"


def opened(book: Logbook, clickhouse: EmbeddedServer, tmp_path: Path) -> DrivenPipe:
    return DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=HIDDEN).open()


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql]")
def test_the_asterisk_selects_new_source_columns(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, pipe: DrivenPipe
) -> None:
    pipe.catch_up()
    check(client, book)
    for statements in STATEMENTS:
        book.run(*(statement.format(table) for statement in statements for table in TABLES))
        pipe.catch_up()
        check(client, book, statements[0])
    # An interrupted batch is written again.
    book.run(*(f"UPDATE {table} SET z = id" for table in TABLES), *(f"DELETE FROM {table} WHERE id = 40" for table in TABLES))
    with pytest.raises(Crash), crash_at([(ClickHouseWriter, "_send")], 1, after=True):
        pipe.catch_up()
    pipe = opened(book, clickhouse, tmp_path)
    pipe.catch_up()
    check(client, book, "replayed")
    assert {result.verdict for result in verified(book, pipe)} == {Verdict.EQUAL}

    # Rows that the source does not have are found, and a resync removes them.
    for table in TABLES:
        stray = f"INSERT INTO `{book.database}`.{table} (id, b, z, _sign, _version) SELECT 99, 'new', 1, 1, 1"
        client.command(stray, settings={"insert_allow_materialized_columns": 1})
    # A mutation may overwrite the hidden columns with their constants.
    for column in ("_sign", "_version"):
        client.command(f"ALTER TABLE `{book.database}`.t MATERIALIZE COLUMN {column}", settings={"mutations_sync": 2})
    assert client.query(f"SELECT min(_sign), max(_version) FROM `{book.database}`.t").result_rows == [(1, 0)]
    assert {result.verdict for result in verified(book, pipe)} == {Verdict.DIFFERENT}
    request_resync(pipe.directory, tuple(f"{book.database}.{table}" for table in TABLES))
    pipe.catch_up()
    check(client, book, "read again")

    book.run(*(f"TRUNCATE TABLE {table}" for table in TABLES), *(f"INSERT INTO {table} VALUES (1, 'x', 2)" for table in TABLES))
    pipe.catch_up()
    check(client, book, "emptied")


def verified(book: Logbook, pipe: DrivenPipe) -> list[Any]:
    options = VerifyOptions(chunk_rows=50, spark=SparkUse.NEVER)
    watermark = find_watermark(pipe.sink, book.address, book.database, KnownPipe(), 5.0)
    return list(verify_tables(book.address, pipe.sink, Selection((f"{book.database}.*",)), options, watermark=watermark))
