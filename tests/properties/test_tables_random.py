"""Whatever happens to tables while they are read, and wherever the process ends: the sink shows what the source's own SELECT shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.binlogs import open_logbook
from testkit.shown import assert_same
from testkit.tables_random import Explorer
from testkit.witness import sink_client

STEPS = 30
KEEP = ("drop_table=keep", "truncate_table=keep")
"""Rows are kept under other names; the tables themselves show the same."""
HISTORIES = (
    [(seed, policy) for seed in range(24) for policy in ((), KEEP)]
    if os.environ.get("HEADRACE_SOAK")
    else [(0, ()), (1, ()), (2, ()), (10, ()), (25, ()), (0, KEEP)]
)


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("sink") / "ch") as running:
        yield running


@pytest.mark.parametrize(
    ("seed", "policy"), HISTORIES, ids=lambda value: str(value) if isinstance(value, int) else "keep" if value else "apply"
)
def test_tables_that_change_while_they_are_read(
    server: PrivateServer, database: str, sink: EmbeddedServer, tmp_path: Path, seed: int, policy: tuple[str, ...]
) -> None:
    with open_logbook(server, database) as book, sink_client(sink.url) as client:
        explorer = Explorer(book, f"clickhouse://default@127.0.0.1:{sink.port}", tmp_path / "state", seed, policy)
        try:
            explorer.run(STEPS)
            assert_same(client, book, sorted(name for (name,) in book.fetch("SHOW TABLES")))
        except BaseException:
            print("\n".join(explorer.told))
            raise
