"""Rows are never read at a position that the stream has passed.

A MariaDB server that waits for a semi-synchronous replica sends a transaction to the stream before its engine commits it. The tests set a
position of the stream that the server does not show yet.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import TransientError
from headrace.pipes.mysql import resync_runner
from headrace.pipes.state.resync_requests import pending_requests, request_resync
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot import lock_free_snapshot
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, read_chunk
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of


def later(position: BinlogPosition) -> BinlogPosition:
    return replace(position, offset=position.offset + 1_000_000)


@pytest.mark.parametrize("exact", [False, True])
def test_a_chunk_is_not_read_before_the_stream_s_position(
    server: PrivateServer, database: str, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    monkeypatch.setattr(lock_free_snapshot, "_RETRY_TIMEOUT_S", 0.0)
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        schema, place = book.schema("t"), book.place()
        reached, chunk = BinlogPosition(place.file, place.offset), Chunk(database, "t", 0, "", 2)
        with pytest.raises(TransientError, match="was read already"):
            list(read_chunk(book.address, schema, chunk, 0, ReadOptions(), later(reached), exact=exact))
        assert [block.rows for block in read_chunk(book.address, schema, chunk, 0, ReadOptions(), reached, exact=exact)] == [2]


def test_a_resync_is_not_planned_before_the_stream_s_position(
    server: PrivateServer, database: str, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(call: Callable[[], Any], **_: object) -> Any:
        return call()

    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state").open()
        pipe.catch_up()
        request_resync(pipe.directory, (f"{database}.t",))
        stream = pipe.parts.stream
        planned, stream.planned = stream.planned, later(stream.written)
        with monkeypatch.context() as patch:
            patch.setattr(resync_runner, "retrying", once)
            with pytest.raises(TransientError, match="was read already"):
                pipe.parts.resyncs.plan_pending(nullcontext)
        assert any(pending_requests(pipe.directory))
        stream.planned = planned
        book.run("INSERT INTO t VALUES (3)")
        pipe.catch_up()
        assert_same(client, book, ["t"])
