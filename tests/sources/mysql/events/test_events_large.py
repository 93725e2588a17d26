"""One transaction of five million rows, one statement, streams through relay, planner and reader in bounded memory.

The table has the fastest engine: in the log, its transaction differs only in its last event. On MariaDB in every run; on MySQL too when
HEADRACE_SOAK is set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import open_logbook
from testkit.servers.accounts import Account

ROWS = 5_000_000
GROWTH_LIMIT = 192 << 20
"""The memory limit of receiving, planning and decoding together, without mapped pages of the log."""
DIGITS = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6"
DIGITS += " UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Sample the peak memory during the block; mapped pages of files do not count."""
    peak, done = [anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@pytest.mark.soak("mysql", because="the server writes the same events")
def test_a_transaction_of_five_million_rows(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT NOT NULL, v INT NOT NULL) ENGINE=MyISAM")
        start = book.place()
        number = " + ".join(f"{10**i} * t{i}.d" for i in range(6))
        thousand = ", ".join(f"{DIGITS} t{i}" for i in reversed(range(6)))
        book.run(f"INSERT INTO t SELECT 1000000 * m.d + n, 7 FROM {DIGITS} m, (SELECT {number} n FROM {thousand}) k WHERE m.d < 5")
        target, catalog = book.place(), book.catalog("t", options=ReadOptions(transactions=True))
        address = MySQLAddress("127.0.0.1", server.port, replica_account.user, replica_account.password)
        relay = Relay(address, tmp_path / "relay", 64 << 20, print)
        planner = BatchPlanner(relay, BatchLimits(flush_seconds=0), mariadb=server.flavour == "mariadb")
        position, rows, keys, segments, names = BinlogPosition(start.file, start.offset), 0, 0, 0, set()
        before = anonymous_bytes()
        with watched_memory() as peak:
            relay.start(position)
            try:
                deadline = time.monotonic() + 120
                while position < BinlogPosition(target.file, target.offset):
                    assert time.monotonic() < deadline
                    end = planner.plan(position)
                    for segment in planner.segments(position, end):
                        segments += 1
                        for block in read_segment(segment, catalog):
                            rows += block.rows
                            keys += pc.sum(block.images.column(0)).as_py()
                            names |= set(block.transaction.dictionary.to_pylist() if block.transaction else ())
                    position = end
                    relay.commit(position)
            finally:
                relay.stop()
        assert (rows, keys) == (ROWS, ROWS * (ROWS - 1) // 2)
        assert len(names) == 1, "one transaction"
        assert peak[0] - before < GROWTH_LIMIT, f"{(peak[0] - before) >> 20} MiB for {target.offset - start.offset >> 20} MiB of log"
        print(f"{segments} segments, {(peak[0] - before) >> 20} MiB for {target.offset - start.offset >> 20} MiB of log")
