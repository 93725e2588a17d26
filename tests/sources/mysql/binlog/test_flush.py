"""A batch is cut by bytes, by rows or by time, whichever comes first, and never inside a transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from headrace.demo.private_server import PrivateServer
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Logbook, Place, open_logbook
from testkit.oracles.planned import PlannedLog
from testkit.servers.accounts import Account


@contextmanager
def relayed(book: Logbook, account: Account, start: Place, directory: Path) -> Iterator[Relay]:
    address = MySQLAddress("127.0.0.1", book.server.port, account.user, account.password)
    relay = Relay(address, directory, 64 << 20, print)
    relay.start(BinlogPosition(start.file, start.offset))
    try:
        yield relay
    finally:
        relay.stop()


def test_a_batch_gathers_for_as_long_as_it_may(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)")
        start = book.place()
        here = BinlogPosition(start.file, start.offset)
        mariadb = server.flavour == "mariadb"
        with relayed(book, replica_account, start, tmp_path / "relay") as relay:
            gathering = BatchPlanner(relay, BatchLimits(flush_seconds=20.0, flush_bytes=4000), mariadb=mariadb)
            ends: list[BinlogPosition] = []
            thread = threading.Thread(target=lambda: ends.append(gathering.plan(here)))
            thread.start()
            first: Place | None = None
            for number in range(60):
                book.run(f"INSERT INTO t VALUES ({number})")
                first = first or book.place()
                time.sleep(0.01)
            thread.join(60)
            [end] = ends
            # It ended by bytes: neither with the first transaction nor by time.
            assert first is not None
            assert first.offset < end.offset <= start.offset + 4000
            assert end.offset > start.offset + 3000
            # Without further changes, the pending ones are a batch after the time.
            short = BatchPlanner(relay, BatchLimits(flush_seconds=0.2), mariadb=mariadb)
            began = time.monotonic()
            last = book.place()
            while short.plan(here).offset < last.offset:
                assert time.monotonic() - began < 20
            assert time.monotonic() - began >= 0.2
            at_once = BatchPlanner(relay, BatchLimits(flush_seconds=0.0, flush_bytes=1), mariadb=mariadb)
            assert at_once.plan(here).offset == first.offset


def test_steady_changes_are_batches_at_intervals(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)")
        start = book.place()
        with relayed(book, replica_account, start, tmp_path / "relay") as relay:
            planner = BatchPlanner(relay, BatchLimits(flush_seconds=0.0, latency_seconds=1.0), mariadb=server.flavour == "mariadb")
            here = BinlogPosition(start.file, start.offset)

            def take(*statements: str) -> float:
                """Run statements and plan the batch that holds them; return how long that took."""
                nonlocal here
                book.run(*statements)
                began, last = time.monotonic(), book.place().offset
                here = planner.plan(here)
                while here.offset < last:
                    assert time.monotonic() - began < 20
                    here = planner.plan(here)
                return time.monotonic() - began

            # The first change does not wait, a change shortly after a batch does.
            assert take("INSERT INTO t VALUES (1)") < 0.9
            assert 0.5 < take("INSERT INTO t VALUES (2)") < 5
            # A statement ends its batch at once; nothing waits after it.
            assert take("ALTER TABLE t ADD COLUMN a INT") < 0.9
            assert take("INSERT INTO t (id) VALUES (3)") < 0.9
            # Nor after a pause.
            time.sleep(1.0)
            assert take("INSERT INTO t (id) VALUES (4)") < 0.9


def test_a_backlog_does_not_wait(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)")
        start = book.place()
        book.run(*(f"INSERT INTO t VALUES ({number})" for number in range(20)))
        with relayed(book, replica_account, start, tmp_path / "relay") as relay:
            limits = BatchLimits(flush_rows=1, flush_seconds=0.0, latency_seconds=30.0)
            planner = BatchPlanner(relay, limits, mariadb=server.flavour == "mariadb")
            here, last, began = BinlogPosition(start.file, start.offset), book.place().offset, time.monotonic()
            batches = 0
            while here.offset < last:
                here, batches = planner.plan(here), batches + 1
            assert batches >= 20
            assert time.monotonic() - began < 30


def test_a_batch_has_no_more_rows_than_it_may_unless_one_transaction_has(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)")
        start = book.place()
        for number, rows in enumerate((3, 3, 3, 12, 1, 1, 9, 2)):
            book.run(f"INSERT INTO t VALUES {', '.join(f'({number * 100 + i})' for i in range(rows))}")
        log = PlannedLog(book, start, BatchLimits(flush_rows=10))
        catalog = book.catalog("t")
        batches = [
            sum(block.rows for segment in log.planner.segments(*pair) for block in read_segment(segment, catalog))
            for pair in pairwise(log.positions())
        ]
        assert batches == [9, 12, 2, 9, 2]
