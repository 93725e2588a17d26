"""A pipe continues on another server only if that has all read transactions, by GTID, and reads each change once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.sources.mysql import failover
from headrace.sources.mysql.failover import check_same_log, continue_on
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition
from headrace.sources.mysql.source import MySQLSource
from headrace.sources.mysql.split_reader import SegmentSplit
from headrace.sources.mysql.start_position import resolve_start
from headrace.sources.splits import MarkSplit
from testkit.oracles.binlogs import images_of, open_logbook
from testkit.servers.replication import await_applied, await_executed, executed, follow, promote, start_replica
from testkit.servers.servers import execute

FOREIGN = "00000000-0000-0000-0000-0000000000aa"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "PATIENCE_S", 0.3)


def address_of(server: PrivateServer) -> MySQLAddress:
    return MySQLAddress("127.0.0.1", server.port, server.user, server.password)


def now(server: PrivateServer) -> BinlogPosition:
    with closing(connect(address_of(server))) as connection:
        return resolve_start(connection, address_of(server), "now")


def continued(server: PrivateServer, committed: BinlogPosition, *touched: str) -> BinlogPosition:
    with closing(connect(address_of(server))) as connection:
        return continue_on(connection, address_of(server), committed, touched)


def refused(server: PrivateServer, committed: BinlogPosition, *touched: str) -> str:
    with pytest.raises(DefiniteError) as caught:
        continued(server, committed, *touched)
    assert caught.value.hint
    return str(caught.value)


def same_log(server: PrivateServer, position: BinlogPosition) -> str:
    """Return the error of the position on this server; empty if there is none."""
    with closing(connect(address_of(server))) as connection:
        try:
            check_same_log(connection, address_of(server), position)
        except DefiniteError as error:
            return str(error)
    return ""


def keys_of(source: MySQLSource, start: BinlogPosition, server: PrivateServer, reached: list[BinlogPosition] | None = None) -> list[str]:
    """Return the keys inserted since `start`, read as Spark reads: plan, splits, segments."""
    planner = source.planner()
    found: list[str] = []
    try:
        with open_logbook(server, "shop") as book:
            end = BinlogPosition(book.place().file, book.place().offset, epoch=source.start.epoch)
            at, deadline = start.to_json(), time.monotonic() + 20
            while BinlogPosition.from_json(at) < end:
                assert time.monotonic() < deadline
                at, begin = planner.plan(at), at
                for split in planner.splits(begin, at):
                    if isinstance(split, SegmentSplit):
                        segment = split.segment
                        found += [str(image.row[0]) for image in images_of(list(read_segment(segment, book.catalog("t"))))]
                planner.commit(at)
                if reached is not None:
                    reached.append(BinlogPosition.from_json(at))
    finally:
        planner.stop()
    return found


@pytest.mark.timeout(120)
def test_failover_needs_all_applied_gtids(flavour: str, fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    primary = fresh_server()
    execute(primary, "CREATE DATABASE shop", "CREATE TABLE shop.t (id VARCHAR(20) PRIMARY KEY)", "INSERT INTO shop.t VALUES ('before')")
    replica = start_replica(primary, fresh_server)
    silent = fresh_server(**{"log_slave_updates" if flavour == "mariadb" else "log_replica_updates": False})
    follow(silent, primary)
    execute(primary, "INSERT INTO shop.t VALUES ('read')")
    committed = now(primary)
    execute(primary, "INSERT INTO shop.t VALUES ('planned')")
    planned = now(primary)
    execute(primary, "INSERT INTO shop.t VALUES ('unread')")
    await_executed(replica, executed(primary))
    check_silent(silent, committed, now(primary))
    check_going_on(primary, replica, committed, planned, tmp_path)
    check_refusals(replica, committed)
    check_reset(primary, now(primary))
    check_behind(flavour, primary, replica, committed, planned)
    check_purged(replica, committed)


def check_going_on(
    primary: PrivateServer, replica: PrivateServer, committed: BinlogPosition, planned: BinlogPosition, directory: Path
) -> None:
    assert same_log(primary, committed) == ""
    start = continued(replica, committed, planned.gtid)
    assert (start.epoch, start.gtid, start.ahead, start.offset) == (1, committed.gtid, True, 4)
    assert start.version > planned.version
    source = MySQLSource(address_of(replica), start, directory / "relay", 1 << 30, BatchLimits(), primary.flavour == "mariadb")
    # Between offsets of the former server there is nothing to read; after them come exactly the transactions that the committed set lacks.
    planner = source.planner()
    try:
        assert planner.splits(committed.to_json(), planned.to_json()) == [MarkSplit(planned.to_json())]
        planner.commit(planned.to_json())
    finally:
        planner.stop()
    for begin in (committed, planned, start):
        assert keys_of(source, begin, replica) == ["planned", "unread"]


def check_refusals(replica: PrivateServer, committed: BinlogPosition) -> None:
    mariadb = replica.flavour == "mariadb"
    other = f"{FOREIGN}:1-3" if mariadb else "0-1-3"
    assert "other family" in refused(replica, replace(committed, gtid=other))
    assert "no GTIDs to resume by" in refused(replica, replace(committed, gtid=UNKNOWN_GTID))
    assert "no GTIDs to resume by" in refused(replica, committed, UNKNOWN_GTID)
    lost = "0-77-1" if mariadb else f"{FOREIGN}:1-3"
    message = refused(replica, committed, f"{committed.gtid},{lost}")
    assert f"has not executed {lost}, of which changes may be in the target" in message


def check_silent(silent: PrivateServer, committed: BinlogPosition, latest: BinlogPosition) -> None:
    """A replica without log_slave_updates has the changes in its tables only."""
    await_applied(silent, latest.gtid)
    assert "_updates = OFF" in refused(silent, committed)
    # If no transaction must be read from it, it is accepted.
    assert continued(silent, latest).epoch == 1


def check_reset(primary: PrivateServer, position: BinlogPosition) -> None:
    """Positions that a log does not have, or that belong to other transactions."""
    assert same_log(primary, position) == ""
    assert "before the pipe's position" in same_log(primary, replace(position, offset=position.offset + 1))
    first = next(name for name in sorted(path.name for path in primary.binlog_dir.glob("binlog.0*")))
    assert "its transactions there are others" in same_log(primary, replace(position, file=first, offset=head_end(primary, first)))


def head_end(server: PrivateServer, file: str) -> int:
    """Where the first group of a file begins."""
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}' LIMIT 10")
        return next(int(row[1]) for row in cursor.fetchall() if row[2] in ("Gtid", "Anonymous_Gtid"))


def check_behind(flavour: str, primary: PrivateServer, replica: PrivateServer, committed: BinlogPosition, planned: BinlogPosition) -> None:
    """The primary and the replica diverge: neither has the transactions of the other."""
    promote(replica)
    execute(primary, "INSERT INTO shop.t VALUES ('lost')")
    lost = now(primary)
    assert "if it is a replica that lags" in refused(replica, lost)
    assert "if it is a replica that lags" in refused(replica, committed, lost.gtid)
    # On MariaDB both now use the same numbers in the same domain; only the server id distinguishes them.
    execute(replica, *[f"INSERT INTO shop.t VALUES ('other {n}')" for n in range(5)])
    assert "the transactions are lost" in refused(replica, lost)
    assert continued(replica, committed, planned.gtid).epoch == 1
    if flavour == "mysql":
        execute(primary, "RESET BINARY LOGS AND GTIDS")
    else:
        execute(primary, "RESET MASTER")
    assert same_log(primary, lost) != ""
    assert "has not executed" in refused(primary, lost)


def check_purged(replica: PrivateServer, committed: BinlogPosition) -> None:
    execute(replica, "FLUSH BINARY LOGS")
    with open_logbook(replica, "shop") as book:
        newest, deadline = book.place().file, time.monotonic() + 20
        while book.fetch("SHOW BINARY LOGS")[0][0] != newest:
            assert time.monotonic() < deadline
            book.run(f"PURGE BINARY LOGS TO '{newest}'")
            time.sleep(0.05)
    assert "no longer has the log of transactions that are needed" in refused(replica, committed)


@pytest.mark.timeout(90)
def test_a_prepared_transaction_goes_along(fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    """Its rows are before the position of the failover, its commit after it."""
    primary = fresh_server()
    execute(primary, "CREATE DATABASE shop", "CREATE TABLE shop.t (id VARCHAR(20) PRIMARY KEY)")
    replica = start_replica(primary, fresh_server)
    start = now(primary)
    for name in ("kept", "undone", "done"):
        execute(primary, f"XA START '{name}'", f"INSERT INTO shop.t VALUES ('{name}')", f"XA END '{name}'", f"XA PREPARE '{name}'")
    execute(primary, "INSERT INTO shop.t VALUES ('plain')", "XA COMMIT 'done'")
    source = MySQLSource(address_of(primary), start, tmp_path / "first", 1 << 30, BatchLimits(), primary.flavour == "mariadb")
    reached: list[BinlogPosition] = []
    assert keys_of(source, start, primary, reached) == ["plain", "done"]
    committed = reached[-1]
    assert len(committed.prepared) == 2

    await_executed(replica, executed(primary))
    execute(replica, "FLUSH BINARY LOGS")
    execute(primary, "INSERT INTO shop.t VALUES ('later')", "XA ROLLBACK 'undone'", "XA COMMIT 'kept'")
    await_executed(replica, executed(primary))
    moved = continued(replica, committed)
    other = MySQLSource(address_of(replica), moved, tmp_path / "second", 1 << 30, BatchLimits(), primary.flavour == "mariadb")
    assert keys_of(other, committed, replica) == ["later", "kept"]


@pytest.mark.timeout(60)
def test_another_server_at_the_same_address(fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    """A relay that reconnects must not continue at its file and offset in another server's log."""
    server = fresh_server()
    start = now(server)
    source = MySQLSource(address_of(server), start, tmp_path / "relay", 1 << 30, BatchLimits(), server.flavour == "mariadb", "another")
    planner = source.planner()
    try:
        # Without writes, only the refusal ends the wait.
        with pytest.raises(DefiniteError, match="another server answers"):
            planner.plan(start.to_json())
    finally:
        planner.stop()


@pytest.mark.timeout(60)
def test_a_planned_batch_beyond_the_log_s_end(server: PrivateServer, tmp_path: Path) -> None:
    """A planned range was in the log; a log that ends before it has lost transactions, and waiting does not help."""
    start = now(server)
    planner = MySQLSource(address_of(server), start, tmp_path / "relay", 1 << 30, BatchLimits(), server.flavour == "mariadb").planner()
    beyond = replace(start, offset=start.offset + 100_000_000)
    try:
        with pytest.raises(DefiniteError, match="lost a part of its log"):
            planner.splits(start.to_json(), beyond.to_json())
    finally:
        planner.stop()
