"""Statements in the logs of real servers: changes of rows halt, whatever they name, and what servers log in row format does not."""

from __future__ import annotations

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.mysql.schema.ddl_outcome import OutcomeKind
from testkit.oracles.binlogs import Logbook
from testkit.oracles.ddl import Follower

REACHING = ("INSERT INTO v VALUES (1, 1)", "SELECT f(2)", "DO f(3)", "INSERT INTO fires VALUES (4)")
SETUP = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
    "CREATE TABLE fires (id INT PRIMARY KEY)",
    "CREATE VIEW v AS SELECT * FROM t",
    "CREATE FUNCTION f(n INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO t VALUES (n, n); RETURN n; END",
    "CREATE TRIGGER reaches AFTER INSERT ON fires FOR EACH ROW INSERT INTO t VALUES (NEW.id, NEW.id)",
)


def follow(book: Logbook) -> Follower:
    selected = TableName(book.database, "t")
    return Follower(book, (book.database,), selected.__eq__)


def test_row_changes_that_name_no_selected_table_halt(book: Logbook) -> None:
    """Through a view, a function or a trigger, each of them changes the selected table."""
    book.run(*SETUP)
    follower = follow(book)
    for number, statement in enumerate(REACHING, 1):
        book.run("SET SESSION binlog_format = 'STATEMENT'", statement, "SET SESSION binlog_format = 'ROW'")
        assert book.fetch("SELECT MAX(id) FROM t") == [(str(number),)]
        [outcome] = follower.catch_up()
        with pytest.raises(DefiniteError, match=f"change of rows of {book.database}.t was logged as a statement") as error:
            outcome.check()
        assert outcome.query.statement in error.value.message
        assert outcome.query.statement.split()[0] == statement.split()[0].replace("DO", "SELECT")
        assert "headrace resync" in error.value.hint


def test_what_servers_log_in_row_format_is_passed_over(book: Logbook) -> None:
    """The same changes as rows, and statements about anything but rows, with the selected table's database as default."""
    mariadb = book.server.flavour == "mariadb"
    book.run(*SETUP)
    follower = follow(book)
    book.run(
        *REACHING,
        "WITH x AS (SELECT f(5) AS n) SELECT n FROM x",
        "CREATE TEMPORARY TABLE scratch (id INT)",
        "INSERT INTO scratch VALUES (1)",
        "DROP TEMPORARY TABLE scratch",
        "CREATE USER one_that_is_logged",
        "GRANT SELECT ON t TO one_that_is_logged",
        "SET PASSWORD FOR one_that_is_logged = " + ("PASSWORD('a new one')" if mariadb else "'a new one'"),
        "DROP USER one_that_is_logged",
        "ANALYZE TABLE t, fires",
        "OPTIMIZE TABLE fires",
        "FLUSH TABLES",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DISABLE DO DELETE FROM t",
        "CREATE PROCEDURE p() UPDATE t SET a = a + 1",
        "CALL p()",
        "DROP PROCEDURE p",
        "DO SLEEP(0), f(6)",
        "CREATE TABLE kept (id INT) ENGINE=MEMORY",
        "INSERT INTO kept VALUES (1)",
    )
    if mariadb:
        book.run(
            "CREATE SEQUENCE s",
            "SELECT NEXTVAL(s)",
            "SELECT SETVAL(s, 50)",
            "DO NEXTVAL(s)",
            "SET STATEMENT max_statement_time = 9 FOR INSERT INTO v VALUES (7, 7)",
        )
    outcomes = follower.catch_up()
    assert {outcome.outcome for outcome in outcomes} == {OutcomeKind.NOTHING}
    assert len(outcomes) > 10
