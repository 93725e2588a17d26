"""A state directory that is put back from a backup: the log is read again from there, and comes to the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.pipes.pipe import Pipe
from headrace.pipes.progress import LogView
from headrace.pipes.settings import PipeSettings
from headrace.sinks.clickhouse.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.selection import Selection
from testkit.binlogs import Logbook, open_logbook
from testkit.embedded_access import target_of
from testkit.sparkless import without_spark
from testkit.witness import sink_client, sink_rows, source_rows


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    with open_logbook(server, database) as book:
        yield book


@pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)
def test_going_on_with_an_older_state(book: Logbook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    state, backup = tmp_path / "state", tmp_path / "backup"
    with EmbeddedServer(tmp_path / "clickhouse") as clickhouse, sink_client(clickhouse.url) as client:
        sink = ClickHouseSink(target_of(clickhouse))

        def run() -> None:
            Pipe(book.address, sink, "sink", PipeSettings(Selection((f"{book.database}.*",)), state, once=True), LogView()).run()

        def copied() -> list[tuple[object, ...]]:
            return sink_rows(client, book.server, book.database, "t")

        book.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        book.insert("t", [(i, 0) for i in range(50)])
        run()
        book.run("UPDATE t SET n = 1 WHERE id < 20")
        run()
        # As the operations guide says: without what is rebuilt at every start.
        shutil.copytree(state, backup, ignore=shutil.ignore_patterns("relay", "spark"))
        book.run("DELETE FROM t WHERE id < 10", "UPDATE t SET n = 2, id = id + 1000 WHERE id > 40", "ALTER TABLE t ADD COLUMN s VARCHAR(9)")
        book.run("INSERT INTO t VALUES (1, 7, 'again'), (2000, 8, 'new')")
        run()
        assert copied() == source_rows(book.server, book.database, "t")
        shutil.rmtree(state)
        shutil.copytree(backup, state)
        book.run("UPDATE t SET s = 'last' WHERE id = 1")
        run()
        assert copied() == source_rows(book.server, book.database, "t")
        assert len(copied()) == 42
        disconnect(sink.target)
