"""`scan_table`, the reader of the binary protocol: rows equal the server's SELECT for any number of rows; errors name the place."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.schema import ZeroDates
from headrace.sources.mysql.binlog import replication_client
from headrace.sources.mysql.server.connection import connect, query
from headrace.sources.mysql.snapshot import table_scan
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.snapshot.table_scan import scan_table
from testkit.oracles.binlogs import Logbook, open_logbook

LENGTHS = [0, 1, 249, 250, 251, 252, 253, 255, 256, 65534, 65535, 65536, 65537]


def test_an_empty_table_has_no_rows(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)")
    assert book.scanned(book.schema("t")) == []


def test_many_blocks_hold_every_row_once(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, n BIGINT, s VARCHAR(40), d DECIMAL(20,3), e ENUM('a','b'))")
    digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6"
    digits += " UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
    number = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d"
    crossed = ", ".join(f"{digits} {name}" for name in "abcef")
    book.run(
        f"INSERT INTO t SELECT n, -n * 1000003, IF(n % 7, CONCAT('row ', n), NULL), n / 1000, IF(n % 2, 'a', 'b')"
        f" FROM (SELECT {number} n FROM {crossed}) numbers WHERE n < 70000"
    )
    schema = book.schema("t")
    selected = book.select(schema)
    assert len(selected) == 70_000
    assert book.scanned(schema) == selected
    assert book.scanned(schema, "id < 2500", block_rows=1000) == selected[:2500]
    assert book.scanned(schema, "id >= 69990 AND id < 80000") == selected[69_990:]
    with closing(connect(book.address)) as connection:
        assert [batch.num_rows for batch in scan_table(connection, book.address, schema)] == [65_536, 4_464]


def test_texts_of_every_length_form(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s MEDIUMTEXT, b MEDIUMBLOB)")
    book.insert("t", [(i, "x" * length, b"\xff" * length) for i, length in enumerate(LENGTHS)])
    schema = book.schema("t")
    assert book.scanned(schema) == [(str(i), "x" * length, b"\xff" * length) for i, length in enumerate(LENGTHS)]


def test_a_zero_date_is_named_or_null(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database, sql_mode="") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, d DATE, dt DATETIME(3), ts TIMESTAMP NULL)")
        book.run("INSERT INTO t VALUES (1, '2024-01-01', '2024-01-01', '2024-01-01'), (2, '0000-00-00', NULL, NULL)")
        book.run("INSERT INTO t VALUES (3, '2024-00-10', '0000-00-00', '0000-00-00 00:00:00')")
        schema = book.schema("t")
        with pytest.raises(DefiniteError, match=r"column d of .* holds a date that does not exist") as caught:
            book.scanned(schema)
        assert caught.value.place.endswith("column d")
        assert "--zero-dates null" in caught.value.hint
        for where, column in (("id = 2", "d"), ("id = 3", "d")):
            with pytest.raises(DefiniteError, match=f"column {column} of"):
                book.scanned(schema, where)
        found = book.scanned(schema, zero_dates=ZeroDates.NULL)
        assert [row[1:] for row in found[1:]] == [(None, None, None), (None, None, None)]


def test_a_connection_survives_a_scan_and_not_a_broken_one(book: Logbook) -> None:
    """Unread rows of a scan must never be read as the result of the next query."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(100))")
    book.insert("t", [(i, f"row {i}" * 10) for i in range(20_000)])
    schema = book.schema("t")
    with closing(connect(book.address)) as connection:
        for _ in range(2):
            assert sum(batch.num_rows for batch in scan_table(connection, book.address, schema)) == 20_000
            assert query(connection, book.address, "SELECT 41 + 1") == [(42,)]
        batches = scan_table(connection, book.address, schema, block_rows=100)
        assert isinstance(batches, Generator)
        assert next(batches).num_rows == 100
        batches.close()
        assert not connection.open


def test_the_server_s_own_error_is_ours(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY)")
    schema = book.schema("t")
    with pytest.raises(DefiniteError, match="error 1054"):
        book.scanned(schema, "no_such_column = 1")
    book.run("DROP TABLE t")
    with pytest.raises(DefiniteError, match="no such table"):
        book.scanned(schema)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("INT", "BIGINT"),
        ("INT", "INT UNSIGNED"),
        ("BIGINT", "VARCHAR(30)"),
        ("DECIMAL(9,2)", "DECIMAL(9,3)"),
        ("VARCHAR(30)", "INT"),
        ("FLOAT", "DOUBLE"),
        ("DATE", "DATETIME"),
        ("TIME", "TIMESTAMP NULL"),
    ],
)
def test_a_table_altered_since_it_was_captured_is_not_misread(book: Logbook, before: str, after: str) -> None:
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, v {before})")
    schema = book.schema("t")
    book.run(f"ALTER TABLE t MODIFY v {after}", "INSERT INTO t (id) VALUES (1)")
    with pytest.raises(DefiniteError, match=r"column v of .* is no longer") as caught:
        book.scanned(schema)
    assert "headrace resync" in caught.value.hint


def test_a_row_or_an_event_above_the_limit_is_an_error_in_bounded_memory(book: Logbook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered, because a real server sends no more than it allows."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, b MEDIUMBLOB)")
    with closing(connect(book.address)) as connection:
        position = log_end(connection, book.address, 0)
    book.run(f"INSERT INTO t VALUES (1, REPEAT('x', {1 << 20})), (2, REPEAT('y', {12 << 20}))")
    schema = book.schema("t")
    assert [len(row[1]) for row in book.scanned(schema)] == [1 << 20, 12 << 20]
    for module in (replication_client, table_scan):
        monkeypatch.setattr(module, "LARGEST_ROW_BYTES", 4 << 20)
    assert len(book.scanned(schema, "id = 1")) == 1
    with pytest.raises(DefiniteError, match="is longer than any server sends") as caught:
        book.scanned(schema, "id = 2")
    assert "check host and port" in caught.value.hint
    following = replication_client.ReplicationStream(book.address, position, blocking=False)
    with closing(following), pytest.raises(DefiniteError, match="an event of the log is longer than any server sends"):
        list(following.pieces())
    assert len(following._raw) <= 16 << 20
