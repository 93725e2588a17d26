"""Dozens of ALTER statements, between changes of rows, while the pipe is far behind: 0 differences when it has caught up.

The normal run has 50,000 row changes and drives the pipe without Spark. With HEADRACE_SOAK=1 (`make soak-suites`) the real command is a
million row changes behind, and the test prints time and memory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.generators.many_alterations import TABLES, alter_and_change, create_tables
from testkit.oracles.binlogs import Logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline, resident_bytes
from testkit.servers.accounts import Account

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
ROWS = 25_000 if SOAK else 1_250
CHANGES = 1_000_000 if SOAK else 50_000
ALTERS = 36


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run(*create_tables(ROWS))
    return book


def fall_behind(book: Logbook) -> tuple[int, int]:
    """Run all statements; return how many rows and how many definitions they changed."""
    changes = definitions = 0
    with book.connection.cursor() as cursor:
        for statement, defines in alter_and_change(ROWS):
            rows = cursor.execute(statement)
            definitions += defines
            changes += 0 if defines else rows
    assert (definitions >= ALTERS, changes >= CHANGES) == (True, True), (definitions, changes)
    return changes, definitions


@pytest.mark.soak("mysql", because="test_schema_changes is on both")
def test_alters_far_behind(book: Logbook, tmp_path: Path) -> None:
    if SOAK:
        pytest.skip("the real command does the same with a million changes")
    with EmbeddedServer(tmp_path / "ch") as sink:
        url = url_of(sink)
        DrivenPipe(book, url, tmp_path / "state").open().catch_up()
        fall_behind(book)
        DrivenPipe(book, url, tmp_path / "state").open().catch_up()
        with sink_client(sink.url) as client:
            assert_same(client, book, TABLES)


@pytest.mark.soak(because="test_alters_far_behind has 50,000 changes")
@pytest.mark.timeout(3600)
def test_alters_a_million_changes_behind(book: Logbook, database: str, replica_account: Account, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink}", tmp_path / "state")
    first = pipeline.once()
    assert first.code == 0, first.output
    changes, definitions = fall_behind(book)
    started = time.monotonic()
    run, peaks = pipeline.start("--once"), dict[int, int]()
    while run.code is None:
        peaks.update(resident_bytes(run.processes()))
        assert time.monotonic() - started < 1800, run.output
        time.sleep(0.5)
    assert run.code == 0, run.output
    caught_up_s = time.monotonic() - started
    # Tables that were to be read again at the very end.
    again = pipeline.once()
    assert again.code == 0, again.output
    verified = pipeline.verify()
    assert verified.code == 0, verified.output
    with pipeline.sink_served(sink) as url, sink_client(url) as client:
        assert_same(client, book, TABLES)
        [[rows]] = client.query("SELECT count() FROM headrace.schema_changes FINAL").result_rows
    memory = ", ".join(f"{size >> 20} MiB" for size in sorted(peaks.values(), reverse=True)[:4])
    print(f"{book.server.flavour}: {changes} changes, {definitions} definitions, {rows} in the ledger: {caught_up_s:.1f} s; {memory}")
