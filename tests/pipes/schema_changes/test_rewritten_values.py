"""Values and rows that a server changes without row events: the sink equals the source's SELECT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from pymysql.err import NotSupportedError

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql]")

LOOSE = "SET sql_mode = ''"
PADDING = "SET sql_mode = 'STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH'"
BINARY, FOLDING = "COLLATE utf8mb4_bin", "COLLATE utf8mb4_general_ci"
ALTERATIONS = {
    "a smaller integer of one kind": ("v INT", "(1, 99999999), (2, 1)", (LOOSE, "ALTER TABLE t MODIFY v MEDIUMINT")),
    "a CHAR with its spaces": ("v CHAR(5)", "(1, 'a')", (PADDING, "ALTER TABLE t MODIFY v VARCHAR(5)")),
    "a CHAR with its spaces in TEXT": ("v CHAR(5)", "(1, 'a')", (PADDING, "ALTER TABLE t MODIFY v TEXT")),
    "one name fewer": (f"v ENUM('a','A') {BINARY}", "(1, 'a'), (2, 'A')", (f"ALTER TABLE t MODIFY v ENUM('a') {FOLDING}",)),
    "one name fewer of a set": (f"v SET('a','A') {BINARY}", "(1, 'a'), (2, 'a,A')", (f"ALTER TABLE t MODIFY v SET('a') {FOLDING}",)),
    "two names for one": (f"v ENUM('a','A') {BINARY}", "(1, 'a'), (2, 'A')", (LOOSE, f"ALTER TABLE t MODIFY v ENUM('a','A') {FOLDING}")),
    "two converted names for one": (
        f"v ENUM('a','A') {BINARY}",
        "(1, 'a'), (2, 'A')",
        (LOOSE, f"ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 {FOLDING}"),
    ),
    "an engine without rows": ("v INT", "(1, 1)", ("ALTER TABLE t ENGINE = BLACKHOLE",)),
    "a foreign key that is gone": (
        "v INT",
        "(1, 1), (2, 2)",
        (
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "INSERT INTO p VALUES (1), (2)",
            "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (v) REFERENCES p (id) ON DELETE CASCADE",
            "DELETE FROM p WHERE id = 1",
            "ALTER TABLE t DROP FOREIGN KEY f",
        ),
    ),
    "a foreign key of a new table that is gone": (
        "v INT",
        "(1, 1), (2, 2)",
        (
            "CREATE TABLE c (id INT PRIMARY KEY, t INT, CONSTRAINT f FOREIGN KEY (t) REFERENCES t (id) ON DELETE SET NULL)",
            "INSERT INTO c VALUES (1, 1), (2, 2)",
            "DELETE FROM t WHERE id = 1",
            "ALTER TABLE c DROP FOREIGN KEY f",
        ),
    ),
}
DEFAULTS = (
    r"VARCHAR(9) DEFAULT '5\%\_\x'",
    r"ENUM('a\_b','\%') DEFAULT 'a\_b'",
    "VARCHAR(9) DEFAULT 007",
    "VARCHAR(9) DEFAULT 1e2",
    "VARBINARY(9) DEFAULT 1e2",
    "ENUM('0','1') DEFAULT 1",
    "SET('4','2','1') DEFAULT 1",
    "INT DEFAULT 2.5e0",
    "DATE DEFAULT '24-01-02'",
    "DATETIME DEFAULT '24-01-02 03:04:05.6'",
    "DATE DEFAULT '2024-01-02 23:59:59.9'",
    "YEAR DEFAULT 00",
    "YEAR DEFAULT '000'",
    "DOUBLE(8,3) DEFAULT 1.0005",
    "VARCHAR(9) CHARACTER SET utf16 DEFAULT x'0041'",
    "VARCHAR(9) DEFAULT _latin1 x'E9'",
    "VARCHAR(9) DEFAULT _latin1'é'",
)
CONVERTED = ("VARBINARY(9) DEFAULT 'é'", "VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT 'ж'")
ZONE = "Test/Overlap"


def begin(book: Logbook, clickhouse: EmbeddedServer, state: Path, columns: str, rows: str) -> DrivenPipe:
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) DEFAULT CHARSET utf8mb4", f"INSERT INTO t VALUES {rows}")
    return DrivenPipe(book, url_of(clickhouse), state).open()


def compare(book: Logbook, client: Client) -> None:
    book.run("SET NAMES utf8mb4", "SET time_zone = '+00:00'", "SET sql_mode = ''")
    assert_same(client, book, [name for (name,) in book.fetch("SHOW TABLES")])


@pytest.mark.parametrize(("columns", "rows", "statements"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_alterations_that_change_values(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, columns: str, rows: str, statements: tuple[str, ...]
) -> None:
    pipe = begin(book, clickhouse, tmp_path / "state", columns, rows)
    try:
        book.run(*statements)
    except NotSupportedError as error:
        pytest.skip(f"{book.server.flavour} refuses it: {error}")
    pipe.catch_up()
    compare(book, client)


@pytest.mark.parametrize(("charset", "definitions"), [("utf8mb4", DEFAULTS), ("latin1", CONVERTED)])
def test_defaults_that_are_not_what_is_written(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, charset: str, definitions: tuple[str, ...]
) -> None:
    """One statement for each, so that no other statement causes a re-read."""
    pipe = begin(book, clickhouse, tmp_path / "state", "v INT", "(1, 1)")
    book.run(f"SET character_set_connection = {charset}")
    for number, definition in enumerate(definitions):
        book.run(f"ALTER TABLE t ADD c{number} {definition}")
    pipe.catch_up()
    compare(book, client)


@pytest.fixture
def zone(book: Logbook) -> Iterator[str]:
    """A time zone in which one hour occurs twice."""
    number = 999_001
    book.run("SET SESSION sql_log_bin = 0")
    book.run(
        f"INSERT INTO mysql.time_zone VALUES ({number}, 'N')",
        f"INSERT INTO mysql.time_zone_name VALUES ('{ZONE}', {number})",
        f"INSERT INTO mysql.time_zone_transition_type VALUES ({number}, 0, 7200, 1, 'SUM'), ({number}, 1, 3600, 0, 'WIN')",
        f"INSERT INTO mysql.time_zone_transition VALUES ({number}, 1711846800, 0), ({number}, 1729990800, 1)",
    )
    book.run("SET SESSION sql_log_bin = 1")
    yield ZONE
    book.run("SET SESSION sql_log_bin = 0")
    for table in ("time_zone", "time_zone_name", "time_zone_transition_type", "time_zone_transition"):
        book.run(f"DELETE FROM mysql.{table} WHERE time_zone_id = {number}")
    book.run("SET SESSION sql_log_bin = 1")


@pytest.mark.parametrize("clause", ["MODIFY id BIGINT", "MODIFY v TIMESTAMP(3) NULL", "COMMENT = 'x', ALGORITHM = COPY"])
def test_timestamps_in_an_hour_that_comes_twice(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, zone: str, clause: str
) -> None:
    """MySQL converts them by local time."""
    book.run("SET time_zone = '+00:00'")
    pipe = begin(book, clickhouse, tmp_path / "state", "v TIMESTAMP NULL", "(1, '2024-10-27 00:30:00'), (2, '2024-10-27 01:30:00')")
    book.run(f"SET time_zone = '{zone}'", f"ALTER TABLE t {clause}")
    pipe.catch_up()
    compare(book, client)


@pytest.mark.parametrize(
    "statements", [("TRUNCATE TABLE t",), ("ALTER TABLE t DROP COLUMN v",), ("DROP TABLE t",), ("ALTER TABLE t RENAME x",)]
)
def test_a_temporary_table_that_hides_another(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, statements: tuple[str, ...]
) -> None:
    pipe = begin(book, clickhouse, tmp_path / "state", "v INT", "(1, 1)")
    book.run("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE t (id INT, v INT)", *statements)
    with pytest.raises(DefiniteError, match="temporary"):
        pipe.catch_up()
    with open_logbook(book.server, book.database) as other:
        compare(other, client)
