"""Cascades of rows that are being read, accounts that may only read, and changed collations."""

from __future__ import annotations

from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from unittest import mock

import pytest
from pymysql.err import OperationalError

import headrace
from headrace.errors import DefiniteError
from headrace.model.cascades import Cascade
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import ForeignKey, ReferentialAction, TableName
from headrace.pipes.mysql.cascade_texts import may_change_comparison
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import connect
from testkit.pipelines.cascade_replica import PAIR, Replica
from testkit.pipelines.driven_pipe import Crash
from testkit.servers.accounts import Account

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")


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


@ON_MYSQL
def test_a_stream_behind_a_change_of_collation(replica: Replica) -> None:
    """The source compared the deleted key by a collation that nothing shows any more."""
    kind = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE"
    replica.begin(
        f"CREATE TABLE p (k {kind} utf8mb4_general_ci PRIMARY KEY)",
        f"CREATE TABLE m (k {kind} utf8mb4_general_ci PRIMARY KEY, CONSTRAINT up FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k {kind} utf8mb4_general_ci,"
        " CONSTRAINT c_up FOREIGN KEY (k) REFERENCES m (k) ON DELETE CASCADE)",
        "INSERT INTO p VALUES ('abc'), ('x')",
        "INSERT INTO m VALUES ('ABC'), ('X')",
        "INSERT INTO c VALUES (1, 'Abc'), (2, 'X')",
    )
    replica.step(
        "DELETE FROM p WHERE k = 'x'",
        "ALTER TABLE m DROP FOREIGN KEY up",
        f"ALTER TABLE p MODIFY k {kind} utf8mb4_bin NOT NULL",
        "DELETE FROM m",
        "INSERT INTO m VALUES ('abc')",
    )
    replica.step("ALTER TABLE p ADD v INT", "DELETE FROM p")


def test_another_collation_while_the_foreign_key_stays(replica: Replica) -> None:
    """MySQL allows it without checks. The statement changes nothing else, so the schema history passes over it."""
    kind = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE"
    replica.begin(
        f"CREATE TABLE p (k {kind} utf8mb4_general_ci PRIMARY KEY)",
        f"CREATE TABLE c (id INT PRIMARY KEY, k {kind} utf8mb4_general_ci, FOREIGN KEY (k) REFERENCES p (k) ON DELETE CASCADE)",
        "INSERT INTO p VALUES ('abc'), ('x')",
        "INSERT INTO c VALUES (1, 'ABC'), (2, 'X')",
    )
    replica.step("DELETE FROM p WHERE k = 'x'")
    refused = pytest.raises(OperationalError, match="used in a foreign key") if replica.book.server.flavour == "mariadb" else nullcontext()
    with refused:
        replica.book.run(
            "SET foreign_key_checks = 0",
            f"ALTER TABLE p MODIFY k {kind} utf8mb4_bin NOT NULL",
            f"ALTER TABLE c MODIFY k {kind} utf8mb4_bin",
        )
    replica.step("SET foreign_key_checks = 1", "DELETE FROM p WHERE k = 'abc'")


STATEMENTS = {
    "ALTER TABLE p MODIFY k VARCHAR(9) COLLATE utf8mb4_bin": True,
    "alter table `P` change `K` k2 varchar(20)": True,
    "ALTER TABLE p CONVERT TO CHARACTER SET latin1": True,
    "ALTER TABLE c DROP FOREIGN KEY up": True,
    "/* a */ RENAME TABLE p TO q": True,
    "RENAME TABLE p TO q, new_p TO p": True,
    "DROP TABLE IF EXISTS p": True,
    "DROP DATABASE shop": True,
    "CREATE OR REPLACE TABLE p (k VARCHAR(9) PRIMARY KEY)": True,
    "ALTER TABLE p RENAME TO q": True,
    "ALTER TABLE p ADD v INT": False,
    "ALTER TABLE p MODIFY v VARCHAR(20)": False,
    "ALTER TABLE c DROP COLUMN v": False,
    "DROP INDEX v ON p": False,
    "ALTER TABLE other MODIFY k VARCHAR(9)": False,
    "CREATE TABLE d (k VARCHAR(9) REFERENCES p (k))": False,
    "DROP TABLE other": False,
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_that_may_change_the_comparison_of_keys(statement: str) -> None:
    key = ForeignKey("up", ("k",), TableName("shop", "p"), ("k",), ReferentialAction.CASCADE)
    assert may_change_comparison(statement, Cascade(TableName("shop", "c"), key)) is STATEMENTS[statement]
