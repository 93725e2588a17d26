"""A pipe with `keyless_views`: a table's own name shows the source's rows also if the table has no key, after every statement and crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.verify.result import Verdict
from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables
from headrace.verify.watched_pipe import KnownPipe, find_watermark
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import Crash, DrivenPipe, crash_at
from testkit.pipelines.embedded_access import url_of

# The settings of a database of MaterializeMySQL.
CONVENTIONS = {"sort_key": "materialize", "partition_by": "primary", "hidden_columns": True, "keyless_views": True}
MADE = (
    "CREATE TABLE t (id INT, word VARCHAR(20), KEY (word))",
    "INSERT INTO t VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, 'b'), (3, NULL), (3, NULL)",
)
CHANGED = (
    "INSERT INTO t VALUES (1, 'a'), (4, 'd')",
    "DELETE FROM t WHERE id = 1 LIMIT 2",
    "UPDATE t SET word = 'new' WHERE id = 3 LIMIT 1",
)


def opened(book: Logbook, clickhouse: EmbeddedServer, tmp_path: Path, **chosen: object) -> DrivenPipe:
    options = ClickHouseOptions(all_tables=tuple({**CONVENTIONS, **chosen}.items()))
    return DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=options).open()


def check(client: Client, book: Logbook, when: str = "", table: str = "t") -> None:
    """Compare the source's `SELECT *` with that of the target, as an embedded server runs it and with FINAL, and `count()`."""
    rows = texts(book.fetch(f"SELECT * FROM {table}"))
    for query in (f"SELECT * FROM `{book.database}`.{table} FINAL", f"SELECT * FROM `{book.database}`.{table} SETTINGS final = 1"):
        assert texts(client.query(query).result_rows) == rows, f"{query} after {when}"
    counted = client.query(f"SELECT count() FROM `{book.database}`.{table} SETTINGS final = 1").result_rows
    assert counted == [(rows.total(),)], when


def texts(rows: Iterable[Sequence[Any]]) -> Counter[tuple[str | None, ...]]:
    return Counter(tuple(None if value is None else str(value) for value in row) for row in rows)


def names(client: Client, book: Logbook) -> dict[str, str]:
    found = client.query(f"SELECT name, engine FROM system.tables WHERE database = '{book.database}'").result_rows
    return dict(found)


VIEWED = {"t": "View", "t__rows": "ReplacingMergeTree"}
KEYED = {"t": "ReplacingMergeTree"}


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql]")
def test_the_name_of_a_table_without_a_key_shows_the_rows_of_the_source(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    book.run(*MADE)
    pipe = opened(book, clickhouse, tmp_path)
    check(client, book, "snapshot")
    book.run(*CHANGED)
    with pytest.raises(Crash), crash_at([(ClickHouseWriter, "_send")], 0, after=True):
        pipe.catch_up()
    pipe = opened(book, clickhouse, tmp_path)
    pipe.catch_up()
    check(client, book, "replayed changes")
    assert names(client, book) == VIEWED
    for statements in (
        ("ALTER TABLE t ADD COLUMN c INT DEFAULT 5 AFTER id", "DELETE FROM t WHERE id = 1 LIMIT 1"),
        ("ALTER TABLE t CHANGE word text VARCHAR(30)", "UPDATE t SET text = 'longer' WHERE id = 2"),
        ("ALTER TABLE t MODIFY text CHAR(10) NOT NULL DEFAULT 'x' FIRST",),
        ("ALTER TABLE t DROP COLUMN c", "INSERT INTO t SELECT * FROM t", "DELETE FROM t WHERE id = 4 LIMIT 1"),
        ("TRUNCATE TABLE t", "INSERT INTO t VALUES ('a', 1), ('a', 1)", "DELETE FROM t LIMIT 1"),
    ):
        book.run("SET sql_mode = ''", *statements)
        pipe.catch_up()
        check(client, book, statements[0])
        assert names(client, book) == VIEWED
    watermark = find_watermark(pipe.sink, book.address, book.database, KnownPipe(), 5.0)
    options = VerifyOptions(spark=SparkUse.NEVER)
    results = verify_tables(book.address, pipe.sink, Selection((f"{book.database}.*",)), options, watermark=watermark)
    assert [result.verdict for result in results] == [Verdict.EQUAL]
    request_resync(pipe.directory, (f"{book.database}.t",))
    pipe.catch_up()
    check(client, book, "resync")
    book.run("DROP TABLE t")
    pipe.catch_up()
    assert names(client, book) == {}


@pytest.mark.slow("mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql]")
def test_a_key_comes_and_goes(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    book.run("CREATE TABLE t (id INT NOT NULL, word VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    pipe = opened(book, clickhouse, tmp_path)
    changes = (
        ("ALTER TABLE t ADD PRIMARY KEY (id)", "UPDATE t SET word = 'x' WHERE id = 1", "DELETE FROM t WHERE id = 2", KEYED),
        ("ALTER TABLE t DROP PRIMARY KEY", "INSERT INTO t SELECT * FROM t", "DELETE FROM t WHERE id = 3 LIMIT 1", VIEWED),
        ("ALTER TABLE t ADD COLUMN n INT AUTO_INCREMENT PRIMARY KEY", "DELETE FROM t WHERE n = 1", KEYED),
        ("ALTER TABLE t MODIFY n INT, DROP PRIMARY KEY", "INSERT INTO t SELECT * FROM t", "DELETE FROM t LIMIT 1", VIEWED),
        ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "DELETE FROM t WHERE id = 1", KEYED),
        ("DROP TABLE t", "CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1), (1)", "DELETE FROM t LIMIT 1", VIEWED),
    )
    for *statements, expected in changes:
        book.run(*map(str, statements))
        pipe.catch_up()
        check(client, book, str(statements[0]))
        assert names(client, book) == expected, statements[0]


def test_a_crash_while_a_key_comes_or_goes(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    book.run("CREATE TABLE t (id INT NOT NULL)", "INSERT INTO t VALUES (1), (2)")
    pipe = opened(book, clickhouse, tmp_path)
    numbers = count(3)
    # Steps: fill and exchange, drop the old table, drop the view, rename; and create the view.
    for statement, steps, expected in (("ALTER TABLE t ADD PRIMARY KEY (id)", 4, KEYED), ("ALTER TABLE t DROP PRIMARY KEY", 5, VIEWED)):
        for nth in range(steps):
            for after in (False, True):
                book.run(statement, f"INSERT INTO t VALUES ({next(numbers)})", "DELETE FROM t ORDER BY id LIMIT 1")
                with pytest.raises(Crash), crash_at([(ClickHouseSchemaApplier, "run_step")], nth, after=after):
                    pipe.catch_up()
                pipe = opened(book, clickhouse, tmp_path)
                pipe.catch_up()
                when = f"{statement}, {nth}, {after}"
                check(client, book, when)
                assert names(client, book) == expected, when
                if (nth, after) != (steps - 1, True):
                    book.run(f"ALTER TABLE t {'DROP PRIMARY KEY' if expected is KEYED else 'ADD PRIMARY KEY (id)'}")
                    pipe.catch_up()


def test_renamed_tables(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    book.run(*MADE, "CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (1), (2)")
    pipe = opened(book, clickhouse, tmp_path)
    for statement, tables in (
        ("RENAME TABLE t TO v", ("u", "v")),
        ("RENAME TABLE v TO w, u TO v, w TO u", ("u", "v")),
    ):
        book.run(statement)
        pipe.catch_up()
        for table in tables:
            check(client, book, statement, table)
    book.run("INSERT INTO u VALUES (9, 'z')", "DELETE FROM u WHERE id = 1 LIMIT 1", "DELETE FROM v WHERE id = 1")
    pipe.catch_up()
    for table in ("u", "v"):
        check(client, book, "changes", table)
    assert names(client, book) == {"u": "View", "u__rows": "ReplacingMergeTree", "v": "ReplacingMergeTree"}


def test_a_table_of_an_earlier_release_stays_as_it_is(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    book.run(*MADE)
    opened(book, clickhouse, tmp_path, keyless_views=False)
    book.run(*CHANGED)
    pipe = opened(book, clickhouse, tmp_path, keyless_views=False)
    pipe.catch_up()
    assert names(client, book) == {"t": "ReplacingMergeTree", "t_current": "View"}
    columns = list(client.query(f"SELECT * FROM `{book.database}`.t").column_names)
    assert columns == ["id", "word", "_sign", "_version", "_occurrence"], "without the view, readers see which rows are deletions"
    assert_same(client, book, ("t",))
    with pytest.raises(DefiniteError, match="keyless_views"):
        opened(book, clickhouse, tmp_path)


def test_a_table_that_has_the_name_of_the_view_is_refused(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    book.run(*MADE)
    client.command(f"CREATE DATABASE `{book.database}`")
    client.command(f"CREATE TABLE `{book.database}`.t (id Int32) ENGINE = MergeTree ORDER BY id")
    with pytest.raises(DefiniteError, match=rf"{book.database}\.t is a table, and is to be a view of the rows in {book.database}\.t__rows"):
        opened(book, clickhouse, tmp_path)
    # The remedy.
    client.command(f"RENAME TABLE `{book.database}`.t TO `{book.database}`.theirs")
    opened(book, clickhouse, tmp_path)
    check(client, book, "renamed")
