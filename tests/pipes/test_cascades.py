"""Foreign-key cascades: the sink holds the child rows as the source's SELECT shows them, although the log lacks their changes."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from clickhouse_connect.driver.client import Client
from pymysql.err import IntegrityError

import headrace
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.cascade_mode import CascadeMode
from headrace.model.change_block import ChangeBlock
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.cascades.store import ClickHouseCascadeStore
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow, SetAs, TargetEngine
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import connect
from testkit.generators.cascades_random import RandomTables
from testkit.generators.tables_random import SteeredPipe
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import Crash, DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.servers import build

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")
MORE = pytest.mark.slow(because="the first cases of the test; test_random_histories[mariadb-0]")


@pytest.fixture(scope="module")
def native_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A MySQL server that does not log cascades, as before 9.6."""
    server = build("mysql", tmp_path_factory.mktemp("native") / "server", innodb_native_foreign_keys="ON")
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture
def replica_account_of(server: PrivateServer) -> Account:
    return create_replica_account(server, f"reader_{secrets.token_hex(4)}")


@pytest.fixture
def server(flavour: str, request: pytest.FixtureRequest) -> PrivateServer:
    found: PrivateServer = request.getfixturevalue("native_server" if flavour == "mysql" else "mariadb_server")
    return found


class Replica:
    """A pipe over the book's database, compared with the source after every step."""

    def __init__(self, book: Logbook, clickhouse: EmbeddedServer, client: Client, state: Path) -> None:
        self.book, self.client = book, client
        self.url, self.state = url_of(clickhouse), state

    def begin(self, *statements: str) -> None:
        self.book.run(*statements)
        self.restart()
        self.compare()

    def restart(self, **settings: Any) -> None:
        """Continue as another process."""
        self.pipe = DrivenPipe(self.book, self.url, self.state, **settings).open()

    def step(self, *statements: str) -> None:
        """Run the statements, replicate them in one batch, and compare."""
        self.book.run(*statements)
        self.pipe.catch_up()
        self.compare()

    def copies(self) -> set[str]:
        """Return the identities of the copies of tables whose states the cascades need."""
        rows = self.client.query("SELECT uuid FROM system.tables WHERE database = 'headrace' AND name LIKE 'cascade%base'").result_rows
        return {str(uuid) for (uuid,) in rows}

    def compare(self) -> None:
        tables = [str(row[0]) for row in self.book.fetch("SHOW TABLES")]
        assert_same(self.client, self.book, tables)


@pytest.fixture
def replica(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> Replica:
    return Replica(book, clickhouse, client, tmp_path / "state")


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
    # A row that comes again after the cascade, in the same batch, stays; so does its new child.
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


PAIR = (
    "CREATE TABLE p (id INT PRIMARY KEY)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "INSERT INTO p VALUES (1), (2)",
    "INSERT INTO c VALUES (1, 1), (2, 2)",
)


@ON_MYSQL
def test_the_user_may_forbid_or_ignore_cascades(replica: Replica, caplog: pytest.LogCaptureFixture) -> None:
    replica.book.run(*PAIR)
    with pytest.raises(DefiniteError, match=r'foreign key up of .*\.c changes rows .*cascades = "halt"'):
        replica.restart(cascades=CascadeMode.HALT)
    replica.restart(cascades=CascadeMode.IGNORE)
    assert "the changes that foreign key up of" in caplog.text
    replica.book.run("DELETE FROM p WHERE id = 1")
    replica.pipe.catch_up()
    with pytest.raises(AssertionError):
        replica.compare()


COLLAPSING = ClickHouseOptions(all_tables=(("engine", TargetEngine.COLLAPSING),))
OBSTACLES: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "a moving row with an array": (
        ("ALTER TABLE c ADD s SET('x', 'y') NOT NULL DEFAULT 'x', DROP PRIMARY KEY, MODIFY p INT NOT NULL, ADD PRIMARY KEY (id, p)",),
        {"choices": ClickHouseOptions(all_tables=(("set", SetAs.ARRAY),))},
        "it moves rows of .* to other keys, and a key log cannot hold its column s",
    ),
    "a sort key that is set to NULL": (
        (
            "ALTER TABLE p ADD p INT",
            "ALTER TABLE c DROP FOREIGN KEY up",
            "ALTER TABLE c ADD CONSTRAINT up FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL",
        ),
        {"choices": ClickHouseOptions(all_tables=(("partition_by", "ifNull(p, 0) % 4"),))},
        "it sets p to NULL, which is part of the key",
    ),
    "a child without a key": (("ALTER TABLE c DROP PRIMARY KEY",), {}, "the child table has no key"),
    "an excluded parent": ((), {"exclude": ("*.p",)}, "its parent .*p is not replicated"),
    "a generated column": (("ALTER TABLE c ADD g INT AS (p + 1)",), {}, "the table has generated columns"),
    "an engine that counts": (
        (),
        {"choices": COLLAPSING},
        "is not a ReplacingMergeTree",
    ),
    "rows that wait": (
        (),
        {"choices": ClickHouseOptions(all_tables=(("on_refused_row", OnRefusedRow.DEAD_LETTER),))},
        "on_refused_row = dead_letter",
    ),
    "a masked column": ((), {"settings": {"transforms": {"*.c": {"mask": {"p": "null"}}}}}, "are transformed"),
}


@ON_MYSQL
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_cascades_that_cannot_be_exact_are_refused(replica: Replica, obstacle: str) -> None:
    statements, settings, why = OBSTACLES[obstacle]
    replica.book.run(*PAIR, *statements)
    with pytest.raises(DefiniteError, match=f"foreign key up of .* cannot apply it exactly: .*{why}") as raised:
        replica.restart(**settings)
    child = f"{replica.book.database}.c"
    remedies = f'leave the table out with --exclude {child}, make the key RESTRICT, or accept different rows with cascades = "ignore"'
    assert raised.value.hint == remedies
    # Each remedy of the message, with a new state and new targets.
    state, place = replica.state, f"DROP DATABASE IF EXISTS `{replica.book.database}`"
    excluded = (*settings.get("exclude", ()), child)
    for remedy in ({"exclude": excluded}, {"cascades": CascadeMode.IGNORE}, {}):
        if not remedy:
            replica.book.run("ALTER TABLE c DROP FOREIGN KEY up", "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id)")
        replica.client.command(place)
        replica.state = state.with_name("-".join(["remedy", *remedy]))
        replica.restart(shared_target=True, **{**settings, **remedy})
        replica.pipe.catch_up()


@ON_MYSQL
def test_the_log_itself_is_not_read_as_if_it_were_complete(replica: Replica) -> None:
    """`changes()` has no tables to which a cascade could be applied."""
    replica.book.run(*PAIR)
    with pytest.raises(DefiniteError, match=r"is changed by the foreign key up, and .* does not log such changes"):
        next(iter(headrace.changes(replica.book.server.url(replica.book.database))))


@ON_MYSQL
def test_a_parent_that_is_read_again_before_the_stream_has_its_changes(replica: Replica) -> None:
    """The stream skips the changes that the parent's snapshot contains, so its children are read again too."""
    replica.begin(*PAIR)
    replica.book.run("DELETE FROM p WHERE id = 1")
    request_resync(replica.pipe.directory, (f"{replica.book.database}.p",))
    replica.restart()
    replica.pipe.catch_up()
    replica.compare()


@ON_MYSQL
def test_a_parent_that_appears_while_the_pipe_is_stopped(replica: Replica) -> None:
    replica.begin("CREATE TABLE c (id INT PRIMARY KEY, p INT)", "INSERT INTO c VALUES (1, 1), (2, 2)")
    replica.book.run("CREATE TABLE p (id INT PRIMARY KEY)", "INSERT INTO p VALUES (1), (2)")
    replica.book.run("ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE", "DELETE FROM p WHERE id = 1")
    replica.restart()
    replica.pipe.catch_up()
    replica.compare()


@ON_MYSQL
def test_a_batch_that_is_half_written_is_not_applied_after_a_snapshot(replica: Replica) -> None:
    replica.begin(*PAIR, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    replica.step("INSERT INTO p VALUES (3)")
    replica.book.run("UPDATE c SET p = 3 WHERE id = 1", "DELETE FROM p WHERE id = 1")
    real = ClickHouseWriter.write

    def write(writer: ClickHouseWriter, block: ChangeBlock) -> None:
        if block.schema.name.table == "c":
            raise Crash
        real(writer, block)

    with mock.patch.object(ClickHouseWriter, "write", write), suppress(Crash):
        replica.pipe.catch_up()
    request_resync(replica.pipe.directory, (f"{replica.book.database}.other",))
    replica.restart()
    replica.pipe.catch_up()
    replica.compare()


@ON_MYSQL
def test_rows_that_a_snapshot_will_delete_take_no_effects(replica: Replica) -> None:
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)",
        "INSERT INTO p VALUES (1), (2)",
        "INSERT INTO c VALUES (1, 1), (2, 2)",
    )
    replica.client.command(f"INSERT INTO `{replica.book.database}`.c (id, p, _version) VALUES (99, 1, 5)")
    request_resync(replica.pipe.directory, (f"{replica.book.database}.c",))
    replica.pipe.parts.resyncs.plan_pending(nullcontext)
    replica.book.run("DELETE FROM p WHERE id = 1")
    replica.pipe._stream()
    replica.pipe._copy()
    replica.pipe.catch_up()
    replica.compare()


@ON_MYSQL
def test_an_account_that_may_only_read_sees_the_foreign_keys(replica: Replica, replica_account_of: Account) -> None:
    """MariaDB does not show them to such an account in information_schema."""
    replica.book.run(*PAIR)
    address = replace(replica.book.address, user=replica_account_of.user, password=replica_account_of.password)
    with closing(connect(address)) as connection:
        captured = capture_schemas(connection, address, lambda name: name.database == address.database)
    found = {schema.name.table: schema for schema in captured}
    assert [key.name for key in found["c"].foreign_keys if key.cascades] == ["up"]


@ON_MYSQL
def test_another_collation_by_a_statement(replica: Replica) -> None:
    kind = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE"
    replica.begin(
        f"CREATE TABLE p (k {kind} utf8mb4_general_ci PRIMARY KEY)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k {kind} utf8mb4_general_ci,"
        " CONSTRAINT up FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE)",
        "INSERT INTO p VALUES ('abc'), ('x')",
        "INSERT INTO c VALUES (1, 'ABC'), (2, 'X')",
    )
    replica.step("DELETE FROM p WHERE k = 'x'")
    replica.step(
        "ALTER TABLE c DROP FOREIGN KEY up",
        f"ALTER TABLE p MODIFY k {kind} utf8mb4_bin NOT NULL",
        f"ALTER TABLE c MODIFY k {kind} utf8mb4_bin",
        "INSERT INTO p VALUES ('ABC')",
        "ALTER TABLE c ADD CONSTRAINT up FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE",
    )
    replica.step("DELETE FROM p WHERE k = 'abc'")


COLLATIONS = ("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_danish_ci", "latin1_swedish_ci")
TEXTS = ("abc", "ABC", "aBc", "abc ", "x y", "X Y  ", "grün", "GRÜN", "grun", "aa", "å", "AA", "plain", "last", "LAST")


@ON_MYSQL
@pytest.mark.parametrize("collation", [COLLATIONS[0], *(pytest.param(one, marks=MORE) for one in COLLATIONS[1:])])
def test_text_keys_are_compared_by_their_collation(replica: Replica, collation: str) -> None:
    kind = f"VARCHAR(20) CHARACTER SET {collation.split('_', maxsplit=1)[0]} COLLATE {collation}"
    replica.begin(
        f"CREATE TABLE p (k {kind} PRIMARY KEY, v INT)",
        f"CREATE TABLE m (id INT, k {kind}, PRIMARY KEY (k, id), FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k {kind}, i INT, FOREIGN KEY (k, i) REFERENCES m (k, id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES ('abc', 1), ('x y', 2), ('grün', 3), ('aa', 4), ('plain', 5), ('last', 6)",
    )
    for number, text in enumerate(TEXTS):
        for statement in (f"INSERT INTO m VALUES ({number}, '{text}')", f"INSERT INTO c VALUES ({number}, '{text.swapcase()}', {number})"):
            with suppress(IntegrityError):
                replica.book.run(statement)
    replica.step()
    replica.step("UPDATE p SET v = 9 WHERE v = 5", "DELETE FROM p WHERE k = 'abc'")
    replica.step("UPDATE p SET v = 10 WHERE k = 'plain'", "DELETE FROM p WHERE v = 2", "DELETE FROM p WHERE k LIKE 'gr%'")
    replica.step("DELETE FROM p WHERE k = 'aa'", "DELETE FROM p WHERE k = 'last'")


def seeds() -> list[Any]:
    if chosen := os.environ.get("HEADRACE_SEEDS"):
        return list(range(*map(int, chosen.split(":"))))
    return [0, 1, *(pytest.param(seed, marks=MORE) for seed in range(2, 6))]


@ON_MYSQL
@pytest.mark.parametrize("seed", seeds())
def test_random_histories(replica: Replica, seed: int) -> None:
    """After every batch the sink equals the source. Some batches are interrupted in the middle of the cascades."""
    rng = random.Random(seed)
    tables = RandomTables(replica.book, rng)
    tables.create()
    tables.change(30)
    replica.begin()
    for step in range(8):
        tables.executed.clear()
        tables.change(rng.randint(1, 12))
        tables.transact(rng.randint(2, 8))
        if rng.random() < 0.4:
            interrupt(replica, rng.randint(0, 25))
        replica.pipe.catch_up()
        try:
            replica.compare()
        except AssertionError as error:
            shown = "\n".join([*(str(replica.book.fetch(f"SHOW CREATE TABLE {name}")[0][1]) for name in tables.columns), *tables.executed])
            raise AssertionError(f"step {step}: {error}\n{shown}") from error


def interrupt(replica: Replica, statement: int) -> None:
    """End the process before the given statement of the cascades, if there are as many, and continue as another one."""
    left = [statement]
    real = ClickHouseCascadeStore._run

    def run(store: ClickHouseCascadeStore, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        real(store, *arguments)

    with mock.patch.object(ClickHouseCascadeStore, "_run", run), suppress(Crash):
        replica.pipe.catch_up()
    replica.restart()
