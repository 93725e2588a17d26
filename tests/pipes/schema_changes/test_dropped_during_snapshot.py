"""A table that is dropped while its snapshot chunks are read, and created again: the sink ends with the source's rows.

The driven pipe places the DROP before any chunk, with every policy, engine and snapshot mode. The real command reads in parallel, is killed
after the DROP in one case, and its result is checked by `headrace verify` as well.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from testkit.generators.tables_random import SteeredPipe, before_chunk
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import Account
from testkit.servers.servers import FLAVOURS

pytestmark = [
    pytest.mark.scaled,
    pytest.mark.slow(
        "mysql",
        because=(
            "test_dropped_before_a_chunk and test_dropped_before_an_exact_snapshot on MariaDB; test_statements_while_tables_are_read[mysql]"
        ),
    ),
]

SAME = ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 100), (7, 7), (99, 99)")
OTHER = ("CREATE TABLE t (k VARCHAR(9), n INT, PRIMARY KEY (k, n))", "INSERT INTO t VALUES ('7', 7)")
KEYLESS = ("CREATE TABLE t (v INT, w VARCHAR(9))", "INSERT INTO t VALUES (1, 'x'), (1, 'x')")
CREATED = {"gone": (), "same": SAME, "other": OTHER, "keyless": KEYLESS}
POLICIES = {"apply": (), "keep": ("drop_table=keep",)}
SOAK = bool(os.environ.get("HEADRACE_SOAK"))
# The chunks of `stays` are read first: 5 to 8 are those of `t`, of which 8 is the last.
CASES = list(product((5, 6, 8), CREATED, POLICIES, ("at once", "streamed", "later")))
ENGINES = [case for case in product(("history", "collapsing", "versioned"), CREATED) if case != ("collapsing", "keyless")]


@pytest.fixture
def book(book: Logbook) -> Logbook:
    for name in ("t", "stays"):
        book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)")
        book.run(f"INSERT INTO {name} VALUES {', '.join(f'({n}, {n})' for n in range(10))}")
    return book


def check_tables(client: Client, book: Logbook, created: str) -> None:
    """Check that the sink has exactly the source's tables with the source's rows."""
    assert_same(client, book, ["stays", *(["t"] if CREATED[created] else [])])
    shown = client.query(f"SELECT engine FROM system.tables WHERE database = '{book.database}' AND name = 't'").result_rows
    # A history keeps old rows.
    assert bool(shown) == bool(CREATED[created]) or shown == [("MergeTree",)]


@pytest.mark.parametrize(("chunk", "created", "policy", "when"), CASES if SOAK else CASES[::11])
def test_dropped_before_a_chunk(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, chunk: int, created: str, policy: str, when: str
) -> None:
    def drop() -> None:
        book.run("DROP TABLE t", "UPDATE stays SET v = -v", *(CREATED[created] if when == "at once" else ()))
        if when == "streamed":
            pipe.stream_some(2)
            book.run(*CREATED[created])
            pipe.stream_some(2)

    url = url_of(clickhouse)
    pipe = SteeredPipe(book, url, tmp_path / "state", POLICIES[policy], chunk_rows=3, between=before_chunk(chunk, drop))
    pipe.open()
    pipe.catch_up()
    if when == "later":
        book.run(*CREATED[created])
        pipe.catch_up()
    check_tables(client, book, created)
    kept = f"SELECT count() FROM system.tables WHERE database = '{book.database}' AND name LIKE 't\\_dropped\\_%'"
    assert client.query(kept).result_rows[0][0] == (policy == "keep")


@pytest.mark.parametrize(("engine", "created"), ENGINES if SOAK else ENGINES[::5])
def test_dropped_before_an_exact_snapshot(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, engine: str, created: str
) -> None:
    """Engines that count rows read each table at one position, in one chunk."""

    def drop() -> None:
        book.run("DROP TABLE t", "UPDATE stays SET v = -v", *CREATED[created])

    url = url_of(clickhouse)
    choices = ClickHouseOptions(all_tables=(("engine", TargetEngine(engine)), ("view", True)))
    between = before_chunk(2, drop)
    pipe = SteeredPipe(book, url, tmp_path / "state", choices=choices, chunk_rows=3, between=between)
    pipe.open()
    pipe.catch_up()
    check_tables(client, book, created)


ROWS = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 300) SELECT i, i FROM n"


# One server in the normal run: the driven pipe is tested on both.
@pytest.mark.slow(because="test_dropped_before_a_chunk without Spark")
@pytest.mark.parametrize(
    ("flavour", "created"), list(product(FLAVOURS, ("same", "other"))) if SOAK else [("mysql", "other")], indirect=["flavour"]
)
@pytest.mark.timeout(600)
def test_dropped_while_the_command_reads(
    server: PrivateServer, database: str, replica_account: Account, tmp_path: Path, created: str
) -> None:
    """The command reads chunks in parallel and follows the log; in one case it is killed after the DROP."""
    sink = tmp_path / "sink"
    options = ("--chunk-rows", "10", "--schema-changes", "drop_table=keep") if created == "other" else ("--chunk-rows", "10")
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink}", tmp_path / "state", options)
    with open_logbook(server, database) as book:
        for name in ("t", "stays"):
            book.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name} {ROWS}", f"ANALYZE TABLE {name}")
        with pipeline.running() as run:
            run.until(lambda: 0 < pipeline.chunks_done() < pipeline.chunks_planned() / 2)
            book.run("DROP TABLE t", "UPDATE stays SET v = -v", *CREATED[created])
            if created == "same":
                run.until(lambda: "snapshot: complete" in run.output)
                assert run.terminate().code == 143, run.output
        done = pipeline.once()
        assert done.code == 0, done.output
        verified = pipeline.verify()
        assert verified.code == 0, verified.output
        with pipeline.sink_served(sink) as url, sink_client(url) as client:
            check_tables(client, book, created)
