"""The relay on a real server: the same bytes as the server's files, bounded disk use, and no committed bytes left."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DefiniteError
from headrace.sources.mysql.binlog import relay as relay_module
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.binlog.replication_client import ReplicationStream
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Logbook, Place
from testkit.servers.accounts import Account

MEGABYTE = 1 << 20
_IN_USE_FLAG_AT = 4 + 17


@contextmanager
def relay_from(book: Logbook, account: Account, directory: Path, limit: int = 1 << 30) -> Iterator[tuple[Relay, list[str]]]:
    warnings: list[str] = []
    address = MySQLAddress("127.0.0.1", book.server.port, account.user, account.password)
    relay = Relay(address, directory / "relay", limit, warnings.append)
    start = book.place()
    relay.start(BinlogPosition(start.file, start.offset))
    try:
        yield relay, warnings
    finally:
        relay.stop()


def until(relay: Relay, condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert relay.failure is None, relay.failure
        assert time.monotonic() < deadline, "the condition is false"
        time.sleep(0.01)


def end_of(relay: Relay) -> BinlogPosition:
    with relay.changed:
        relayed = relay.files[-1]
        return BinlogPosition(relayed.name, max(relayed.safe_end, relayed.start))


def reached(relay: Relay, place: Place) -> bool:
    return end_of(relay) >= BinlogPosition(place.file, place.offset)


def disk_usage(directory: Path) -> int:
    """Return the disk usage without holes."""
    return int(subprocess.run(["du", "-s", "-B1", str(directory)], check=True, capture_output=True, text=True).stdout.split()[0])


def fill(book: Logbook, megabytes: int) -> None:
    """Append about `megabytes` of log, in transactions of half a megabyte."""
    for _ in range(2 * megabytes):
        book.run("INSERT INTO big SELECT seq, REPEAT('x', 8192) FROM numbers", "DELETE FROM big")


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("CREATE TABLE big (id INT PRIMARY KEY, body TEXT)", "CREATE TABLE numbers (seq INT PRIMARY KEY)")
    book.insert("numbers", [(n,) for n in range(32)])
    return book


def test_the_relay_equals_the_server_s_files(book: Logbook, replica_account: Account, tmp_path: Path) -> None:
    start = book.place()
    with relay_from(book, replica_account, tmp_path) as (relay, _):
        fill(book, 2)
        book.run("FLUSH BINARY LOGS")
        fill(book, 1)
        until(relay, lambda: reached(relay, book.place()))
        names = [relayed.name for relayed in relay.files]
        assert len(names) == 2
        for relayed in relay.files:
            begin = start.offset if relayed.name == start.file else 0
            original = bytearray((book.server.binlog_dir / relayed.name).read_bytes()[: relayed.safe_end])
            # The server changes the flag LOG_EVENT_BINLOG_IN_USE, which its checksum does not cover.
            original[_IN_USE_FLAG_AT] = 0
            assert relayed.path.read_bytes()[begin : relayed.safe_end] == original[begin:]
        # When the second file is reached, the first is deleted; committed bytes of the second are a hole.
        before = disk_usage(relay.files[-1].path)
        relay.commit(end_of(relay))
        assert [relayed.name for relayed in relay.files] == names[1:]
        assert sorted(path.name for path in (tmp_path / "relay").iterdir()) == names[1:]
        assert disk_usage(relay.files[0].path) <= 16384 < before
    assert not (tmp_path / "relay").exists()


def test_a_stalled_consumer_does_not_fill_the_disk(book: Logbook, replica_account: Account, tmp_path: Path) -> None:
    limit = 2 * MEGABYTE
    with relay_from(book, replica_account, tmp_path, limit) as (relay, warnings):
        fill(book, 24)
        end = book.place()
        time.sleep(1)
        stalled = disk_usage(tmp_path / "relay")
        # The last read of the socket may exceed the limit.
        assert limit <= stalled <= limit + 2 * relay_module.SPLIT_BYTES + MEGABYTE
        time.sleep(0.5)
        assert disk_usage(tmp_path / "relay") == stalled
        peak = stalled
        deadline = time.monotonic() + 60
        while not reached(relay, end):
            relay.commit(end_of(relay))
            peak = max(peak, disk_usage(tmp_path / "relay"))
            assert relay.failure is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert peak <= limit + 2 * relay_module.SPLIT_BYTES + MEGABYTE
        assert warnings == []


def test_a_transaction_larger_than_the_limit_comes_through(book: Logbook, replica_account: Account, tmp_path: Path) -> None:
    with relay_from(book, replica_account, tmp_path, MEGABYTE) as (relay, _):
        book.run("BEGIN", *["INSERT INTO big SELECT seq, REPEAT('x', 60000) FROM numbers", "DELETE FROM big"] * 3, "COMMIT")
        until(relay, lambda: reached(relay, book.place()))


def test_a_broken_connection_resumes_at_its_position(book: Logbook, replica_account: Account, tmp_path: Path) -> None:
    start = book.place()
    with relay_from(book, replica_account, tmp_path) as (relay, warnings):
        for cuts in range(1, 4):
            fill(book, 1)
            kill_dump_threads(book, replica_account.user)
            fill(book, 1)
            until(relay, lambda: reached(relay, book.place()))
            assert len(warnings) >= cuts
        relayed = relay.files[0]
        original = (book.server.binlog_dir / relayed.name).read_bytes()[start.offset : relayed.safe_end]
        assert relayed.path.read_bytes()[start.offset : relayed.safe_end] == original
        assert relayed.groups[:, 0].tolist() == sorted(set(relayed.groups[:, 0].tolist()))


def kill_dump_threads(book: Logbook, user: str) -> None:
    rows = book.fetch(f"SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%' AND user = '{user}'")
    assert rows
    for (thread,) in rows:
        book.run(f"KILL {thread}")


def test_a_position_the_server_does_not_have_is_definite(book: Logbook, replica_account: Account, tmp_path: Path) -> None:
    address = MySQLAddress("127.0.0.1", book.server.port, replica_account.user, replica_account.password)
    relay = Relay(address, tmp_path / "relay", MEGABYTE, print)
    relay.start(BinlogPosition("binlog.999999", 4))
    try:
        deadline = time.monotonic() + 20
        while relay.failure is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert isinstance(relay.failure, DefiniteError)
        assert "binary log" in relay.failure.message
        assert relay.failure.hint
    finally:
        relay.stop()


def test_steady_small_transactions_arrive_together(book: Logbook, replica_account: Account) -> None:
    """Each piece costs as much as many transactions."""
    start = book.place()
    address = MySQLAddress("127.0.0.1", book.server.port, replica_account.user, replica_account.password)
    stream = ReplicationStream(address, BinlogPosition(start.file, start.offset))
    writer = threading.Thread(target=lambda: [book.run(f"INSERT INTO numbers VALUES ({number})") for number in range(100, 400)])
    begun, pieces, received, end = time.monotonic(), 0, start.offset, 1 << 60
    with contextlib.closing(stream):
        writer.start()
        for piece in stream.pieces():
            if isinstance(piece, np.ndarray):
                pieces, received = pieces + 1, received + len(piece)
            if not writer.is_alive() and end == 1 << 60:
                end = book.place().offset
            if received >= end:
                break
    writer.join()
    # 50 a second, and some after more bytes than few.
    assert pieces <= 60 * (time.monotonic() - begun) + 5
