"""A restart with other settings: the remedies that errors print work with the state and the target tables that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import ZeroDates
from testkit.oracles.binlogs import Logbook
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.remedies import execute

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_policies[mysql]")

HALT, NULL, EPOCH = ZeroDates.HALT, ZeroDates.NULL, ZeroDates.EPOCH
SHOWN = {NULL: None, EPOCH: "1970-01-01"}


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("SET SESSION sql_mode = ''")
    book.run("CREATE TABLE days (id INT PRIMARY KEY, d DATE NOT NULL, v INT)", "INSERT INTO days VALUES (1, '2024-02-29', 1)")
    return book


class Runs:
    """Successive runs of one pipe with one state and one target."""

    def __init__(self, book: Logbook, clickhouse: EmbeddedServer, client: Client, state: Path) -> None:
        self._book, self._url, self._client, self.state = book, url_of(clickhouse), client, state

    def run(self, **settings: Any) -> None:
        DrivenPipe(self._book, self._url, self.state, **settings).open().catch_up()

    def halt(self, why: str, **settings: Any) -> DefiniteError:
        with pytest.raises(DefiniteError, match=why) as caught:
            self.run(**settings)
        return caught.value

    def rows(self, columns: str = "id, toString(d)", table: str = "days") -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM `{self._book.database}`.`{table}` FINAL ORDER BY id"
        return [tuple(row) for row in self._client.query(sql).result_rows]


@pytest.fixture
def runs(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> Runs:
    return Runs(book, clickhouse, client, tmp_path / "state")


@pytest.mark.parametrize("chosen", [NULL, EPOCH])
@pytest.mark.parametrize("place", ["log", "snapshot"])
def test_a_pipe_halted_at_a_zero_date_resumes(book: Logbook, runs: Runs, place: str, chosen: ZeroDates) -> None:
    if place == "log":
        runs.run()
    book.run("INSERT INTO days VALUES (2, '0000-00-00', 2)")
    error = runs.halt("a date that does not exist")
    assert f"--zero-dates {chosen}" in error.hint
    runs.run(zero_dates=chosen)
    assert runs.rows() == [(1, "2024-02-29"), (2, SHOWN[chosen])]
    # The new setting applies from now on, also to later tables.
    book.run("CREATE TABLE later (id INT PRIMARY KEY, d DATE NOT NULL)", "INSERT INTO later VALUES (1, '0000-00-00')")
    book.run("UPDATE days SET d = '2024-00-10' WHERE id = 1")
    runs.run(zero_dates=chosen)
    assert runs.rows() == [(1, SHOWN[chosen]), (2, SHOWN[chosen])]
    assert runs.rows(table="later") == [(1, SHOWN[chosen])]


@pytest.mark.parametrize("place", ["log", "snapshot"])
def test_a_pipe_resumes_after_a_zero_date_is_corrected(book: Logbook, runs: Runs, place: str) -> None:
    if place == "log":
        runs.run()
    book.run("INSERT INTO days VALUES (2, '0000-00-00', 2)")
    error = runs.halt("a date that does not exist")
    book.run("UPDATE days SET d = '2024-03-01' WHERE id = 2")
    if place == "log":
        execute(error, runs.state)
    else:
        assert "correct the value in the source and start again" in error.hint
    runs.run()
    assert runs.rows() == [(1, "2024-02-29"), (2, "2024-03-01")]


@pytest.mark.parametrize(("was", "now"), [(NULL, EPOCH), (EPOCH, NULL), (EPOCH, HALT)])
def test_rows_that_hold_former_choices_are_read_again_by_the_printed_command(
    book: Logbook, runs: Runs, was: ZeroDates, now: ZeroDates
) -> None:
    book.run("INSERT INTO days VALUES (2, '0000-00-00', 2)", "CREATE TABLE plain (id INT PRIMARY KEY, v INT)")
    runs.run(zero_dates=was)
    if now is HALT:
        book.run("UPDATE days SET d = '2024-03-01' WHERE id = 2")
    error = runs.halt("another --zero-dates", zero_dates=now)
    assert "days" in error.hint
    assert "plain" not in error.hint
    execute(error, runs.state)
    runs.run(zero_dates=now)
    assert runs.rows() == [(1, "2024-02-29"), (2, SHOWN.get(now, "2024-03-01"))]


def test_other_columns_come_by_the_printed_command(book: Logbook, runs: Runs) -> None:
    name = f"{book.database}.days"
    runs.run(projection=Projection(exclude=(f"{name}.v",)))
    error = runs.halt("another --columns or --exclude-columns")
    execute(error, runs.state)
    book.run("INSERT INTO days VALUES (2, '2024-03-01', 2)")
    runs.run()
    assert runs.rows("id, toString(d), v") == [(1, "2024-02-29", 1), (2, "2024-03-01", 2)]
    error = runs.halt("another --columns or --exclude-columns", projection=Projection(exclude=(f"{name}.d",)))
    execute(error, runs.state)
    runs.run(projection=Projection(exclude=(f"{name}.d",)))
    assert runs.rows("id, v") == [(1, 1), (2, 2)]
    # A setting that does not change the tables is accepted.
    runs.run(projection=Projection(exclude=(f"{name}.d", f"{book.database}.elsewhere.x")))


@pytest.mark.parametrize("place", ["log", "snapshot"])
@pytest.mark.parametrize("read_as", [NULL, EPOCH])
def test_a_zero_date_in_a_key_is_named_and_not_the_log(book: Logbook, runs: Runs, read_as: ZeroDates, place: str) -> None:
    """Rows with the keys 0000-00-00 and 1970-01-01 would become one row."""
    book.run("CREATE TABLE keyed (d DATE, id INT, PRIMARY KEY (d, id))", "INSERT INTO keyed VALUES ('1970-01-01', 1)")
    if place == "log":
        runs.run(zero_dates=read_as)
    book.run("INSERT INTO keyed VALUES ('0000-00-00', 1)")
    errors = [runs.halt("column d of .*keyed holds a date that does not exist")] if place == "snapshot" else []
    errors.append(runs.halt("column d of .*keyed holds a date that does not exist .* key ", zero_dates=read_as))
    for error in errors:
        assert "mysqlbinlog" not in str(error)
        # No other reading of the date helps.
        assert "--zero-dates" not in error.hint
        assert "correct the value in the source" in error.hint
    book.run("UPDATE keyed SET d = '2024-03-01' WHERE d = '0000-00-00'")
    execute(errors[-1], runs.state)
    runs.run(zero_dates=read_as)
    assert runs.rows("toString(d), id", "keyed") == [("1970-01-01", 1), ("2024-03-01", 1)]
