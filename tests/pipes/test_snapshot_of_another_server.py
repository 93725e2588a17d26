"""A snapshot reads no rows from a server that has taken over the address: it may lag, and its log has other positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import MySQLAddress, WrongServer
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, read_chunk
from headrace.sources.mysql.snapshot.locked_snapshot import ConsistentSnapshot, Rendezvous, open_reader
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of


def read_rows(book: Logbook, *, exact: bool) -> None:
    list(read_chunk(book.address, book.schema("t"), Chunk(book.database, "t", 0, "", 2), 0, ReadOptions(), exact=exact, identity="another"))


def enter_reader(address: MySQLAddress) -> None:
    with open_reader(address, Rendezvous(1), 0, 0, "another"):
        pass


def test_every_reader_compares_the_server(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        readers: list[Callable[[], object]] = [
            lambda: read_rows(book, exact=False),
            lambda: read_rows(book, exact=True),
            lambda: enter_reader(book.address),
            lambda: ConsistentSnapshot(book.address, Rendezvous(0), [], 0, "another").__enter__(),
        ]
        for read in readers:
            with pytest.raises(WrongServer, match="another server answers at the source's address"):
                read()


def test_another_server_during_the_first_snapshot(server: PrivateServer, database: str, clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state")

        def move() -> None:
            pipe.state.identity = "another"

        with pytest.raises(DefiniteError, match="another server answers at the source's address"):
            pipe.open(move)
        assert pipe.parts.snapshots.snapshots.pending()
        assert not pipe.state.uncheckpointed_gtids
