"""XA transactions: rows appear when they are committed, in the order of the commits; rolled-back ones never."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.version import unpack_version
from headrace.sources.mysql.binlog import batch_planner as planner_module
from headrace.sources.mysql.binlog import relay as relay_module
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.preflight.required import check_no_prepared
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import Segment, read_segment
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Image, Logbook, images_of, open_logbook
from testkit.oracles.planned import PlannedLog, replayed
from testkit.servers.accounts import Account


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300))", "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    return book


@pytest.fixture
def other(server: PrivateServer, database: str, book: Logbook) -> Iterator[Logbook]:
    """A second session, for XA transactions that stay prepared while the first continues."""
    del book
    with open_logbook(server, database) as other:
        yield other


def prepare(book: Logbook, xid: str, *statements: str) -> None:
    book.run(f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")


def compress(book: Logbook, *, on: bool) -> None:
    if book.server.flavour == "mysql":
        book.run(f"SET SESSION binlog_transaction_compression = {'ON' if on else 'OFF'}")
    else:
        book.run(f"SET GLOBAL log_bin_compress = {'ON' if on else 'OFF'}", "SET GLOBAL log_bin_compress_min_len = 10")


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_rows_count_when_and_where_they_are_committed(book: Logbook, other: Logbook, compressed: bool) -> None:
    """Prepared, then other transactions and a log rotation, then committed or rolled back; also in one phase, and empty."""
    start = book.place()
    try:
        compress(other, on=compressed)
        prepare(other, "'a','b',7", "UPDATE t SET v = REPEAT('x', 300) WHERE id = 1", "INSERT INTO t VALUES (10, REPEAT('y', 300))")
        book.run("UPDATE t SET v = 'between' WHERE id = 2", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (20, 'later')")
        other.run("XA COMMIT 'a','b',7")
        prepare(other, "'gone'", "DELETE FROM t WHERE id IN (2, 3)", "INSERT INTO t VALUES (30, REPEAT('z', 300))")
        book.run("INSERT INTO t VALUES (31, 'meanwhile')")
        other.run("XA ROLLBACK 'gone'")
        prepare(other, "X'00ff27',X'',1", "INSERT INTO t VALUES (40, 'odd name')")
        book.run("INSERT INTO t VALUES (41, 'before forty')")
        other.run("XA COMMIT X'00ff27',X'',1", "UPDATE t SET v = 'after all' WHERE id = 1")
        other.run("XA START 'q'", "INSERT INTO t VALUES (50, 'one phase')", "XA END 'q'", "XA COMMIT 'q' ONE PHASE")
        other.run("XA START 'q'", "INSERT INTO t VALUES (60, 'never')", "XA END 'q'", "XA ROLLBACK 'q'")
        prepare(other, "'q'", "SELECT 1")
        other.run("XA COMMIT 'q'")
    finally:
        compress(other, on=False)
    schema, planned = book.schema("t"), PlannedLog(book, start)
    images = planned.images("t")
    first = {row[0]: row for row in (("1", "one"), ("2", "two"), ("3", "three"))}
    assert replayed([*seeded(first, images[0]), *images]) == book.select(schema)
    # In the order of the commits.
    assert [image.row[0] for image in images] == ["2", "20", "1", "10", "31", "41", "40", "1", "50"]
    assert planned.statements() == []
    assert planned.positions()[-1].prepared == ()
    # One batch per group, every position with its prepared transactions: the same images with the same versions.
    small = PlannedLog(book, start, BatchLimits(flush_bytes=1))
    assert small.images("t") == images
    waiting = [[one.xid for one in position.prepared] for position in small.positions()]
    assert ["X'61',X'62',7"] in waiting
    assert ["X'00ff27',X'',1"] in waiting


def seeded(rows: dict[str, tuple[str, str]], like: Image) -> list[Image]:
    """Images of existing rows."""
    return [replace(like, op=Op.SNAPSHOT, version=0, row=row) for row in rows.values()]


def test_splits_and_counts(book: Logbook, other: Logbook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared rows are counted with their commit, and are never a separate segment."""
    start = book.place()
    prepare(other, "'a'", *(f"INSERT INTO t VALUES ({i}, REPEAT('x', 200))" for i in range(100, 150)))
    book.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, REPEAT('x', 200))" for i in range(200, 220)), "COMMIT")
    other.run("XA COMMIT 'a'")
    whole = PlannedLog(book, start).images("t")
    monkeypatch.setattr(planner_module, "_MIN_SEGMENT_BYTES", 300)
    monkeypatch.setattr(relay_module, "SPLIT_BYTES", 1)
    planned = PlannedLog(book, start, BatchLimits(parallelism=8))
    assert len(planned.segments()) >= 3
    assert planned.images("t") == whole
    assert [unpack_version(image.version)[2] for image in whole] == sorted(unpack_version(image.version)[2] for image in whole)
    counted = PlannedLog(book, start, BatchLimits(flush_rows=30))
    changes = []
    for pair in pairwise(counted.positions()):
        blocks = [block for one in counted.planner.segments(*pair) for block in read_segment(one, book.catalog("t"))]
        changes.append(sum(block.changes for block in blocks))
    assert [change for change in changes if change] == [20, 50]


def test_a_transaction_is_named_by_its_commit(book: Logbook, other: Logbook) -> None:
    start = book.place()
    prepare(other, "'a'", "INSERT INTO t VALUES (10, 'x')", "INSERT INTO t VALUES (11, 'x')")
    book.run("INSERT INTO t VALUES (20, 'between')")
    other.run("XA COMMIT 'a'")
    variable = "@@gtid_binlog_pos" if book.server.flavour == "mariadb" else "@@gtid_executed"
    numbers = book.fetch(f"SELECT {variable}")[0][0].replace("\n", "").split(",")
    last = {part.replace(":", "-").rsplit("-", 1)[-1] for part in numbers}
    [block] = PlannedLog(book, start).blocks("t", options=ReadOptions(transactions=True))
    assert block.transaction is not None
    names = block.transaction.to_pylist()
    assert names[0] != names[1] == names[2]
    assert names[1].replace(":", "-").rsplit("-", 1)[-1] in last


def test_a_commit_of_something_older_than_the_log_read_is_an_error(book: Logbook, other: Logbook) -> None:
    prepare(other, "'a'", "INSERT INTO t VALUES (10, 'x')")
    start = book.place()
    book.run("INSERT INTO t VALUES (20, 'x')")
    other.run("XA COMMIT 'a'")
    with pytest.raises(DefiniteError, match=r"XA COMMIT X'61',X'',1 commits a transaction that was prepared before") as caught:
        PlannedLog(book, start).positions()
    assert caught.value.place.startswith(start.file)
    assert "XA RECOVER" in caught.value.hint
    # A rollback would not have produced rows.
    prepare(other, "'a'", "INSERT INTO t VALUES (11, 'x')")
    start = book.place()
    other.run("XA ROLLBACK 'a'", "INSERT INTO t VALUES (30, 'x')")
    assert [image.row[0] for image in PlannedLog(book, start).images("t")] == ["30"]


def test_prepared_transactions_are_reported_before_reading_starts(book: Logbook, other: Logbook) -> None:
    with closing(connect(book.address)) as connection:
        check_no_prepared(connection, book.address)
        prepare(other, "'still here'", "INSERT INTO t VALUES (10, 'x')")
        with pytest.raises(DefiniteError, match=r"1 XA transactions are prepared on the source .*still here") as caught:
            check_no_prepared(connection, book.address)
        assert "XA RECOVER" in caught.value.hint
        other.run("XA ROLLBACK 'still here'")
        check_no_prepared(connection, book.address)


def test_a_relay_keeps_what_is_prepared_and_fetches_it_after_a_restart(
    book: Logbook, other: Logbook, replica_account: Account, tmp_path: Path
) -> None:
    start = book.place()
    prepare(other, "'a'", *(f"INSERT INTO t VALUES ({i}, REPEAT('x', 300))" for i in range(100, 200)))
    book.run("INSERT INTO t VALUES (20, 'x')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (21, 'x')")
    address = MySQLAddress("127.0.0.1", book.server.port, replica_account.user, replica_account.password)
    position, images = BinlogPosition(start.file, start.offset), []
    for statement in ("INSERT INTO t VALUES (22, 'x')", "XA COMMIT 'a'", "INSERT INTO t VALUES (23, 'x')"):
        # Each round is a new run, which starts from the checkpoint with an empty directory.
        relay = Relay(address, tmp_path / "relay", 1 << 30, print)
        planner = BatchPlanner(relay, BatchLimits(flush_seconds=0), mariadb=book.server.flavour == "mariadb")
        relay.start(position)
        try:
            (other if statement.startswith("XA") else book).run(statement)
            target = book.place()
            deadline = time.monotonic() + 30
            while position < BinlogPosition(target.file, target.offset):
                assert time.monotonic() < deadline
                end = BinlogPosition.from_json(planner.plan(position).to_json())
                for segment in planner.segments(position, end):
                    images += images_of(list(read_segment(Segment.from_json(segment.to_json()), book.catalog("t"))))
                position = end
                relay.commit(position)
        finally:
            relay.stop()
    assert [image.row[0] for image in images] == ["20", "21", "22", *map(str, range(100, 200)), "23"]
    assert images == PlannedLog(book, start).images("t")
    assert position.prepared == ()
