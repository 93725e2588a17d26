"""`drop_table = keep` and `truncate_table = keep`: the sink loses no row, at any time of the statement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from headrace.pipes.state.resync_requests import request_resync
from testkit.generators.tables_random import SteeredPipe, before_chunk
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_whole_tables[mysql], test_policies[mysql]")

KEEP = ("drop_table=keep", "truncate_table=keep")
OTHER = "CREATE TABLE t (k VARCHAR(9), n INT, PRIMARY KEY (k, n))"


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(10))}")
    return book


class Pipes:
    """Runs of one pipe with chunks of three rows; a test may act before each chunk."""

    def __init__(self, book: Logbook, clickhouse: EmbeddedServer, client: Client, state: Path) -> None:
        self._book, self._url, self._client, self._state = book, url_of(clickhouse), client, state

    def open(self, between: Callable[[], None] = lambda: None) -> DrivenPipe:
        return SteeredPipe(self._book, self._url, self._state, KEEP, chunk_rows=3, between=between).open()

    def kept(self) -> dict[str, list[tuple[int, ...]]]:
        """The tables that were kept, with their rows."""
        listed = f"SELECT name FROM system.tables WHERE database = '{self._book.database}' AND name LIKE 't\\_%d\\_%' ORDER BY name"
        names = [name for (name,) in self._client.query(listed).result_rows]
        return {name: self._rows(name) for name in names}

    def _rows(self, name: str) -> list[tuple[int, ...]]:
        sql = f"SELECT id, v FROM `{self._book.database}`.`{name}` FINAL ORDER BY id"
        return [tuple(row) for row in self._client.query(sql).result_rows]


@pytest.fixture
def pipes(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> Pipes:
    return Pipes(book, clickhouse, client, tmp_path / "state")


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("made", [OTHER, "CREATE TABLE t (id INT PRIMARY KEY, v INT)"], ids=["other", "same"])
def test_a_table_that_is_dropped_during_its_snapshot(book: Logbook, pipes: Pipes, client: Client, chunk: int, made: str) -> None:
    pipe = pipes.open(before_chunk(chunk, lambda: book.run("DROP TABLE t")))
    pipe.catch_up()
    [(name, rows)] = pipes.kept().items()
    assert name.startswith("t_dropped_")
    assert rows == [(n, n) for n in range(len(rows))]
    assert len(rows) >= 3 * (chunk - 1) - 3
    book.run(made, "INSERT INTO t VALUES ('7', 7)")
    pipe.catch_up()
    assert_same(client, book, ["t"])
    assert pipes.kept() == {name: rows}


def test_a_table_that_is_dropped_while_it_is_read_again(book: Logbook, pipes: Pipes, client: Client) -> None:
    pipe = pipes.open(before_chunk(6, lambda: book.run("DROP TABLE t")))
    pipe.catch_up()
    request_resync(pipe.directory, (f"{book.database}.t",))
    pipe.catch_up()
    assert list(pipes.kept().values()) == [[(n, n) for n in range(10)]]
    book.run(OTHER, "INSERT INTO t VALUES ('7', 7)")
    pipe.catch_up()
    assert_same(client, book, ["t"])


def test_a_table_that_is_dropped_while_the_pipe_is_away_and_asked_to_read_it_again(book: Logbook, pipes: Pipes, client: Client) -> None:
    pipe = pipes.open()
    pipe.catch_up()
    book.run("DROP TABLE t")
    request_resync(pipe.directory, (f"{book.database}.*",))
    pipe = pipes.open()
    pipe.catch_up()
    assert list(pipes.kept().values()) == [[(n, n) for n in range(10)]]
    book.run(OTHER, "INSERT INTO t VALUES ('7', 7)")
    pipe.catch_up()
    assert_same(client, book, ["t"])


def test_repeated_drop_and_create(book: Logbook, pipes: Pipes, client: Client) -> None:
    pipe = pipes.open()
    pipe.catch_up()
    book.run("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO t VALUES (1, 2, 3)", "DROP TABLE t", OTHER)
    book.run("INSERT INTO t VALUES ('a', 1)")
    pipe.catch_up()
    assert_same(client, book, ["t"])
    assert list(pipes.kept().values()) == [[(n, n) for n in range(10)], [(1, 2)]]


def test_a_target_of_an_earlier_table_keeps_its_rows(book: Logbook, pipes: Pipes, client: Client) -> None:
    """Existing rows in the target, such as those of a table that was not replicated when it was dropped."""
    name = f"`{book.database}`.t"
    pipe = pipes.open()
    pipe.catch_up()
    client.command(f"CREATE TABLE {name}_before AS {name}")
    client.command(f"INSERT INTO {name}_before SELECT * FROM {name}")
    book.run("DROP TABLE t")
    pipe.catch_up()
    before = pipes.kept()
    client.command(f"RENAME TABLE {name}_before TO {name}")
    book.run(OTHER, "INSERT INTO t VALUES ('7', 7)")
    pipe.catch_up()
    assert_same(client, book, ["t"])
    assert len(pipes.kept()) == len(before) + 1
    assert all(rows == [(n, n) for n in range(10)] for rows in pipes.kept().values())


def test_a_table_that_is_emptied_during_its_snapshot(book: Logbook, pipes: Pipes, client: Client) -> None:
    pipe = pipes.open()
    pipe.catch_up()
    request_resync(pipe.directory, (f"{book.database}.t",))

    def empty() -> None:
        book.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (99, 99)")
        again.stream_some(2)

    again = SteeredPipe(book, pipes._url, pipes._state, KEEP, chunk_rows=3, between=before_chunk(3, empty))
    again.open()
    again.catch_up()
    assert_same(client, book, ["t"])
    assert list(pipes.kept().values()) == [[(n, n) for n in range(10)]]
