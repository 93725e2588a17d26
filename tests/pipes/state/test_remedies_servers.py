"""The remedies that errors print are executed with the existing state and target; afterwards the sink has the source's rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.pipes.state.resync_requests import add_state_to_hint
from headrace.settings.settings_file import UserSettings
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.remedies import commands_of, execute

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_policies[mysql], test_whole_tables[mysql]")


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("SET SESSION sql_mode = ''")
    for name in ("t", "u"):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, d DATE)", f"INSERT INTO {name} VALUES (1, 10, NULL), (2, 20, NULL)")
    return book


class Runs:
    """Successive runs of one pipe."""

    def __init__(self, book: Logbook, clickhouse: EmbeddedServer, client: Client, state: Path) -> None:
        self.book, self.client, self.state, self._url = book, client, state, url_of(clickhouse)

    def pipe(self, **settings: Any) -> DrivenPipe:
        return DrivenPipe(self.book, self._url, self.state, **settings)

    def run(self, **settings: Any) -> None:
        self.pipe(**settings).open().catch_up()

    def halt(self, why: str, **settings: Any) -> DefiniteError:
        with pytest.raises(DefiniteError, match=why) as caught:
            self.run(**settings)
        return caught.value

    def give_up_claims(self) -> None:
        """The remedy of a second pipe's error, when the pipe of the former state is not used any more."""
        execute(self.halt("another pipe writes to the target", sink_name=self._url), self.state)

    def in_sink(self, *statements: str) -> None:
        for statement in statements:
            self.client.command(statement.replace("DB.", f"`{self.book.database}`."))

    def assert_same(self, *tables: str) -> None:
        assert_same(self.client, self.book, tables or ("t", "u"))


@pytest.fixture
def runs(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> Runs:
    return Runs(book, clickhouse, client, tmp_path / "state")


def test_leave_a_table_out(runs: Runs) -> None:
    runs.run()
    runs.book.run("INSERT INTO t VALUES (3, 30, '0000-00-00')", "INSERT INTO u VALUES (3, 30, NULL)")
    runs.halt("a date that does not exist")
    runs.run(exclude=(f"{runs.book.database}.t",))
    runs.assert_same("u")
    # When it is selected again, it gets a snapshot first.
    runs.book.run("UPDATE t SET d = NULL WHERE id = 3", "INSERT INTO u VALUES (4, 40, NULL)")
    runs.run()
    runs.assert_same()


def test_start_over(runs: Runs) -> None:
    runs.run()
    shutil.rmtree(runs.state)
    runs.in_sink("DROP TABLE DB.t", "DROP TABLE DB.u")
    runs.run()
    runs.assert_same()


@pytest.mark.parametrize("changed", ["nothing new in the log", "changes in the log"])
def test_a_new_state_with_empty_targets(runs: Runs, changed: str) -> None:
    runs.run()
    if changed == "changes in the log":
        runs.book.run("DELETE FROM t WHERE id = 1", "INSERT INTO u VALUES (9, 9, NULL)")
    runs.state = runs.state.with_name("other")
    runs.give_up_claims()
    if changed == "nothing new in the log":
        # The rows of the earlier state have the version of the log's end.
        runs.run()
        runs.assert_same()
        runs.state = runs.state.with_name("third")
        runs.give_up_claims()
    runs.in_sink("TRUNCATE TABLE DB.t", "TRUNCATE TABLE DB.u")
    runs.run()
    runs.assert_same()


@pytest.mark.parametrize("way", ["apply", "resync"])
def test_a_schema_change_that_is_set_to_halt(runs: Runs, way: str) -> None:
    runs.run(policy=("all=halt",))
    runs.book.run("ALTER TABLE t ADD COLUMN w INT DEFAULT 5", "INSERT INTO t VALUES (3, 30, NULL, 300)")
    error = runs.halt("add_column is set to halt", policy=("all=halt",))
    assert "--schema-changes add_column=apply" in error.hint
    if way == "apply":
        runs.run(policy=("all=halt", "add_column=apply"))
    else:
        execute(error, runs.state)
        runs.run(policy=("all=halt",))
    runs.assert_same()


def test_a_target_that_was_altered_by_someone_else(runs: Runs) -> None:
    runs.run()
    pipe = runs.pipe().open()
    runs.in_sink("ALTER TABLE DB.t DROP COLUMN v")
    runs.book.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (3, 30, NULL)")
    with pytest.raises(DefiniteError, match="it has no column v") as caught:
        pipe.catch_up()
    # The printed statement.
    statement = caught.value.hint.partition(";")[0]
    assert statement.startswith("ALTER TABLE ")
    runs.client.command(statement)
    runs.run()
    runs.assert_same()


def test_a_place_that_is_taken(runs: Runs) -> None:
    pipe = runs.pipe(policy=("drop_table=ignore",)).open()
    runs.in_sink("CREATE TABLE DB.elsewhere (x Int32) ENGINE = Memory")
    runs.book.run("RENAME TABLE t TO elsewhere")
    with pytest.raises(DefiniteError, match="there is another table of that name in the sink") as caught:
        pipe.catch_up()
    assert f"drop or rename {runs.book.database}.elsewhere in ClickHouse, then start again" in caught.value.hint
    runs.in_sink("RENAME TABLE DB.elsewhere TO DB.strangers")
    runs.run(policy=("drop_table=ignore",))
    runs.assert_same("elsewhere", "u")


def test_a_setting_that_needs_another_table(runs: Runs) -> None:
    runs.run()
    other = {"sink": {"engine": "versioned"}}
    error = runs.halt("would need another table", settings=other)
    assert "give it as it was, or start over: drop the tables in ClickHouse and use a new --state" in error.hint
    runs.run()
    runs.in_sink("DROP TABLE DB.t", "DROP TABLE DB.u")
    runs.state = runs.state.with_name("other")
    runs.run(settings=other, choices=UserSettings(other).sink)
    runs.assert_same()


def test_other_transforms(runs: Runs) -> None:
    tables = {f"{runs.book.database}.{name}": {"rename": {"v": "amount"}} for name in ("t", "u")}
    runs.run()
    error = runs.halt("were made with other transforms", settings={"transforms": tables})
    # One command for all tables.
    [command] = commands_of(error)
    assert {f"{runs.book.database}.t", f"{runs.book.database}.u"} <= set(command)
    execute(error, runs.state)
    runs.run(settings={"transforms": tables})
    for name in ("t", "u"):
        found = runs.client.query(f"SELECT id, amount FROM `{runs.book.database}`.{name} FINAL ORDER BY id").result_rows
        assert [tuple(row) for row in found] == [(1, 10), (2, 20)]


def test_commands_name_the_state_directory() -> None:
    state = Path("/srv/my state")
    quoted = "--state '/srv/my state'"
    assert add_state_to_hint("headrace resync shop.t", state) == f"headrace resync shop.t {quoted}"
    assert (
        add_state_to_hint("then: headrace resync shop.t, or start again", state) == f"then: headrace resync shop.t {quoted}, or start again"
    )
    for complete in (
        "headrace resync a.b c.d --state /x, then start",
        "headrace resync a.b --pipe shop",
        "headrace resync reads tables again",
    ):
        assert add_state_to_hint(complete, state) == complete
