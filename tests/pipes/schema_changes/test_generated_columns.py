"""Generated columns that the server recomputes without row events: the sink equals the source's SELECT."""

from __future__ import annotations

from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from pymysql.err import MySQLError

from headrace.embedded.process import EmbeddedServer
from headrace.pipes.state.resync_requests import pending_requests
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql] has generated columns")

TABLE = "id INT PRIMARY KEY, v INT, s VARCHAR(20) COLLATE utf8mb4_general_ci"
EXPRESSIONS = "g INT AS (v * 2) {kind}, n INT AS (LENGTH(s)) {kind}, e INT AS (s = 'A') {kind}"
ROWS = "(1, 1, 'a'), (2, 2, 'A'), (3, NULL, 'b  ')"
ALTERATIONS = {
    "another expression": "MODIFY g INT AS (v * 3) {kind}",
    "another expression and name": "CHANGE g h INT AS (v + 7) {kind}",
    "another name for the table": "MODIFY g INT AS (v * 3) {kind}, RENAME TO other",
    "trailing spaces": "MODIFY s CHAR(20) COLLATE utf8mb4_general_ci",
    "another collation": "MODIFY s VARCHAR(20) COLLATE utf8mb4_bin",
    "all collations": "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "another type": "MODIFY v VARCHAR(20)",
    "a column becomes generated": "MODIFY v INT AS (id * 5) STORED",
}
KEPT = ("ADD COLUMN z INT DEFAULT 4", "MODIFY v INT COMMENT 'a number'", "ADD INDEX (v)", "ALTER COLUMN v SET DEFAULT 3", "DROP COLUMN n")


def begin(book: Logbook, clickhouse: EmbeddedServer, state: Path, kind: str) -> DrivenPipe:
    book.run(f"CREATE TABLE t ({TABLE}, {EXPRESSIONS.format(kind=kind)})", f"INSERT INTO t (id, v, s) VALUES {ROWS}")
    return DrivenPipe(book, url_of(clickhouse), state).open()


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)
def test_values_that_are_computed_again(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, alteration: str, kind: str
) -> None:
    pipe = begin(book, clickhouse, tmp_path / "state", kind)
    try:
        book.run(f"ALTER TABLE t {alteration.format(kind=kind)}")
    except MySQLError as error:
        pytest.skip(f"{book.server.flavour} refuses it: {error}")
    tables = [name for (name,) in book.fetch("SHOW TABLES")]
    book.run(f"INSERT INTO {tables[0]} (id, s) VALUES (9, 'a')", f"DELETE FROM {tables[0]} WHERE id = 2")
    pipe.catch_up()
    assert_same(client, book, tables)


@pytest.mark.parametrize("alteration", KEPT)
def test_alterations_that_compute_nothing_again(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, alteration: str
) -> None:
    pipe = begin(book, clickhouse, tmp_path / "state", "STORED")
    book.run(f"ALTER TABLE t {alteration}", "INSERT INTO t (id, v, s) VALUES (9, 9, 'a')")
    pipe._stream()
    assert not any(pending_requests(pipe.directory)), "the table would be read again"
    assert_same(client, book, ["t"])
