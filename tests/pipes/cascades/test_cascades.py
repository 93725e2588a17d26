"""Foreign-key cascades: the sink holds the child rows as the source's SELECT shows them, although the log lacks their changes."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest

from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from testkit.generators.cascades_random import RandomTables
from testkit.generators.tables_random import SteeredPipe
from testkit.pipelines.cascade_replica import PAIR, Replica

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")
MORE = pytest.mark.slow(because="the first cases of the test; test_random_histories[mariadb-0]")


@ON_MYSQL
def test_delete_cascades_to_children_and_grandchildren(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE m (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        "CREATE TABLE c (id INT PRIMARY KEY, m INT, FOREIGN KEY (m) REFERENCES m (id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO m VALUES (10, 1), (11, 1), (20, 2), (30, NULL)",
        "INSERT INTO c VALUES (100, 10), (101, 10), (110, 11), (200, 20), (300, 30), (400, NULL)",
    )
    replica.step("UPDATE p SET v = v + 1", "DELETE FROM p WHERE id = 1")
    # A row that is inserted again after the cascade, in the same batch, stays; so does its new child.
    replica.step(
        "INSERT INTO p VALUES (5, 5)",
        "INSERT INTO m VALUES (50, 5)",
        "INSERT INTO c VALUES (500, 50), (501, 50)",
        "DELETE FROM p WHERE id = 5",
        "INSERT INTO p VALUES (5, 6)",
        "INSERT INTO m VALUES (50, 5)",
        "INSERT INTO c VALUES (501, 50)",
    )
    # The middle row is deleted by a cascade and inserted again with another parent: its children are gone all the same.
    replica.step("DELETE FROM p WHERE id = 2", "INSERT INTO m VALUES (20, 3)")


def test_update_and_set_null(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE r (id INT PRIMARY KEY)",
        "INSERT INTO r VALUES (1), (2), (3)",
        "CREATE TABLE u (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE n (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL ON UPDATE SET NULL)",
        "CREATE TABLE k (p INT, x INT, PRIMARY KEY (p, x), FOREIGN KEY (p) REFERENCES r (id) ON DELETE CASCADE)",
        "CREATE TABLE b (id INT PRIMARY KEY, p INT, q INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL ON UPDATE CASCADE,"
        " FOREIGN KEY (q) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO p VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
        "INSERT INTO u VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO n VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO k VALUES (1, 1), (1, 2), (2, 1), (3, 1)",
        "INSERT INTO b VALUES (1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 3, NULL)",
    )
    replica.step("UPDATE p SET id = id + 10 WHERE id = 1")
    # A rotation of keys within one batch.
    replica.step("UPDATE p SET id = 9 WHERE id = 2", "UPDATE p SET id = 2 WHERE id = 3", "UPDATE p SET id = 3 WHERE id = 9")
    # A chain in one statement.
    replica.step("UPDATE p SET id = id + 1 ORDER BY id DESC")
    replica.step("DELETE FROM p WHERE id = 12", "UPDATE p SET v = 0", "DELETE FROM r WHERE id = 1")
    replica.step("REPLACE INTO p VALUES (3, 7)", "INSERT INTO p VALUES (4, 8) ON DUPLICATE KEY UPDATE id = 40")


@ON_MYSQL
def test_statements_without_checks_do_not_cascade(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1), (2), (3)",
        "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)",
    )
    replica.step("SET foreign_key_checks = 0", "DELETE FROM p WHERE id = 1", "SET foreign_key_checks = 1", "DELETE FROM p WHERE id = 2")
    replica.step("SET foreign_key_checks = 0", "TRUNCATE p", "SET foreign_key_checks = 1")


@ON_MYSQL
def test_rows_that_reference_their_own_table(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE t (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES t (id) ON DELETE CASCADE)",
        "CREATE TABLE n (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES t (id) ON DELETE SET NULL)",
        "INSERT INTO t VALUES (1, NULL), (2, 1), (3, 2), (4, 3), (5, 1), (6, NULL), (7, 6)",
        "INSERT INTO n VALUES (1, 4), (2, 5), (3, 7)",
    )
    replica.step("DELETE FROM t WHERE id = 1")
    replica.step("INSERT INTO t VALUES (8, 7), (9, 8)", "UPDATE n SET t = 9 WHERE id = 1", "DELETE FROM t WHERE id = 6")


@ON_MYSQL
def test_schema_changes_of_parents_and_children(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE m (id INT PRIMARY KEY, p INT, CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        "CREATE TABLE c (id INT PRIMARY KEY, m INT, FOREIGN KEY (m) REFERENCES m (id) ON DELETE SET NULL)",
        f"INSERT INTO p VALUES {', '.join(f'({n}, {n})' for n in range(1, 16))}",
        f"INSERT INTO m VALUES {', '.join(f'({n}, {n})' for n in range(1, 16))}",
        f"INSERT INTO c VALUES {', '.join(f'({n}, {n})' for n in range(1, 16))}",
    )
    replica.step("DELETE FROM p WHERE id = 1", "ALTER TABLE m DROP FOREIGN KEY up", "DELETE FROM p WHERE id = 2")
    replica.step("INSERT INTO p VALUES (2, 2)", "ALTER TABLE m ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE")
    replica.step("DELETE FROM p WHERE id = 3", "ALTER TABLE p ADD w INT", "DELETE FROM p WHERE id = 4", "RENAME TABLE p TO parents")
    replica.step("DELETE FROM parents WHERE id = 5", "RENAME TABLE m TO middles, c TO children", "DELETE FROM parents WHERE id = 6")
    replica.step("ALTER TABLE parents CHANGE id number INT", "DELETE FROM parents WHERE number = 7")
    replica.step("ALTER TABLE middles CHANGE p parent INT", "DELETE FROM parents WHERE number = 9")
    replica.step(
        "SET foreign_key_checks = 0",
        "TRUNCATE middles",
        "SET foreign_key_checks = 1",
        "DELETE FROM parents WHERE number = 10",
        "INSERT INTO middles VALUES (11, 11), (12, 12)",
        "DELETE FROM parents WHERE number = 11",
    )
    replica.step(
        "CREATE TABLE extra (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES middles (id) ON DELETE CASCADE)",
        "INSERT INTO extra VALUES (1, 12)",
        "DELETE FROM parents WHERE number = 12",
    )
    replica.step("DROP TABLE extra", "DROP TABLE children", "INSERT INTO middles VALUES (13, 13)", "DELETE FROM parents WHERE number = 13")


@ON_MYSQL
def test_resync_and_restart(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE m (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE c (id INT PRIMARY KEY, m INT, FOREIGN KEY (m) REFERENCES m (id) ON DELETE CASCADE)",
        f"INSERT INTO p VALUES {', '.join(f'({n})' for n in range(1, 10))}",
        f"INSERT INTO m VALUES {', '.join(f'({n}, {n})' for n in range(1, 10))}",
        f"INSERT INTO c VALUES {', '.join(f'({n}, {n})' for n in range(1, 10))}",
    )
    database = replica.book.database
    for number, table in enumerate(("p", "m", "c"), 1):
        request_resync(replica.pipe.directory, (f"{database}.{table}",))
        replica.step(f"DELETE FROM p WHERE id = {number}", f"UPDATE p SET id = id + 100 WHERE id = {number + 3}")
        replica.step(f"DELETE FROM p WHERE id = {number + 103}")
        replica.restart()
    replica.step("DELETE FROM p WHERE id = 7")


@ON_MYSQL
def test_rows_that_move_to_other_keys(replica: Replica) -> None:
    """ON UPDATE CASCADE of columns of the primary key. The old key may get another row in the same batch."""
    values = "t TEXT, d DECIMAL(20, 5), e ENUM('x', 'y'), s SET('x', 'y'), j JSON, w DATETIME(3), b BLOB, f DOUBLE NOT NULL"
    one = "'{0}', {0}.5, 'y', 'x,y', '[{0}]', '2026-01-01 00:00:00.5', x'0061', {0}"
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        f"CREATE TABLE m (p INT, n INT, {values}, PRIMARY KEY (p, n),"
        " FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE c (p INT, n INT, k INT, v INT, PRIMARY KEY (p, n, k), UNIQUE (v),"
        " FOREIGN KEY (p, n) REFERENCES m (p, n) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE d (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES c (v) ON DELETE CASCADE ON UPDATE SET NULL)",
        "INSERT INTO p VALUES (1), (2), (3), (9)",
        *(f"INSERT INTO m VALUES ({p}, {n}, {one.format(p * 10 + n)})" for p in (1, 2, 3) for n in (1, 2)),
        "INSERT INTO c VALUES (1, 1, 1, 111), (1, 1, 2, 112), (2, 1, 1, 211), (3, 2, 1, 321)",
        "INSERT INTO d VALUES (1, 111), (2, 112), (3, 211), (4, 321)",
    )
    replica.step("UPDATE p SET id = 5 WHERE id = 1")
    # Keys move one by one, and each is taken by another row.
    replica.step("UPDATE p SET id = id + 1 ORDER BY id DESC")
    replica.step("UPDATE p SET id = id - 1 ORDER BY id", "UPDATE m SET t = 'later' WHERE p = 2", "DELETE FROM m WHERE p = 3 AND n = 1")
    # The old key gets a new row in the same batch, and so do its children.
    replica.step(
        "UPDATE p SET id = 7 WHERE id = 2",
        "INSERT INTO p VALUES (2)",
        f"INSERT INTO m VALUES (2, 1, {one.format(77)})",
        "INSERT INTO c VALUES (2, 1, 1, 999)",
        "UPDATE c SET v = 998 WHERE v = 211",
        "DELETE FROM p WHERE id = 2",
    )
    # There and back, a change in between, and a row that moves into a key that was just left.
    replica.step("UPDATE p SET id = 20 WHERE id = 7", "UPDATE m SET f = 4 WHERE p = 20", "UPDATE p SET id = 7 WHERE id = 20")
    replica.step("UPDATE p SET id = 30 WHERE id = 7", "UPDATE p SET id = 7 WHERE id = 3", "UPDATE m SET t = 'moved in' WHERE p = 7")
    replica.restart()
    replica.step("UPDATE m SET n = n + 10 WHERE p = 30", "UPDATE p SET id = 31 WHERE id = 30", "DELETE FROM p WHERE id = 5")
    copies = replica.copies()
    assert len(copies) >= 2
    replica.step("CREATE TABLE other (id INT PRIMARY KEY)", "UPDATE p SET id = id + 100 ORDER BY id DESC")
    assert replica.copies() == copies, "a statement about another table does not copy the tables again"
    replica.step("ALTER TABLE m ADD late INT DEFAULT 3", "UPDATE m SET late = 4", "UPDATE p SET id = id + 100 ORDER BY id DESC")
    replica.step("DELETE FROM d", "SET foreign_key_checks = 0", "TRUNCATE TABLE c", "SET foreign_key_checks = 1")
    replica.step("INSERT INTO c SELECT p, n, 1, p * 100 + n FROM m", "UPDATE p SET id = id + 100 ORDER BY id DESC")
    request_resync(replica.pipe.directory, (f"{replica.book.database}.m",))
    replica.step("UPDATE p SET id = id + 100 ORDER BY id DESC")


@ON_MYSQL
def test_rows_that_move_in_a_target_with_other_keys(replica: Replica) -> None:
    """The foreign key is a column of the sort key and of the partition, and not of the primary key."""
    choices = ClickHouseOptions(tables=(("*.c", (("sort_key", ("p", "id")), ("partition_by", "p % 4"))),))
    replica.book.run(*PAIR[:1], PAIR[1].replace("p INT", "p INT NOT NULL, v INT"))
    replica.restart(choices=choices)
    replica.step("INSERT INTO p VALUES (1), (2), (3)", "INSERT INTO c VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30)")
    replica.step("UPDATE p SET id = id + 1 ORDER BY id DESC", "UPDATE c SET v = v + 1 WHERE p > 2")
    replica.step("UPDATE p SET id = 9 WHERE id = 2", "UPDATE c SET p = 3 WHERE id = 1", "UPDATE p SET id = 8 WHERE id = 3")


@ON_MYSQL
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=MORE), pytest.param(2, marks=MORE), pytest.param(3, marks=MORE)])
def test_changes_while_rows_are_read(replica: Replica, seed: int) -> None:
    """Parents change between the chunks of their children, and the stream replicates it before the next chunk."""
    rng = random.Random(seed)
    tables = RandomTables(replica.book, rng)
    tables.create()
    tables.change(60)
    pipe: SteeredPipe

    def between() -> None:
        tables.change(rng.randint(0, 3))
        if not pipe.is_paused and rng.random() < 0.7:
            pipe.stream_some(1)
        if not pipe.is_paused and rng.random() < 0.1:
            request_resync(pipe.directory, (f"{replica.book.database}.{rng.choice(list(tables.columns))}",))
            pipe.parts.resyncs.plan_pending(nullcontext)

    pipe = SteeredPipe(
        replica.book, replica.url, replica.state, chunk_rows=2, between=between, inside=lambda: tables.change(rng.randint(0, 2))
    )
    pipe.open()
    pipe.catch_up()
    replica.compare()
    for _ in range(2):
        request_resync(pipe.directory, (f"{replica.book.database}.{rng.choice(list(tables.columns))}",))
        tables.change(5)
        pipe.catch_up()
        replica.compare()
