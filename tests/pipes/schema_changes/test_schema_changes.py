"""The sink follows the source's schema changes: after every kind of statement it equals the source's SELECT.

Each case has its own table, with rows of a snapshot, rows that were changed before the statement and rows that came after it. All cases run
through one pipe (driver, reader and sink as they are, without Spark), then once more after a restart.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from urllib3 import Timeout

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.dead_letter_retry import retry_dead_letters
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.server.client import connect, disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.schema_changes import Step
from testkit.generators.alterations import CASES
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import Crash, DrivenPipe, crash_at
from testkit.pipelines.embedded_access import url_of

SLOW_ON_MYSQL = pytest.mark.slow(
    "mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql], test_whole_tables[mysql], test_policies[mysql]"
)


def tables_of(book: Logbook) -> list[str]:
    return sorted(name for (name,) in book.fetch("SHOW TABLES"))


def columns_of(client: Client, database: str, table: str) -> list[str]:
    sql = f"SELECT name FROM system.columns WHERE database = '{database}' AND table = '{table}' AND name NOT LIKE '\\_%' ORDER BY position"
    return [name for (name,) in client.query(sql).result_rows]


def ledger(client: Client, book: Logbook) -> list[tuple[str, str, str]]:
    sql = "SELECT source_table, kind, outcome FROM headrace.schema_changes WHERE pipe = {pipe:String} ORDER BY version, source_table"
    found = client.query(sql, parameters={"pipe": book.database}).result_rows
    return [(table.partition(".")[2], kind, outcome) for table, kind, outcome in found]


@pytest.mark.timeout(900)
def test_columns_and_keys(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    for case in CASES:
        book.run(f"CREATE TABLE {case.name} ({case.columns})", f"INSERT INTO {case.name} VALUES ({'), ('.join(case.rows)})")
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
    # The target holds older images of some rows, and of a deleted row, when it is altered.
    for case in CASES:
        first = case.rows[0]
        book.run(f"DELETE FROM {case.name} WHERE id = 1 LIMIT 1", f"INSERT INTO {case.name} VALUES ({first})")
    book.run("INSERT INTO narrower VALUES (9, 5000000000, NULL), (8, 1, NULL)", "DELETE FROM narrower WHERE id = 9")
    book.run("UPDATE narrower SET d = 4 WHERE id = 8")
    pipe.catch_up()
    for case in CASES:
        if case.sql_mode:
            book.run(f"SET SESSION sql_mode = '{case.sql_mode}'")
        book.run(f"ALTER TABLE {case.name} {case.clauses}", "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
        if case.after:
            book.run(f"INSERT INTO {case.name} VALUES ({'), ('.join(case.after)})")
    pipe.catch_up()
    names = [case.name for case in CASES]
    assert_same(client, book, names)
    outcomes = {table: outcome for table, _, outcome in ledger(client, book)}
    assert outcomes == {case.name: case.outcome for case in CASES if case.outcome}
    wrong = {
        name for name in names if columns_of(client, book.database, name) != [row[0] for row in book.fetch(f"SHOW COLUMNS FROM {name}")]
    }
    assert not wrong, "columns come in the source's order"
    assert client.query(
        f"SELECT comment FROM system.columns WHERE database = '{book.database}' AND table = 'commented' AND name = 'c'"
    ).result_rows == [("it's \\ new",)]

    # Another run continues from the state; rows from before the alterations are changed and deleted.
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
    for case in CASES:
        [first, *_] = book.fetch(f"SHOW COLUMNS FROM {case.name}")
        book.run(
            f"UPDATE IGNORE {case.name} SET `{first[0]}` = `{first[0]}` + 10 LIMIT 1",
            f"DELETE FROM {case.name} ORDER BY `{first[0]}` DESC LIMIT 1",
        )
    pipe.catch_up()
    assert_same(client, book, names)


@pytest.mark.timeout(900)
def test_whole_tables(book: Logbook, server: PrivateServer, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    mariadb = server.flavour == "mariadb"
    for number, name in enumerate(("a", "b", "c", "d", "emptied", "gone", "goes", "duplicated")):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, {name}_c INT)", f"INSERT INTO {name} VALUES (1, {number}), (2, 20)")
    book.run("CREATE TABLE bare (x INT)", "INSERT INTO bare VALUES (1), (1)")
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", exclude=(f"{book.database}.out*",)).open()
    book.run(
        "INSERT INTO a VALUES (3, 3)",
        "RENAME TABLE a TO x, b TO a, x TO b",
        "INSERT INTO a VALUES (4, 4)",
        "UPDATE b SET a_c = 9 WHERE id = 1",
        "RENAME TABLE a TO x, b TO a, c TO b, x TO c",
        "DELETE FROM b WHERE id = 1",
        "ALTER TABLE d ADD COLUMN e INT DEFAULT 1, RENAME TO moved",
        "INSERT INTO moved VALUES (7, 7, 7)",
        "RENAME TABLE bare TO barer",
        "INSERT INTO barer VALUES (1)",
        "TRUNCATE TABLE emptied",
        "INSERT INTO emptied VALUES (5, 5)",
        "DROP TABLE gone",
        "CREATE TABLE gone (other VARCHAR(9) PRIMARY KEY)",
        "INSERT INTO gone VALUES ('new')",
        "DROP TABLE goes",
        "CREATE TABLE made LIKE emptied",
        "INSERT INTO made SELECT * FROM emptied",
        "CREATE TABLE outside (id INT PRIMARY KEY)",
        "INSERT INTO outside VALUES (1), (2)",
        "RENAME TABLE outside TO inside",
        "INSERT INTO inside VALUES (3)",
        "RENAME TABLE made TO out_of_it",
        "ALTER TABLE moved DROP COLUMN e",
        *(["CREATE OR REPLACE TABLE emptied (k CHAR(3) PRIMARY KEY)", "INSERT INTO emptied VALUES ('abc')"] if mariadb else []),
        *(["ALTER IGNORE TABLE duplicated DROP PRIMARY KEY, ADD UNIQUE (duplicated_c)"] if mariadb else []),
    )
    book.run("INSERT INTO duplicated VALUES (9, 99)")
    pipe.catch_up()
    expected = [name for name in tables_of(book) if not name.startswith("out")]
    assert_same(client, book, expected)
    there = {name for (name,) in client.query(f"SHOW TABLES FROM `{book.database}`").result_rows}
    assert there - {f"{name}_current" for name in expected} == set(expected)
    outcomes = Counter(outcome for _, _, outcome in ledger(client, book))
    assert outcomes["read again"] == (2 if mariadb else 1)


def test_policies(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(9))", "INSERT INTO t VALUES (1, 1, 'one')")
    book.run("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (1), (2)", "CREATE TABLE v LIKE u", "INSERT INTO v VALUES (1)")
    state = tmp_path / "state"
    ignoring = (
        "add_column=ignore",
        "drop_column=ignore",
        "modify_column=ignore",
        "create_table=ignore",
        "drop_table=keep",
        "truncate_table=keep",
    )
    pipe = DrivenPipe(book, url_of(clickhouse), state, ignoring).open()
    book.run(
        "ALTER TABLE t ADD COLUMN n INT DEFAULT 7",
        "INSERT INTO t VALUES (2, 2, 'two', 2)",
        "ALTER TABLE t DROP COLUMN a, MODIFY b VARCHAR(4)",
        "INSERT INTO t VALUES (3, 'thre', 3)",
        "UPDATE t SET b = 'neu' WHERE id = 1",
        "CREATE TABLE ignored (id INT PRIMARY KEY)",
        "INSERT INTO ignored VALUES (1)",
        "TRUNCATE TABLE u",
        "INSERT INTO u VALUES (3)",
        "DROP TABLE v",
    )
    pipe.catch_up()
    database = book.database
    rows = sorted(client.query(f"SELECT id, a, b FROM `{database}`.t FINAL").result_rows)
    assert rows == [(1, 0, "neu"), (2, 2, "two"), (3, 0, "thre")], "the dropped column stays, and is filled by the table itself"
    assert columns_of(client, database, "t") == ["id", "a", "b"]
    there = {name for (name,) in client.query(f"SHOW TABLES FROM `{database}`").result_rows}
    [truncated] = [name for name in there if name.startswith("u_truncated_")]
    [dropped] = [name for name in there if name.startswith("v_dropped_")]
    assert there == {"t", "u", truncated, dropped}
    assert client.query(f"SELECT id FROM `{database}`.u FINAL").result_rows == [(3,)]
    assert client.query(f"SELECT id FROM `{database}`.`{truncated}` FINAL ORDER BY id").result_rows == [(1,), (2,)]
    assert client.query(f"SELECT count() FROM `{database}`.`{dropped}` FINAL").result_rows == [(1,)]
    assert {outcome for _, _, outcome in ledger(client, book)} == {"ignored", "kept"}

    # After a restart the same column is excluded. With another policy the next change is applied, and the hidden column stays hidden.
    pipe = DrivenPipe(book, url_of(clickhouse), state, ("all=apply",)).open()
    book.run("INSERT INTO t VALUES (4, 'four', 4)", "INSERT INTO ignored VALUES (2)", "ALTER TABLE t ADD COLUMN m INT NOT NULL DEFAULT 8")
    book.run("INSERT INTO t VALUES (5, 'five', 5, 5)")
    pipe.catch_up()
    assert columns_of(client, database, "t") == ["id", "a", "b", "m"]
    assert dict(client.query(f"SELECT id, m FROM `{database}`.t FINAL").result_rows) == {1: 8, 2: 8, 3: 8, 4: 8, 5: 5}

    halting = DrivenPipe(book, url_of(clickhouse), state, ("all=halt",)).open()
    book.run("ALTER TABLE t ADD COLUMN o INT")
    with pytest.raises(DefiniteError, match="add_column is set to halt"):
        halting.catch_up()
    DrivenPipe(book, url_of(clickhouse), state).open().catch_up()
    assert columns_of(client, database, "t") == ["id", "a", "b", "m", "o"]


def test_existing_tables(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    database = book.database
    client.command(f"CREATE DATABASE `{database}`")
    engine = "ENGINE = ReplacingMergeTree(ver, del) ORDER BY id"
    client.command(
        f"CREATE TABLE `{database}`.own (id Int64, a Int64, b String, ver UInt64, del UInt8, extra String DEFAULT 'mine') {engine}"
    )
    book.run("CREATE TABLE own (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(20) NOT NULL)", "INSERT INTO own VALUES (1, 1, 'x')")
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
    book.run(
        "ALTER TABLE own ADD COLUMN c INT NOT NULL DEFAULT 4, RENAME COLUMN b TO bb, MODIFY a BIGINT NOT NULL",
        "INSERT INTO own VALUES (2, 2, 'y', 2)",
        "ALTER TABLE own DROP COLUMN bb",
    )
    pipe.catch_up()
    assert sorted(client.query(f"SELECT id, a, c, extra FROM `{database}`.own FINAL").result_rows) == [(1, 1, 4, "mine"), (2, 2, 2, "mine")]
    book.run("ALTER TABLE own DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)")
    with pytest.raises(DefiniteError, match="was not made by Headrace"):
        pipe.catch_up()
    assert client.query(f"SELECT count() FROM `{database}`.own FINAL").result_rows == [(2,)]
    book.run("DROP TABLE own")


def test_statements_while_tables_are_read(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    """Rows that a snapshot reads after a statement with the definition from before it are read again, not altered twice."""
    for name in ("crossed", "added", "swapped", "other", "emptied", "again", "lost", "steady"):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b INT)", f"INSERT INTO {name} VALUES (1, 1, 10), (2, 2, 20)")
    book.run("UPDATE other SET a = 7")

    def meanwhile() -> None:
        book.run(
            "ALTER TABLE crossed RENAME COLUMN a TO b, RENAME COLUMN b TO a",
            "ALTER TABLE added ADD COLUMN c INT DEFAULT 3",
            "UPDATE added SET c = 4 WHERE id = 1",
            "RENAME TABLE swapped TO x, other TO swapped, x TO other",
            "TRUNCATE TABLE emptied",
            "INSERT INTO emptied VALUES (3, 3, 3)",
            "DROP TABLE again",
            "CREATE TABLE again (id INT PRIMARY KEY, a INT, b INT)",
            "INSERT INTO again VALUES (4, 4, 4)",
            "ALTER TABLE lost DROP COLUMN a",
        )

    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open(meanwhile)
    book.run("UPDATE crossed SET a = 5 WHERE id = 2", "DELETE FROM lost WHERE id = 1", "UPDATE steady SET a = 9")
    pipe.catch_up()
    assert_same(client, book, tables_of(book))


@SLOW_ON_MYSQL
def test_tables_that_are_gone_when_they_are_to_be_read_again(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """A pipe can continue without the table despite a hidden column or a target that was not altered."""
    for name in ("steady", "hiding", "keyed", "taken"):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, c VARCHAR(9))", f"INSERT INTO {name} VALUES (1, '17')")
    state = tmp_path / "state"
    pipe = DrivenPipe(book, url_of(clickhouse), state, ("add_column=ignore",)).open()
    book.run("ALTER TABLE hiding ADD COLUMN d INT")
    pipe.catch_up()
    book.run("ALTER TABLE keyed MODIFY c INT NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)")
    pipe._stream()
    assert [name.table for name in pipe.state.awaiting_resync] == ["keyed"]
    book.run("DROP TABLE keyed", "DROP TABLE hiding", "DROP TABLE taken")
    request_resync(pipe.directory, (f"{book.database}.hiding", f"{book.database}.taken"))
    pipe = DrivenPipe(book, url_of(clickhouse), state, ("add_column=ignore",)).open()
    book.run("INSERT INTO steady VALUES (2, 'x')")
    pipe.catch_up()
    assert_same(client, book, ["steady"])
    assert client.query(f"SELECT count() FROM `{book.database}`.hiding FINAL").result_rows == [(0,)]
    assert (not pipe.state.awaiting_resync, [name.table for name in pipe.state.tables]) == (True, ["steady"])
    # Their targets stayed; later tables of these names, with other keys, get new targets.
    for name in ("hiding", "keyed"):
        book.run(f"CREATE TABLE {name} (c VARCHAR(9), n INT, PRIMARY KEY (c, n))", f"INSERT INTO {name} VALUES ('a', 1), ('a', 2)")
    book.run("RENAME TABLE steady TO taken", "INSERT INTO taken VALUES (3, 'y')")
    pipe.catch_up()
    book.run("DELETE FROM keyed WHERE n = 1", "INSERT INTO hiding VALUES ('b', 3)", "DELETE FROM taken WHERE id = 1")
    pipe.catch_up()
    assert_same(client, book, ["taken", "hiding", "keyed"])


@SLOW_ON_MYSQL
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (("RENAME TABLE t TO old", "CREATE TABLE t LIKE old"), "its table is {}.old since"),
        (("RENAME TABLE t TO old, other TO t",), "its table is {}.old since"),
        (("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (d, id)",), "headrace resync {}.t"),
        (("ALTER TABLE t MODIFY id BIGINT",), "headrace resync {}.t"),
        (("ALTER TABLE t RENAME COLUMN c TO d, RENAME COLUMN d TO c",), "headrace resync {}.t"),
        (("TRUNCATE TABLE t",), ""),
        (("DROP TABLE t", "CREATE TABLE t LIKE other"), ""),
    ],
)
def test_rows_that_wait_are_not_written_to_another_table(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, statements: tuple[str, ...], reason: str
) -> None:
    """A row that was refused before its table was renamed, rebuilt or altered is not written without a check."""
    database = book.database
    for name in ("t", "other"):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, c INT NOT NULL, d INT NOT NULL)", f"INSERT INTO {name} VALUES (1, 1, 1)")
    choices = ClickHouseOptions(all_tables=(("on_refused_row", OnRefusedRow.DEAD_LETTER),))
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=choices).open()
    client.command(f"ALTER TABLE `{database}`.t ADD CONSTRAINT small CHECK c < 100")
    book.run("UPDATE t SET c = 500")
    pipe.catch_up()
    client.command(f"ALTER TABLE `{database}`.t DROP CONSTRAINT small")
    book.run(*statements)
    pipe.catch_up()
    before = client.query(f"SELECT * FROM `{database}`.t FINAL ORDER BY id").result_rows
    outcomes = list(retry_dead_letters(pipe.sink, pipe=database))
    assert [one.written for one in outcomes] == [False] * bool(reason)
    assert all(reason.format(database) in one.reason for one in outcomes)
    assert client.query(f"SELECT * FROM `{database}`.t FINAL ORDER BY id").result_rows == before
    # A table that is read again is correct afterwards, and no request is pending.
    request_resync(pipe.directory, (f"{database}.*",))
    pipe.catch_up()
    assert_same(client, book, tables_of(book))
    assert list(retry_dead_letters(pipe.sink, pipe=database)) == []


@SLOW_ON_MYSQL
@pytest.mark.parametrize("engine", ["replacing", "history"])
def test_rows_that_are_kept_outlive_reading_again(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, engine: str
) -> None:
    """A table that keeps deleted rows keeps them when it is read again."""
    for name, key in (("t", " PRIMARY KEY"), ("bare", "")):
        book.run(f"CREATE TABLE {name} (id INT{key}, a INT)", f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    choices = ClickHouseOptions(all_tables=(("engine", engine), ("deletes", "ignore"), ("view", True)))
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=choices).open()
    book.run("DELETE FROM t WHERE id = 1", "UPDATE t SET a = 3")
    pipe.catch_up()
    request_resync(pipe.directory, (f"{book.database}.*",))
    pipe.catch_up()
    assert sorted(client.query(f"SELECT id, a FROM `{book.database}`.t_current").result_rows) == [(1, 1), (2, 3)]
    assert sorted(client.query(f"SELECT id, a FROM `{book.database}`.bare_current").result_rows) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("statement", ["CREATE TABLE later (id INT PRIMARY KEY, a INT)", "RENAME TABLE outside TO later"])
def test_a_table_that_comes_later_does_not_get_another_tables_target(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, statement: str
) -> None:
    for name in ("t", "outside"):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT)", f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    choices = ClickHouseOptions(tables=((f"{book.database}.later", (("target", "t"),)),))
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=choices, exclude=(f"{book.database}.outside",)).open()
    book.run(statement, "INSERT INTO later VALUES (3, 3)")
    with pytest.raises(DefiniteError, match="would both be written to"):
        pipe.catch_up()
    assert_same(client, book, ["t"])


def test_what_was_begun_is_finished_when_the_sink_gets_another_host(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO t VALUES (1, 1, 10)")
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", sink_name="clickhouse://default@one:8123").open()
    book.run("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    with pytest.raises(Crash), crash_at([(ClickHouseSchemaApplier, "run_step")], 0, after=True):
        pipe.catch_up()
    assert pipe.state.intent is not None
    again = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", sink_name="clickhouse://default@one:8123,two:8123").open()
    assert again.state.intent is None
    again.catch_up()
    assert_same(client, book, ["t"])


@pytest.mark.slow(
    "after",
    because=(
        "test_a_table_is_to_be_read_again_after_a_crash_while_it_was_renamed before the crash; test_a_crash_at_any_point_recovers_by_itself"
    ),
)
@SLOW_ON_MYSQL
@pytest.mark.parametrize("later", [(), ("DROP TABLE b",), ("RENAME TABLE b TO c",), ("ALTER TABLE b ADD COLUMN x INT",)], ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_table_is_to_be_read_again_after_a_crash_while_it_was_renamed(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, after: bool, later: tuple[str, ...]
) -> None:
    """The restart finishes the RENAME before it reads the table again: no rows stay under the old name."""
    book.run("CREATE TABLE c (id INT PRIMARY KEY, v INT)", "INSERT INTO c VALUES (1, 10)")
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
    book.run("RENAME TABLE c TO b", "INSERT INTO b VALUES (2, 20)", *later)
    with pytest.raises(Crash), crash_at([(ClickHouseSchemaApplier, "run_step")], 0, after=after):
        pipe.catch_up()
    request_resync(pipe.directory, (f"{book.database}.b",))
    DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open().catch_up()
    assert_same(client, book, tables_of(book))
    targets = {name for (name,) in client.query(f"SHOW TABLES FROM `{book.database}`").result_rows}
    for name in targets - set(tables_of(book)):
        assert client.query(f"SELECT * FROM `{book.database}`.{name} FINAL").result_rows == []


def test_a_step_may_take_longer_than_an_answer_is_waited_for(clickhouse: EmbeddedServer) -> None:
    scope = ClickHouseSink.from_url(url_of(clickhouse)).scope
    connect(scope.target).client.timeout = Timeout(connect=5, read=0.3)  # type: ignore[attr-defined]
    try:
        ClickHouseSchemaApplier(scope).run_step(Step(("SELECT sleep(1.5)",)))
    finally:
        disconnect(scope.target)


COUNTING = ("history", "collapsing", "versioned")


@SLOW_ON_MYSQL
@pytest.mark.parametrize("engine", COUNTING)
def test_engines_that_count(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, engine: str) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9))", "INSERT INTO t VALUES (1, 1, 'x'), (2, NULL, 'y   ')")
    choices = ClickHouseOptions(all_tables=(("engine", engine), ("view", True)))
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=choices).open()
    book.run(
        "UPDATE t SET a = 3 WHERE id = 2",
        "ALTER TABLE t ADD COLUMN c DECIMAL(9,2) NOT NULL DEFAULT 1.5",
        "UPDATE t SET c = 2 WHERE id = 1",
        "ALTER TABLE t MODIFY a BIGINT, RENAME COLUMN b TO d",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t VALUES (3, 5, 'z', 3)",
        "ALTER TABLE t DROP COLUMN a",
        "UPDATE t SET d = 'w' WHERE id = 1",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)",
        "UPDATE t SET c = 9 WHERE id = 3",
    )
    pipe.catch_up()
    assert_same(client, book, ["t"])
    assert {outcome for _, _, outcome in ledger(client, book)} <= {"applied"}


# -- crashes

STATEMENTS = (
    "UPDATE t SET a = a + 1",
    "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a, ADD COLUMN c INT NOT NULL DEFAULT 3",
    "INSERT INTO t VALUES (7, 7, 7, 7)",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)",
    "INSERT INTO t VALUES (8, 8, 8, 8)",
    "RENAME TABLE t TO x, u TO t, x TO u",
    "INSERT INTO t VALUES (9, 9)",
    "ALTER TABLE t MODIFY v VARCHAR(20)",
    "INSERT INTO t VALUES (10, 'ten')",
    "TRUNCATE TABLE u",
    "INSERT INTO u VALUES (1, 1, 1, 1)",
    "DELETE FROM w",
    "DROP TABLE w",
    "CREATE TABLE w (k INT PRIMARY KEY)",
    "INSERT INTO w VALUES (1)",
    "RENAME TABLE w TO z",
    "INSERT INTO z VALUES (2)",
)
POINTS = (
    (ClickHouseSchemaApplier, "run_step"),
    (ClickHouseSchemaApplier, "record"),
    (StateDirectory, "save"),
    (IntentExecutor, "record_done"),
    (DrivenPipe, "_commit"),
)


@SLOW_ON_MYSQL
@pytest.mark.timeout(600)
def test_a_crash_at_any_point_recovers_by_itself(
    book: Logbook, server: PrivateServer, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """A crash before and after every step, save, ledger row and commit: the same rows, one ledger row for each change."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO t VALUES (1, 1, 10), (2, 2, 20)")
    book.run(
        "CREATE TABLE u (id INT PRIMARY KEY, v INT)",
        "INSERT INTO u VALUES (1, 5)",
        "CREATE TABLE w (id INT PRIMARY KEY)",
        "INSERT INTO w VALUES (1)",
    )
    state = tmp_path / "state"
    DrivenPipe(book, url_of(clickhouse), state).open()
    book.run(*STATEMENTS)
    # Each run crashes some points later than the last; completed steps are not repeated.
    strides, after, crashed = cycle((0, 3, 1, 6, 2, 9)), server.flavour == "mysql", 0
    while True:
        try:
            with crash_at(POINTS, next(strides), after=after):
                DrivenPipe(book, url_of(clickhouse), state).open().catch_up()
            break
        except Crash:
            crashed += 1
    assert crashed > 12, crashed
    assert_same(client, book, ["t", "u", "z"])
    assert {name for (name,) in client.query(f"SHOW TABLES FROM `{book.database}`").result_rows} == {"t", "u", "z"}
    entries = ledger(client, book)
    assert len(entries) == len(
        set(client.query(f"SELECT version, source_table FROM headrace.schema_changes WHERE pipe = '{book.database}'").result_rows)
    )
    # A run that starts when `z` exists sees a new table: `w` is no longer in its log.
    assert Counter(table for table, _, _ in entries) == {"t": 4, "u": 2, "w": 3}
