"""Cascades by statements over several tables and databases, and by fixed-length keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pymysql.err import IntegrityError

from headrace.model.table_selection import Selection
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.cascade_replica import PAIR, Replica

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")


@pytest.fixture
def other(replica: Replica) -> Iterator[Logbook]:
    """A second database of the same server."""
    server, database = replica.book.server, f"{replica.book.database}_other"
    replica.book.run(f"CREATE DATABASE {database}")
    with open_logbook(server, database) as book:
        yield book
    replica.book.run("SET foreign_key_checks = 0", f"DROP DATABASE {database}")


@ON_MYSQL
def test_foreign_keys_between_databases(replica: Replica, other: Logbook) -> None:
    """Tables of the same name in both databases; a chain leaves a database and returns to it."""
    here, there = replica.book.database, other.database
    other.run("CREATE TABLE p (id INT PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (3), (4)")
    replica.book.run(
        f"CREATE TABLE p (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES {there}.p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO p VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    )
    other.run(
        f"CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {here}.p (id) ON DELETE SET NULL ON UPDATE CASCADE)",
        "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    )

    def compare() -> None:
        replica.pipe.catch_up()
        assert_same(replica.client, replica.book, ["p"])
        assert_same(replica.client, other, ["p", "c"])

    replica.restart(selection=Selection((f"{here}.*", f"{there}.*")))
    compare()
    other.run("DELETE FROM p WHERE id = 1", "UPDATE p SET id = 20 WHERE id = 2", f"USE {here}", f"DELETE FROM {there}.p WHERE id = 3")
    other.run(f"USE {there}")
    compare()
    replica.book.run("UPDATE p SET id = 40 WHERE id = 4", f"DELETE {there}.p FROM {there}.p JOIN p USING (id) WHERE p.id = 20")
    compare()
    other.run(f"RENAME TABLE p TO {here}.parents")
    replica.book.run("DELETE FROM parents WHERE id = 4")
    replica.pipe.catch_up()
    replica.compare()
    assert_same(replica.client, other, ["c"])


@ON_MYSQL
def test_statements_over_several_tables(replica: Replica) -> None:
    numbers = [f"({n}, {n})" for n in range(1, 10)]
    replica.begin(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE c (id INT PRIMARY KEY, b INT, FOREIGN KEY (b) REFERENCES b (id) ON DELETE SET NULL ON UPDATE CASCADE)",
        "CREATE TABLE d (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE ON UPDATE SET NULL)",
        *(f"INSERT INTO {table} VALUES {', '.join(numbers)}" for table in "abcd"),
    )
    # The statement deletes rows that its own cascades delete too.
    replica.step("DELETE b, a FROM a JOIN b ON b.a = a.id WHERE a.id < 3")
    replica.step("DELETE a, d FROM a JOIN d ON d.a = a.id WHERE d.id = 3")
    replica.step("DELETE FROM a, c USING a LEFT JOIN c ON c.id = a.id WHERE a.id = 4")
    # A child changes in the statement that also changes its parent's key.
    replica.step("UPDATE a JOIN d ON d.id = a.id SET a.id = a.id + 100, d.id = d.id + 100 WHERE a.id = 5")
    replica.step("UPDATE b JOIN c ON c.b = b.id SET b.id = b.id + 10, c.id = c.id + 10 WHERE b.id IN (6, 7)")
    replica.step("UPDATE a, c SET a.v = 0, c.b = NULL WHERE a.id = 8 AND c.id = 8", "DELETE a, c FROM a JOIN c USING (id) WHERE a.id = 8")


@ON_MYSQL
def test_keys_of_fixed_length(replica: Replica) -> None:
    """The server pads CHAR with spaces and BINARY with zeros, and the log omits both."""
    ci, both = "COLLATE utf8mb4_general_ci", "ON DELETE CASCADE ON UPDATE CASCADE"
    replica.begin(
        f"CREATE TABLE p (k CHAR(8) {ci} PRIMARY KEY, b BINARY(4) NOT NULL UNIQUE, v VARBINARY(6) NOT NULL UNIQUE)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k CHAR(12) {ci}, FOREIGN KEY (k) REFERENCES p (k) {both})",
        f"CREATE TABLE t (id INT PRIMARY KEY, k VARCHAR(9) {ci}, FOREIGN KEY (k) REFERENCES p (k) ON DELETE SET NULL ON UPDATE SET NULL)",
        "CREATE TABLE b (id INT PRIMARY KEY, b BINARY(4), FOREIGN KEY (b) REFERENCES p (b) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE v (id INT PRIMARY KEY, v VARBINARY(9), FOREIGN KEY (v) REFERENCES p (v) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE w (b BINARY(4), n INT, PRIMARY KEY (b, n), FOREIGN KEY (b) REFERENCES p (b) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO p VALUES ('a', 'a', 'a'), ('b', x'6200', x'6200'), ('c', x'00', x'00'), ('d', 'long', x'640000'), ('e', 'e', '')",
        "INSERT INTO c VALUES (1, 'a'), (2, 'A '), (3, 'b'), (4, 'c'), (6, 'd')",
        "INSERT INTO t VALUES (1, 'a'), (2, 'A '), (3, 'b  '), (4, 'c'), (6, 'd')",
        "INSERT INTO b VALUES (1, 'a'), (2, 'b'), (3, x'00000000'), (4, 'long')",
        "INSERT INTO v VALUES (1, 'a'), (2, x'6200'), (3, x'00'), (4, x'640000'), (5, '')",
        "INSERT INTO w VALUES ('a', 1), ('b', 2), ('', 3), ('long', 4)",
        "CREATE TABLE x (id INT PRIMARY KEY, b VARBINARY(9), FOREIGN KEY (b) REFERENCES p (b) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO x VALUES (1, x'61000000'), (2, x'62000000'), (3, x'00000000'), (4, 'long')",
    )
    replica.step("DELETE FROM p WHERE k = 'a'")
    replica.step("UPDATE p SET k = 'bb ', b = x'6262', v = x'626200' WHERE k = 'b'", "UPDATE p SET k = 'C' WHERE k = 'c'")
    replica.step("UPDATE p SET b = x'0100', v = x'0100' WHERE k = 'c'", "DELETE FROM p WHERE k = 'd'", "DELETE FROM p WHERE k = 'e'")
    replica.step("DELETE FROM p")


@ON_MYSQL
def test_padded_texts_that_reach_columns_of_another_length(replica: Replica) -> None:
    """A child of type CHAR shows no trailing spaces of its parent's VARCHAR."""
    ci, both = "COLLATE utf8mb4_general_ci", "ON DELETE CASCADE ON UPDATE CASCADE"
    replica.begin(
        f"CREATE TABLE p (k VARCHAR(8) {ci} PRIMARY KEY)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k CHAR(12) {ci}, FOREIGN KEY (k) REFERENCES p (k) {both})",
        f"CREATE TABLE d (k CHAR(9) {ci} PRIMARY KEY, FOREIGN KEY (k) REFERENCES p (k) {both})",
        "INSERT INTO p VALUES ('a'), ('b ')",
        "INSERT INTO c VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO d VALUES ('a'), ('b')",
    )
    replica.step("UPDATE p SET k = 'x  ' WHERE k = 'a'")
    replica.step("UPDATE p SET k = 'y' WHERE k = 'x'", "UPDATE p SET k = 'B ' WHERE k = 'b'")
    replica.step("DELETE FROM p")


@ON_MYSQL
@pytest.mark.parametrize("last", ["UPDATE p SET k = 'y' WHERE k = 'x'", "DELETE FROM p WHERE k = 'x'"])
def test_padded_texts_that_change_again_in_the_same_batch(replica: Replica, last: str) -> None:
    """The second event has the parent's spelling, and the child does not."""
    ci = "COLLATE utf8mb4_general_ci"
    replica.begin(
        f"CREATE TABLE p (k VARCHAR(8) {ci} PRIMARY KEY)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k CHAR(12) {ci}, FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO p VALUES ('a')",
        "INSERT INTO c VALUES (1, 'a')",
    )
    replica.step("UPDATE p SET k = 'x  ' WHERE k = 'a'", last)


@ON_MYSQL
def test_another_spelling_of_the_same_key(replica: Replica) -> None:
    """The children that are already spelt so are changed, too."""
    kind = "VARCHAR(8) COLLATE utf8mb4_general_ci"
    key = "FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE ON UPDATE"
    replica.begin(
        f"CREATE TABLE p (k {kind} PRIMARY KEY, v INT)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k {kind}, {key} CASCADE)",
        f"CREATE TABLE n (id INT PRIMARY KEY, k {kind}, {key} SET NULL)",
        f"CREATE TABLE m (k {kind}, id INT, PRIMARY KEY (k, id), {key} CASCADE)",
        f"CREATE TABLE q (k {kind} PRIMARY KEY, v INT, {key} CASCADE)",
        f"CREATE TABLE g (id INT PRIMARY KEY, k {kind}, {key.replace('p (k)', 'q (k)')} CASCADE)",
        "INSERT INTO p VALUES ('b', 1), ('ü', 2)",
        "INSERT INTO q VALUES ('B', 1), ('ü', 2)",
        *(f"INSERT INTO {table} (id, k) VALUES (1, 'b'), (2, 'B'), (3, 'Ü'), (4, 'ü'), (5, 'u')" for table in "cnmg"),
    )
    replica.step("UPDATE q SET v = 9", "UPDATE p SET v = v + 0")
    replica.step("UPDATE p SET k = 'B' WHERE v = 1")
    replica.step("UPDATE p SET k = 'U' WHERE v = 2", "UPDATE p SET k = 'b ' WHERE v = 1")
    replica.step("DELETE FROM p")


@ON_MYSQL
def test_a_child_outside_the_selection(replica: Replica) -> None:
    """It is not in the sink, so nothing is applied to it; nor does it keep its parent out."""
    replica.book.run(*PAIR, "CREATE TABLE d (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)")
    replica.book.run("INSERT INTO d VALUES (1, 1), (2, 2)")
    replica.restart(exclude=("*.c",))
    replica.book.run("DELETE FROM p WHERE id = 1", "UPDATE c SET p = NULL", "INSERT INTO p VALUES (3)", "ALTER TABLE c ADD v INT")
    with pytest.raises(IntegrityError):
        replica.book.run("UPDATE p SET id = 4 WHERE id = 2")
    replica.book.run("DELETE FROM p WHERE id = 2")
    replica.pipe.catch_up()
    assert_same(replica.client, replica.book, ["p", "d"])
    assert replica.client.query(f"EXISTS TABLE `{replica.book.database}`.c").result_rows == [(0,)]
