"""Text that an ALTER truncates without row events: the sink truncates stored and pending rows, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.dead_letter_retry import retry_dead_letters
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, OnRefusedRow, TargetEngine
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of


@pytest.mark.parametrize("engine", list(TargetEngine))
def test_every_engine_shows_the_text_as_it_was_cut(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, engine: TargetEngine
) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(20))", "INSERT INTO t VALUES (1, 'a  '), (2, 'b'), (3, NULL)")
    choices = ClickHouseOptions(all_tables=(("engine", engine), ("view", True)))
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=choices).open()
    book.run("INSERT INTO t VALUES (4, 'd ')", "ALTER TABLE t MODIFY s CHAR(20)")
    book.run("INSERT INTO t VALUES (5, 'e')", "DELETE FROM t WHERE id = 2")
    pipe.catch_up()
    assert_same(client, book, ["t"])
    book.run("UPDATE t SET s = 'f' WHERE id = 4", "DELETE FROM t WHERE id = 1")
    pipe.catch_up()
    assert_same(client, book, ["t"])


def test_a_row_that_waits_is_not_written_with_its_text_from_before(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, c INT, s VARCHAR(20))", "INSERT INTO t VALUES (1, 1, 'a')")
    choices = ClickHouseOptions(all_tables=(("on_refused_row", OnRefusedRow.DEAD_LETTER),))
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", choices=choices).open()
    client.command(f"ALTER TABLE `{book.database}`.t ADD CONSTRAINT small CHECK c < 100")
    book.run("UPDATE t SET c = 500, s = 'b  '")
    pipe.catch_up()
    client.command(f"ALTER TABLE `{book.database}`.t DROP CONSTRAINT small")
    book.run("ALTER TABLE t MODIFY s CHAR(20)")
    pipe.catch_up()
    outcomes = list(retry_dead_letters(pipe.sink, pipe=book.database))
    assert [(one.written, "headrace resync" in one.reason) for one in outcomes] == [(False, True)]
    request_resync(pipe.directory, (f"{book.database}.*",))
    pipe.catch_up()
    assert_same(client, book, ["t"])
    assert list(retry_dead_letters(pipe.sink, pipe=book.database)) == []
