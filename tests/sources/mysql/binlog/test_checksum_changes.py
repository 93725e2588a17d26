"""`SET GLOBAL binlog_checksum` at any moment: each log file is read with the algorithm that its own format description names.

The server rotates its log at every change. The references are the server's files, byte for byte, and its SELECT.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.offline_source import directory_planner, open_directory
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.split_reader import SegmentSplit
from testkit.oracles.binlogs import Logbook, Place, images_of, open_logbook
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.oracles.planned import PlannedLog, replayed
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import create_replica_account
from testkit.servers.servers import execute

IN_USE_FLAG_AT = 4 + 17
NONE, CRC32 = "SET GLOBAL binlog_checksum = NONE", "SET GLOBAL binlog_checksum = CRC32"


@pytest.fixture
def book(fresh_server: Callable[..., PrivateServer]) -> Iterator[Logbook]:
    server = fresh_server()
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT, body VARCHAR(40))")
    with open_logbook(server, "shop") as found:
        yield found


def insert(book: Logbook, text: str) -> None:
    book.run(f"INSERT INTO t (body) VALUES ('{text} 1'), ('{text} 2')", f"UPDATE t SET body = '{text} 3' WHERE id = LAST_INSERT_ID()")


@contextmanager
def relay_of(book: Logbook, directory: Path) -> Iterator[Relay]:
    relay = Relay(MySQLAddress("127.0.0.1", book.server.port, book.server.user, book.server.password), directory, 1 << 30, print)
    start = book.place()
    relay.start(BinlogPosition(start.file, start.offset))
    try:
        yield relay
    finally:
        relay.stop()


def assert_mirrored(relay: Relay, book: Logbook) -> None:
    """Wait until the relay has the whole log, and compare each file with the server's."""
    place = book.place()
    with relay.changed:
        mirrored = relay.changed.wait_for(
            lambda: relay.failure is not None or (relay.files[-1].name, relay.files[-1].safe_end) >= (place.file, place.offset), 60
        )
        assert relay.failure is None, relay.failure
        assert mirrored, f"the relay is at {relay.files[-1].name}:{relay.files[-1].safe_end}, the server at {place}"
    for mirror in relay.files:
        original = bytearray((book.server.binlog_dir / mirror.name).read_bytes()[: mirror.safe_end])
        original[IN_USE_FLAG_AT] = 0
        assert mirror.path.read_bytes()[mirror.start : mirror.safe_end] == original[mirror.start :], mirror.name


@pytest.mark.parametrize("first", ["NONE", "CRC32"])
def test_a_live_relay_follows_every_change(book: Logbook, tmp_path: Path, first: str) -> None:
    book.run(f"SET GLOBAL binlog_checksum = {first}")
    with relay_of(book, tmp_path / "relay") as relay:
        for statement in (NONE, CRC32, CRC32, NONE, NONE, CRC32):
            book.run(statement)
            insert(book, "row")
            assert_mirrored(relay, book)


def test_quick_changes_and_reconnections(book: Logbook, tmp_path: Path) -> None:
    """The setting changes while connections are opened and cut; each starts at another moment."""
    stopping = threading.Event()

    def change() -> None:
        with book.server.root_connection() as connection, connection.cursor() as cursor:
            while not stopping.is_set():
                for statement in (NONE, "INSERT INTO shop.t (body) VALUES ('x')", CRC32, "INSERT INTO shop.t (body) VALUES ('y')"):
                    cursor.execute(statement)

    with relay_of(book, tmp_path / "relay") as relay:
        changing = threading.Thread(target=change)
        changing.start()
        try:
            for round_number in range(20):
                insert(book, f"round {round_number}")
                time.sleep(0.12)
                relay._wake()
        finally:
            stopping.set()
            changing.join()
        assert_mirrored(relay, book)
        assert len(relay.files) > 20


def test_log_files_of_several_algorithms(book: Logbook, tmp_path: Path) -> None:
    """`binlog:DIRECTORY`, with an XA transaction that is prepared in a file with checksums and committed in one without."""
    book.run("FLUSH BINARY LOGS")
    start = Place(book.place().file, 4)
    insert(book, "with")
    book.run("XA START 'x'", "INSERT INTO t (body) VALUES ('prepared')", "XA END 'x'", "XA PREPARE 'x'")
    with open_logbook(book.server, "shop") as other:
        other.run(NONE)
        insert(other, "without")
    # Only the session that prepared it may commit it on MySQL while it is connected.
    book.run("XA COMMIT 'x'", CRC32)
    insert(book, "with again")
    book.run(CRC32, NONE)
    insert(book, "at the end")
    catalog, expected = book.catalog("t"), book.select(book.schema("t"))
    assert replayed(PlannedLog(book, start).images("t")) == expected

    for file in book.server.binlog_dir.glob("binlog.0*"):
        if file.name >= start.file:
            shutil.copy(file, tmp_path)
    log = open_directory(tmp_path)
    planner = directory_planner(log.path, log.start, BatchLimits(flush_seconds=0), mariadb=log.mariadb)
    found, at = [], log.start
    try:
        while at < log.end:
            end = BinlogPosition.from_json(planner.plan(at.to_json()))
            splits = [split for split in planner.splits(at.to_json(), end.to_json()) if isinstance(split, SegmentSplit)]
            found += [image for split in splits for image in images_of(list(read_segment(split.segment, catalog)))]
            at = end
    finally:
        planner.stop()
    assert replayed(found) == expected


@pytest.mark.slow(because="test_a_live_relay_follows_every_change, test_quick_changes_and_reconnections")
@pytest.mark.timeout(600)
def test_a_pipe_follows_changes_while_it_runs_and_while_it_is_stopped(book: Logbook, tmp_path: Path) -> None:
    account = create_replica_account(book.server)
    insert(book, "snapshot")
    pipeline = Pipeline(account.url("shop"), f"chdb:{tmp_path / 'sink'}", tmp_path / "state")
    assert pipeline.once().code == 0
    for statement in (NONE, CRC32, NONE):
        book.run(statement)
        insert(book, "stopped")
    ended = pipeline.once()
    assert ended.code == 0, ended.output

    with pipeline.running() as run:
        for statement in (CRC32, NONE, CRC32):
            book.run(statement)
            insert(book, "live")
            end = log_end(book.server)
            run.until(lambda end=end: (pipeline.committed_position() or (0, 0)) >= end)  # type: ignore[misc]
        assert "Traceback" not in run.interrupt_group().output
    with pipeline.sink_served(tmp_path / "sink") as url:
        assert assert_equal(sink_client(url), book.server, "shop", ("t",), {"t": "id"}) == 14
