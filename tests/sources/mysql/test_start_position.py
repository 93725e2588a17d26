"""Every form of a start position leads to the same log position, or to an error that lists the valid forms."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.segment_reader import Segment, read_segment
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition
from headrace.sources.mysql.start_position import complete_gtid, resolve_start
from testkit.oracles.binlogs import Logbook, images_of, open_logbook
from testkit.servers.servers import execute, mysql

FOREIGN = "00000000-0000-0000-0000-0000000000aa"


def executed(book: Logbook) -> str:
    variable = "@@GLOBAL.gtid_binlog_pos" if book.server.flavour == "mariadb" else "@@GLOBAL.gtid_executed"
    return str(book.fetch(f"SELECT {variable}")[0][0]).replace("\n", "")


def resolved(book: Logbook, text: str) -> BinlogPosition:
    with closing(connect(book.address)) as connection:
        return resolve_start(connection, book.address, text)


def refused(book: Logbook, text: str) -> str:
    with pytest.raises(DefiniteError) as caught:
        resolved(book, text)
    assert caught.value.hint
    return str(caught.value)


def keys_after(book: Logbook, start: BinlogPosition, directory: Path) -> list[str]:
    """Return the keys of table t in the groups that a relay publishes as wanted."""
    end, relay = book.place(), Relay(book.address, directory, 1 << 30, print)
    relay.start(start)
    try:
        deadline = time.monotonic() + 20
        while relay.files[-1].name != end.file or relay.files[-1].safe_end < end.offset:
            assert relay.failure is None, relay.failure
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = []
        for relayed in relay.files:
            begin = relayed.start
            for group in relayed.groups.tolist():
                if group[scan.KIND] == scan.DATA:
                    segment = Segment(str(relayed.path), relayed.name, begin, group[scan.END], 0, relayed.checksum)
                    found += [str(image.row[0]) for image in images_of(list(read_segment(segment, book.catalog("t"))))]
                begin = group[scan.END]
        return found
    finally:
        relay.stop()


def test_start_positions(fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    """One server, because purging its log is part of it."""
    server = fresh_server()
    execute(server, "CREATE DATABASE located")
    with open_logbook(server, "located") as book:
        first = book.place()
        book.run("CREATE TABLE t (id VARCHAR(20) PRIMARY KEY)", "INSERT INTO t VALUES ('a')", "FLUSH BINARY LOGS")
        book.run("INSERT INTO t VALUES ('b')")
        middle, middle_set = book.place(), executed(book)
        book.run("BEGIN", "INSERT INTO t VALUES ('c')", "INSERT INTO t VALUES ('d')", "COMMIT", "FLUSH BINARY LOGS")
        book.run("INSERT INTO t VALUES ('e')")

        check_places(book, tmp_path)
        check_gtids(book, middle_set, tmp_path)
        check_interleaved(book, tmp_path)
        check_refusals(book, f"{middle.file}:{middle.offset}", middle_set)
        check_purged(book, first.file, middle.file, middle_set)


def check_places(book: Logbook, directory: Path) -> None:
    now = resolved(book, "now")
    assert (now.file, now.offset) == (book.place().file, book.place().offset)
    assert (plain(now.gtid), now.ahead) == (plain(executed(book)), False)
    oldest = resolved(book, "oldest")
    assert (oldest.offset, oldest.ahead) == (4, False)
    assert keys_after(book, oldest, directory / "oldest") == list("abcde")
    # A position recorded on a busy server: its GTID set is the set at the file's start plus the transactions in between.
    with closing(connect(book.address)) as connection:
        found = complete_gtid(connection, book.address, replace(now, gtid=UNKNOWN_GTID))
    assert plain(found.gtid) == plain(executed(book))
    assert resolved(book, f"{now.file}:{now.offset}").gtid == now.gtid


def check_gtids(book: Logbook, middle_set: str, directory: Path) -> None:
    position = resolved(book, middle_set)
    assert position.ahead
    assert (position.file, position.offset) == (book.fetch("SHOW BINARY LOGS")[1][0], 4), "the newest file that begins within the set"
    assert keys_after(book, position, directory / "gtid") == list("cde")
    assert keys_after(book, resolved(book, executed(book)), directory / "all") == []


def check_interleaved(book: Logbook, directory: Path) -> None:
    """Transactions of two servers: the set has the later one of the other server but not the earlier one of this server."""
    before = executed(book)
    book.run("INSERT INTO t VALUES ('ours 1')")
    if book.server.flavour == "mariadb":
        book.run("SET SESSION gtid_domain_id = 7", "INSERT INTO t VALUES ('theirs 1')", "INSERT INTO t VALUES ('theirs 2')")
        book.run("SET SESSION gtid_domain_id = 0")
        theirs = next(part for part in executed(book).split(",") if part.startswith("7-")).rpartition("-")[0] + "-1"
    else:
        for number, key in ((8, "theirs 1"), (3, "theirs 2")):
            book.run(f"SET gtid_next = '{FOREIGN}:{number}'", f"INSERT INTO t VALUES ('{key}')", "SET gtid_next = AUTOMATIC")
        theirs = f"{FOREIGN}:8"
    book.run("INSERT INTO t VALUES ('ours 2')")
    position = resolved(book, f"{before},{theirs}")
    assert keys_after(book, position, directory / "interleaved") == ["ours 1", "theirs 2", "ours 2"]


def check_refusals(book: Logbook, middle: str, middle_set: str) -> None:
    assert "write now, oldest, FILE:OFFSET" in refused(book, "yesterday")
    assert "write now, oldest, FILE:OFFSET" in refused(book, "")
    file, _, offset = middle.rpartition(":")
    assert "is not the end of a transaction" in refused(book, f"{file}:{int(offset) + 1}")
    # Inside a transaction: after its GTID event.
    event = next(row for row in book.fetch(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset} LIMIT 1"))
    assert f"ends at {middle}" in refused(book, f"{file}:{event[4]}")
    assert "ends at" in refused(book, f"{file}:99999999")
    assert "no longer has" in refused(book, "binlog.000099:4")
    if book.server.flavour == "mariadb":
        assert "but the source is MariaDB" in refused(book, f"{FOREIGN}:1")
        assert "has not executed 0-77-9" in refused(book, "0-77-9")
        assert "has not executed 9-1-1" in refused(book, "9-1-1")
    else:
        assert "but the source is MySQL" in refused(book, "0-1-1")
        assert f"has not executed {FOREIGN}:4" in refused(book, f"{middle_set},{FOREIGN}:3-4")


def check_purged(book: Logbook, first: str, second: str, middle_set: str) -> None:
    purge(book, second)
    assert resolved(book, middle_set).file == second, "the purged transactions are in the set"
    book.run("FLUSH BINARY LOGS")
    purge(book, book.place().file)
    assert "no longer has the log of transactions that are needed" in refused(book, middle_set)
    assert "no longer has binary log" in refused(book, f"{first}:4")


def purge(book: Logbook, keep: str) -> None:
    """A server keeps log files that a replica reads, and notices the end of a replica a moment later."""
    deadline = time.monotonic() + 20
    while book.fetch("SHOW BINARY LOGS")[0][0] != keep:
        assert time.monotonic() < deadline
        book.run(f"PURGE BINARY LOGS TO '{keep}'")
        time.sleep(0.05)


def plain(text: str) -> str:
    """MariaDB lists domains in any order."""
    return ",".join(sorted(part.strip() for part in text.split(",") if part.strip()))


@pytest.mark.usefixtures("mysql_server")
def test_a_server_without_gtids(tmp_path: Path) -> None:
    """Only MySQL can run without GTIDs: positions work, sets are refused."""
    server = mysql(tmp_path / "server", gtid_mode=False, enforce_gtid_consistency=False)
    try:
        server.start()
        execute(server, "CREATE DATABASE plain")
        with open_logbook(server, "plain") as book:
            for text in ("now", "oldest", f"{book.place().file}:{book.place().offset}"):
                assert resolved(book, text).gtid == UNKNOWN_GTID
            assert "gtid_mode = ON" in refused(book, f"{FOREIGN}:1")
    finally:
        server.remove()
