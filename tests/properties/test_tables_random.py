"""Whatever happens to tables while they are read, and wherever the process ends: the sink shows what the source's own SELECT shows.

HEADRACE_SEEDS=FIRST:END runs the seeds FIRST to END - 1, alternately with each policy. From seed 1000 on, statements come between the
position of a chunk and its SELECT, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.pipes.requests import ask_for_resync
from headrace.pipes.settings import SnapshotMode
from testkit.binlogs import open_logbook
from testkit.shown import assert_same
from testkit.tables_random import Explorer, SteeredPipe
from testkit.witness import sink_client

STEPS = 30
KEEP = ("drop_table=keep", "truncate_table=keep")
"""Rows are kept under other names; the tables themselves show the same."""
INSIDE = 1000


def histories() -> list[tuple[int, tuple[str, ...]]]:
    if seeds := os.environ.get("HEADRACE_SEEDS"):
        first, end = map(int, seeds.split(":"))
        return [(seed, KEEP if seed % 2 else ()) for seed in range(first, end)]
    if os.environ.get("HEADRACE_SOAK"):
        return [(seed, policy) for seed in range(24) for policy in ((), KEEP)]
    return [(0, ()), (6, ()), (10, ()), (0, KEEP), (413, KEEP)]


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("sink") / "ch") as running:
        yield running


@pytest.mark.parametrize(
    ("seed", "policy"), histories(), ids=lambda value: str(value) if isinstance(value, int) else "keep" if value else "apply"
)
def test_tables_that_change_while_they_are_read(
    server: PrivateServer, database: str, sink: EmbeddedServer, tmp_path: Path, seed: int, policy: tuple[str, ...]
) -> None:
    with open_logbook(server, database) as book, sink_client(sink.url) as client:
        explorer = Explorer(book, f"clickhouse://default@127.0.0.1:{sink.port}", tmp_path / "state", seed, policy, inside=seed >= INSIDE)
        try:
            explorer.run(STEPS)
            assert_same(client, book, sorted(name for (name,) in book.fetch("SHOW TABLES")))
        except BaseException:
            print("\n".join(explorer.told))
            raise
        # Each start of a pipe looks through all tables of the sink.
        client.command(f"DROP DATABASE IF EXISTS `{database}`")


@pytest.mark.parametrize("snapshot", [SnapshotMode.LOCK_FREE, SnapshotMode.CONSISTENT], ids=str)
@pytest.mark.parametrize("moment", ["before", "inside"])
@pytest.mark.parametrize("key", [" PRIMARY KEY", ""], ids=["keyed", "keyless"])
def test_a_swap_directly_before_a_table_is_read_again(
    server: PrivateServer, database: str, sink: EmbeddedServer, tmp_path: Path, key: str, moment: str, snapshot: SnapshotMode
) -> None:
    """The snapshot reads the rows of the other table, at the position where RENAME ended (`before`) or at an earlier one (`inside`)."""
    swaps = iter(("RENAME TABLE a TO tmp, c TO a, tmp TO c",))

    def swap() -> None:
        book.run(*islice(swaps, 1))

    with open_logbook(server, database) as book, sink_client(sink.url) as client:
        book.run(f"CREATE TABLE a (id INT{key}, v INT)", f"CREATE TABLE c (id INT{key}, v INT)")
        book.run("INSERT INTO a VALUES (1, 1), (2, 2)", "INSERT INTO c VALUES (7, 7)")
        url = f"clickhouse://default@127.0.0.1:{sink.port}"
        SteeredPipe(book, url, tmp_path / "state", between=lambda: None, snapshot=snapshot).open().catch_up()
        steps: dict[str, Any] = {"between": swap} if moment == "before" else {"between": lambda: None, "inside": swap}
        pipe = SteeredPipe(book, url, tmp_path / "state", snapshot=snapshot, **steps)
        pipe.open()
        ask_for_resync(pipe.directory, (f"{database}.a",))
        pipe.catch_up()
        assert next(swaps, None) is None
        assert_same(client, book, ["a", "c"])
        client.command(f"DROP DATABASE IF EXISTS `{database}`")
