"""Random statements while tables are read, and random crashes: the sink equals the source's SELECT.

HEADRACE_SEEDS=FIRST:END runs the seeds FIRST to END - 1, alternately with each policy. From seed 1000 on, statements come between the
position of a chunk and its SELECT, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.pipes.state.resync_requests import request_resync
from headrace.settings.pipe_keys import SnapshotMode
from testkit.generators.tables_random import Explorer, SteeredPipe
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.embedded_access import url_of

pytestmark = [
    pytest.mark.scaled,
    pytest.mark.slow("mysql", because="the test itself on MariaDB; test_whole_tables[mysql], test_statements_while_tables_are_read[mysql]"),
]

STEPS = 30
KEEP = ("drop_table=keep", "truncate_table=keep")
"""Rows are kept under other names; the tables themselves show the same."""
INSIDE = 1000
STATEMENTS = {
    "swap": ("RENAME TABLE a TO tmp, c TO a, tmp TO c",),
    "truncate": ("TRUNCATE TABLE a",),
    "alter": ("ALTER TABLE a ADD COLUMN x INT DEFAULT 7",),
    "rebuild": ("ALTER TABLE a COMMENT 'other', ENGINE = InnoDB",),
    "recreate": ("DROP TABLE a", "CREATE TABLE a (id INT{key}, v INT)", "INSERT INTO a VALUES (3, 3)"),
}


def histories() -> list[Any]:
    if seeds := os.environ.get("HEADRACE_SEEDS"):
        first, end = map(int, seeds.split(":"))
        return [(seed, KEEP if seed % 2 else ()) for seed in range(first, end)]
    if os.environ.get("HEADRACE_SOAK"):
        return [(seed, policy) for seed in range(24) for policy in ((), KEEP)]
    slow = pytest.mark.slow(because="test_tables_that_change_while_they_are_read has a seed for each policy")
    return [(10, ()), (413, KEEP), *(pytest.param(*history, marks=slow) for history in ((0, ()), (6, ()), (0, KEEP)))]


@pytest.mark.parametrize(
    ("seed", "policy"), histories(), ids=lambda value: str(value) if isinstance(value, int) else "keep" if value else "apply"
)
def test_tables_that_change_while_they_are_read(
    server: PrivateServer, database: str, clickhouse: EmbeddedServer, tmp_path: Path, seed: int, policy: tuple[str, ...]
) -> None:
    with open_logbook(server, database) as book, sink_client(clickhouse.url) as client:
        explorer = Explorer(book, url_of(clickhouse), tmp_path / "state", seed, policy, inside=seed >= INSIDE)
        try:
            explorer.run(STEPS)
            assert_same(client, book, sorted(name for (name,) in book.fetch("SHOW TABLES")))
        except BaseException:
            print("\n".join(explorer.actions))
            raise
        # Each start of a pipe lists all tables of the server.
        client.command(f"DROP DATABASE IF EXISTS `{database}`")


@pytest.mark.slow("keyless", because="the test itself with keys; test_tables_that_change_while_they_are_read has tables without keys")
@pytest.mark.slow("consistent", because="the test itself with lock-free snapshots; test_dropped_before_an_exact_snapshot")
@pytest.mark.parametrize("snapshot", [SnapshotMode.LOCK_FREE, SnapshotMode.CONSISTENT], ids=str)
@pytest.mark.parametrize("key", [" PRIMARY KEY", ""], ids=["keyed", "keyless"])
@pytest.mark.parametrize(("what", "moment"), [("swap", "before"), *((what, "inside") for what in STATEMENTS)])
def test_a_statement_directly_before_a_table_is_read_again(
    server: PrivateServer,
    database: str,
    clickhouse: EmbeddedServer,
    tmp_path: Path,
    what: str,
    key: str,
    moment: str,
    snapshot: SnapshotMode,
) -> None:
    """The snapshot reads the table after the statement, at the position of the statement (`before`) or at an earlier one (`inside`)."""
    statements = [statement.format(key=key) for statement in STATEMENTS[what]]

    def execute() -> None:
        book.run(*statements)
        statements.clear()

    with open_logbook(server, database) as book, sink_client(clickhouse.url) as client:
        book.run(f"CREATE TABLE a (id INT{key}, v INT)", f"CREATE TABLE c (id INT{key}, v INT)")
        book.run("INSERT INTO a VALUES (1, 1), (2, 2)", "INSERT INTO c VALUES (7, 7)")
        url = url_of(clickhouse)
        SteeredPipe(book, url, tmp_path / "state", between=lambda: None, snapshot=snapshot).open().catch_up()
        steps: dict[str, Any] = {"between": execute} if moment == "before" else {"between": lambda: None, "inside": execute}
        pipe = SteeredPipe(book, url, tmp_path / "state", snapshot=snapshot, **steps)
        pipe.open()
        request_resync(pipe.directory, (f"{database}.a",))
        pipe.catch_up()
        assert not statements
        book.run("INSERT INTO a (id) VALUES (21)", "UPDATE c SET v = 8")
        pipe.catch_up()
        assert_same(client, book, ["a", "c"])
        client.command(f"DROP DATABASE IF EXISTS `{database}`")


@pytest.mark.slow("keep", because="the test itself with the policy apply; test_tables_that_change_while_they_are_read[mariadb-413-keep]")
@pytest.mark.parametrize("policy", [(), KEEP], ids=["apply", "keep"])
@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE b", "CREATE TABLE b (id INT PRIMARY KEY, v INT, s VARCHAR(9))"),
        ("DROP TABLE b", "RENAME TABLE c TO b"),
        ("DROP TABLE b", "CREATE TABLE b (id INT PRIMARY KEY, v INT)", "RENAME TABLE b TO d, c TO b"),
    ],
    ids=["create", "rename", "swap"],
)
def test_another_table_gets_the_name_before_a_chunk_is_read(
    server: PrivateServer, database: str, clickhouse: EmbeddedServer, tmp_path: Path, statements: tuple[str, ...], policy: tuple[str, ...]
) -> None:
    """The stream follows the statements while the chunk of the former table waits for its turn. That chunk knows no column `s`."""
    left: list[str] = []

    def execute() -> None:
        if left:
            book.run(*left, "INSERT INTO b VALUES (1, 1, 'x'), (2, 2, 'y')")
            left.clear()
            pipe.stream_some(9)

    with open_logbook(server, database) as book, sink_client(clickhouse.url) as client:
        book.run("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY, v INT)")
        book.run("CREATE TABLE c (id INT PRIMARY KEY, v INT, s VARCHAR(9))", "INSERT INTO a VALUES (1)", "INSERT INTO c VALUES (9, 9, 'z')")
        pipe = SteeredPipe(book, url_of(clickhouse), tmp_path / "state", policy, between=execute)
        pipe.open().catch_up()
        left.extend(statements)
        request_resync(pipe.directory, (f"{database}.a", f"{database}.b"))
        pipe.catch_up()
        assert not left
        assert_same(client, book, sorted(name for (name,) in book.fetch("SHOW TABLES")))
        client.command(f"DROP DATABASE IF EXISTS `{database}`")
