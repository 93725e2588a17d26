"""Rows changed by routines, triggers, cascades, loads and savepoints: the images of the log give the tables' rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import ChangeBlock
from headrace.sources.mysql.binlog import batch_planner as planner_module
from headrace.sources.mysql.binlog import relay as relay_module
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from testkit.oracles.binlogs import Image, Logbook, Place, open_logbook
from testkit.oracles.planned import PlannedLog, replayed
from testkit.servers.servers import execute


def check(book: Logbook, start: Place, *tables: str) -> list[Image]:
    """Check that the log since `start`, where the tables were empty, gives their rows."""
    images = PlannedLog(book, start).images(*tables)
    for table in tables:
        schema = book.schema(table)
        found = replayed([image for image in images if image.table == schema.name])
        assert found == book.select(schema)
        assert found
    return images


def test_programs_triggers_and_statements_over_several_tables(book: Logbook) -> None:
    book.run("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "CREATE TABLE b (id INT PRIMARY KEY, n INT)")
    book.run("CREATE TABLE audit (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(40))")
    book.run(
        "CREATE TRIGGER added AFTER INSERT ON a FOR EACH ROW INSERT INTO audit (what) VALUES (CONCAT('added ', NEW.id))",
        "CREATE TRIGGER changed BEFORE UPDATE ON b FOR EACH ROW SET NEW.n = NEW.n * 10",
        "CREATE FUNCTION noted(x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
        " BEGIN INSERT INTO audit (what) VALUES (CONCAT('f ', x)); RETURN x; END",
        "CREATE PROCEDURE fill(n INT) BEGIN DECLARE i INT DEFAULT 0; START TRANSACTION; WHILE i < n DO"
        " INSERT INTO a VALUES (i, i); INSERT INTO b SELECT noted(i), RAND() * 1000; SET i = i + 1; END WHILE; COMMIT; END",
    )
    start = book.place()
    book.run("CALL fill(20)", "UPDATE a, b SET a.n = a.n + 1, b.n = b.n + 1 WHERE a.id = b.id AND a.id % 3 = 0")
    book.run("DELETE a, b FROM a JOIN b USING (id) WHERE a.id BETWEEN 5 AND 8", "REPLACE INTO a VALUES (1, 100), (50, 1)")
    book.run("INSERT INTO a VALUES (2, 7), (60, 7) ON DUPLICATE KEY UPDATE n = n + 1000", "UPDATE a SET id = id + 1 ORDER BY id DESC")
    book.run("UPDATE b SET n = noted(n) WHERE id < 3")
    images = check(book, start, "a", "b", "audit")
    assert len(images) > 100


def test_load_data_and_truncate(book: Logbook, tmp_path: Path) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(20))")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, 'gone')", "TRUNCATE t")
    planned = PlannedLog(book, start)
    assert [found.query.statement for found in planned.statements()] == ["TRUNCATE t"]
    assert [position.offset for position in planned.positions()][-1] == book.place().offset
    start = book.place()
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{i}\tline {i}\n" for i in range(3000)))
    before = book.fetch("SELECT @@GLOBAL.local_infile")[0][0]
    book.run("SET GLOBAL local_infile = ON")
    try:
        with book.server.root_connection(book.database, local_infile=True) as loader, loader.cursor() as cursor:
            cursor.execute(f"LOAD DATA LOCAL INFILE '{lines}' INTO TABLE t")
    finally:
        book.run(f"SET GLOBAL local_infile = {before}")
    assert len(check(book, start, "t")) == 3000


def test_cascades_where_they_are_logged(mysql_server: PrivateServer) -> None:
    with open_logbook(mysql_server, "mysql") as book:
        book.run("CREATE DATABASE cascading", "USE cascading")
        book.database = "cascading"
        book.run("CREATE TABLE p (id INT PRIMARY KEY, u INT UNIQUE)")
        book.run("CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)")
        book.run("CREATE TABLE n (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL)")
        start = book.place()
        book.insert("p", [(i, i) for i in range(10)])
        book.insert("c", [(i, i % 10) for i in range(100)])
        book.insert("n", [(i, i) for i in range(100)])
        book.run("DELETE FROM p WHERE id < 3", "UPDATE p SET id = id + 100 WHERE id > 7")
        check(book, start, "p", "c", "n")
        book.run("DROP DATABASE cascading")


def test_rolled_back_changes_are_absent(flavour: str, fresh_server: Callable[..., PrivateServer]) -> None:
    """Savepoints, non-transactional tables in a transaction, temporary tables: on a server that allows the mix, without GTIDs."""
    server = fresh_server(**({} if flavour == "mariadb" else {"gtid_mode": False, "enforce_gtid_consistency": False}))
    execute(server, "CREATE DATABASE rolled")
    with open_logbook(server, "rolled") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300))", "CREATE TABLE m (id INT PRIMARY KEY, v VARCHAR(300)) ENGINE=MyISAM")
        start = book.place()
        for compressed in (False, True):
            if compressed and flavour == "mariadb":
                book.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
            elif compressed:
                book.run("SET SESSION binlog_transaction_compression = ON")
            for transaction in transactions(1000 if compressed else 0):
                book.run("BEGIN", *transaction)
        images = check(book, start, "t", "m")
        assert {image.row[1] for image in images} & {"never"} == set()
        # All cuts give the same images, and rising transaction names.
        cut = PlannedLog(book, start, BatchLimits(flush_bytes=1))
        assert cut.images("t", "m") == images
        assert sum(block.changes for block in cut.blocks("t", "m")) == len(images)
        check_names(book, PlannedLog(book, start).blocks("t", "m", options=ReadOptions(transactions=True)), flavour)


def transactions(base: int) -> Iterator[tuple[str, ...]]:
    def row(table: str, number: int, value: str = "'kept'") -> str:
        return f"INSERT INTO {table} VALUES ({base + number}, {value})"

    long = "REPEAT('kept', 60)"
    yield row("t", 1), row("t", 2), row("m", 1), row("m", 2), "COMMIT"
    yield row("t", 10, "'never'"), row("m", 10), row("t", 11, "'never'"), "ROLLBACK"
    yield row("t", 20, "'never'"), "CREATE TEMPORARY TABLE tt (a INT)", "DROP TEMPORARY TABLE tt", "ROLLBACK"
    yield f"UPDATE t, m SET t.v = 'never', m.v = 'kept too' WHERE t.id = {base + 1} AND m.id = {base + 1}", "ROLLBACK"
    yield (
        row("t", 30, long),
        "SAVEPOINT `a ``b`",
        row("t", 31, "'never'"),
        row("m", 31, long),
        "ROLLBACK TO `A ``b`",
        row("t", 32),
        "COMMIT",
    )
    nested = (row("t", 40), "SAVEPOINT a", row("m", 41), row("t", 41, "'never'"), "SAVEPOINT b", row("t", 42, "'never'"), "ROLLBACK TO b")
    yield *nested, row("t", 43, "'never'"), "ROLLBACK TO a", row("t", 44, long), "SAVEPOINT a", row("t", 45), "ROLLBACK TO a", "COMMIT"
    yield row("m", 50), row("t", 50), "SAVEPOINT x", "ROLLBACK TO x", row("t", 51), "RELEASE SAVEPOINT x", "COMMIT"


def check_names(book: Logbook, blocks: list[ChangeBlock], flavour: str) -> None:
    """Without GTIDs a transaction is named by its start position."""
    names = [name for block in blocks for name in (block.transaction.to_pylist() if block.transaction else [])]
    assert len(set(names)) > 10
    if flavour == "mysql":
        places = {f"binlog.{number:06d}" for number in range(1, 9)}
        assert {name.partition(":")[0] for name in names} <= places
        begins = {int(row[1]) for row in book.fetch(f"SHOW BINLOG EVENTS IN '{book.place().file}'") if row[2] == "Anonymous_Gtid"}
        assert {int(name.partition(":")[2]) for name in names} <= begins


def test_transactions_and_statements_are_named(book: Logbook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image has its transaction's GTID, its place in it, and its statement, for all cuts of the log."""
    mariadb = book.server.flavour == "mariadb"
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))")
    book.run("SET SESSION binlog_annotate_row_events = ON" if mariadb else "SET SESSION binlog_rows_query_log_events = ON")
    start, expected = book.place(), {}
    for n in range(6):
        statements = [f"INSERT INTO t VALUES ({10 * n + i}, REPEAT('{i}', 90)) /* {n} é */" for i in range(1 + n)]
        book.run("BEGIN", *statements, "COMMIT")
        last = book.fetch("SELECT @@last_gtid" if mariadb else "SELECT @@gtid_executed")[0][0].replace("\n", "")
        for i, statement in enumerate(statements):
            expected[str(10 * n + i)] = (last, i, statement)
    book.run("SET SESSION binlog_annotate_row_events = OFF" if mariadb else "SET SESSION binlog_rows_query_log_events = OFF")
    book.run("INSERT INTO t VALUES (1000, 'nobody says why')")
    options = ReadOptions(transactions=True, queries=True)
    whole = labelled(PlannedLog(book, start).blocks("t", options=options))
    for key, (_, i, statement) in expected.items():
        name, order, query = whole[key]
        assert query == statement
        later = whole.get(str(int(key) + 1))
        assert later is None or (later[0] == name and later[1] > order)
        assert order > 0
        assert i or [found[0] for found in whole.values()].count(name) > i
    if mariadb:
        assert [whole[key][0] for key in expected] == [gtid for gtid, _, _ in expected.values()]
    else:
        numbers = [int(whole[key][0].rpartition(":")[2]) for key in expected]
        assert sorted(set(numbers)) == list(range(min(numbers), min(numbers) + 6))
        assert all(whole[key][0].rpartition(":")[0] in gtid for key, (gtid, _, _) in expected.items())
    assert whole["1000"][2] is None
    assert PlannedLog(book, start).blocks("t")[0].transaction is None
    monkeypatch.setattr(planner_module, "_MIN_SEGMENT_BYTES", 300)
    monkeypatch.setattr(relay_module, "SPLIT_BYTES", 1)
    cut = PlannedLog(book, start, BatchLimits(parallelism=8))
    assert any(segment.open_transaction for segment in cut.segments())
    assert labelled(cut.blocks("t", options=options)) == whole


def labelled(blocks: list[ChangeBlock]) -> dict[str, tuple[str, int, str | None]]:
    found = {}
    for block in blocks:
        assert block.transaction is not None
        assert block.order is not None
        assert block.query is not None
        parts = (block.images.column(0), block.transaction, block.order, block.query)
        for key, name, order, query in zip(*(part.to_pylist() for part in parts), strict=True):
            found[str(key)] = (name, order, query)
    return found


def test_statements_instead_of_rows_reach_the_planner(book: Logbook, tmp_path: Path) -> None:
    """Statements with their context events (variables, random seeds, loaded files)."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)", "CREATE TABLE l (id INT PRIMARY KEY)")
    lines = tmp_path / "lines"
    lines.write_text("1\n2\n")
    start = book.place()
    given = [
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO t (v) VALUES (2)",
        "INSERT INTO t (v) VALUES (@a)",
        "INSERT INTO t (v) VALUES (RAND() * 100)",
        "UPDATE t SET v = 5",
    ]
    book.run("SET SESSION binlog_format = STATEMENT", "SET @a = 5", *given[:4], "BEGIN", given[4], "COMMIT")
    book.run("SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (100, 1)")
    before = book.fetch("SELECT @@GLOBAL.local_infile")[0][0]
    book.run("SET GLOBAL local_infile = ON")
    with book.server.root_connection(book.database, local_infile=True) as loader, loader.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute(f"LOAD DATA LOCAL INFILE '{lines}' INTO TABLE l")
    book.run(f"SET GLOBAL local_infile = {before}")
    planned = PlannedLog(book, start)
    found = [statement.query for statement in planned.statements()]
    assert [query.statement for query in found[:5]] == given
    assert {query.database for query in found} == {book.database}
    assert len(found) == 6
    assert found[5].statement.upper().startswith("LOAD DATA")
    assert "`l`" in found[5].statement
    # Each is a barrier.
    assert len(planned.positions()) >= 1 + 6
