"""A task that does not find the mirror of the log fetches its part from the server: the same blocks, or a passing error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.demo.server import PrivateServer
from headrace.errors import DefiniteError, TransientError
from headrace.sources.mysql import fetching
from headrace.sources.mysql import planner as planner_module
from headrace.sources.mysql import relay as relay_module
from headrace.sources.mysql.connection import MySQLAddress
from headrace.sources.mysql.fetching import at_hand, proven
from headrace.sources.mysql.planner import Limits
from headrace.sources.mysql.reader import Segment, read_segment
from testkit.accounts import Account
from testkit.binlogs import Image, Logbook, images_of, open_logbook
from testkit.planned import PlannedLog, replayed


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(2000))")
        yield book


@pytest.fixture
def address(book: Logbook, replica_account: Account) -> MySQLAddress:
    return MySQLAddress("127.0.0.1", book.server.port, replica_account.user, replica_account.password)


def identity_of(book: Logbook) -> str:
    return str(book.fetch(f"SELECT @@global.{'server_id' if book.server.flavour == 'mariadb' else 'server_uuid'}")[0][0])


def given(segments: list[Segment], identity: str, *, hidden: bool = True) -> list[Segment]:
    """What tasks are told, by way of JSON."""
    return [Segment.from_json(proven(one, identity, hidden=hidden).to_json()) for one in segments]


def images(book: Logbook, segments: list[Segment], address: MySQLAddress | None) -> list[Image]:
    catalog, blocks = book.catalog("t"), []
    for segment in segments:
        with at_hand(segment, address) as found:
            blocks += read_segment(found, catalog)
    return images_of(blocks)


def work(book: Logbook) -> None:
    """Large and small transactions, compressed ones, an XA transaction that is committed in a later file."""
    with open_logbook(book.server, book.database) as other:
        other.run("XA START 'x'", "INSERT INTO t VALUES (-1, REPEAT('x', 900))", "XA END 'x'", "XA PREPARE 'x'")
        book.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, REPEAT('a', 1000))" for i in range(60)), "COMMIT", "FLUSH BINARY LOGS")
        if book.server.flavour == "mysql":
            book.run("SET SESSION binlog_transaction_compression = ON")
        else:
            book.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
        try:
            book.run("UPDATE t SET v = REPEAT('b', 1500) WHERE id BETWEEN 0 AND 50 AND id % 3 = 0", "DELETE FROM t WHERE id BETWEEN 0 AND 50 AND id % 7 = 3")
        finally:
            if book.server.flavour == "mariadb":
                book.run("SET GLOBAL log_bin_compress = OFF")
        other.run("XA COMMIT 'x'")
        book.run("UPDATE t SET id = id + 1000 WHERE id BETWEEN 0 AND 4")


def test_what_is_fetched_is_what_was_planned(book: Logbook, address: MySQLAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut inside of transactions, over files, compressed, with an XA transaction put in: the same images with the same versions."""
    monkeypatch.setattr(relay_module, "SPLIT_BYTES", 1)
    monkeypatch.setattr(planner_module, "_MIN_SEGMENT_BYTES", 1 << 12)
    start, identity = book.place(), identity_of(book)
    work(book)
    segments = PlannedLog(book, start, Limits(parallelism=8)).segments()
    assert len(segments) > 4
    assert any(one.opened for one in segments)
    assert any(one.inserts for one in segments)
    mapped = images(book, segments, None)
    assert replayed(sorted(mapped, key=lambda image: image.version)) == book.select(book.schema("t"))
    fetched = given(segments, identity)
    assert all(not one.path for one in fetched)
    assert all("/" not in insert.path for one in fetched for insert in one.inserts)
    assert images(book, fetched, address) == mapped
    # Where the files are found, nobody is asked: there is no address.
    assert images(book, given(segments, identity, hidden=False), None) == mapped


def test_a_mirror_that_lags_behind_is_not_believed(book: Logbook, address: MySQLAddress, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A shared directory may show a file that is short, or has holes where bytes will be."""
    start, identity = book.place(), identity_of(book)
    book.run(*(f"INSERT INTO t VALUES ({i}, 'v')" for i in range(20)))
    [segment] = given(PlannedLog(book, start).segments(), identity, hidden=False)
    mapped, whole = images(book, [segment], None), Path(segment.path).read_bytes()
    holes = bytearray(whole)
    holes[segment.start + 100 : segment.start + 200] = bytes(100)
    for content in (whole[: segment.end - 1], bytes(holes)):
        stale = tmp_path / segment.file
        stale.write_bytes(content)
        caplog.clear()
        assert images(book, [replace(segment, path=str(stale))], address) == mapped
        assert "is behind" in caplog.text
    assert images(book, [replace(segment, path=str(tmp_path / "nowhere"))], address) == mapped


def test_another_log_is_a_passing_error(book: Logbook, address: MySQLAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server, other bytes, bytes that are not there any more: never rows."""
    monkeypatch.setattr(fetching, "_PATIENCE_S", 0.1)
    start, identity = book.place(), identity_of(book)
    book.run("INSERT INTO t VALUES (1, 'v')")
    planned = PlannedLog(book, start).segments()
    [segment] = given(planned, identity)
    with pytest.raises(TransientError, match="another server answers"):
        images(book, given(planned, "somebody"), address)
    with pytest.raises(TransientError, match="is not what it was when the batch was planned"):
        images(book, [replace(segment, proof="0" * 8)], address)
    with pytest.raises(TransientError, match="did not send its log up to"):
        images(book, [replace(segment, end=segment.end + (1 << 20))], address)
    with pytest.raises(DefiniteError, match="log"):
        images(book, [replace(segment, file="binlog.999999")], address)
    assert len(images(book, [segment], address)) == 1
