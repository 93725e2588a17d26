"""A task that does not find the relay's files fetches its part from the server: the same blocks, or a transient error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError, TransientError
from headrace.model.table_selection import Selection
from headrace.sources.mysql.binlog import batch_planner as planner_module
from headrace.sources.mysql.binlog import relay as relay_module
from headrace.sources.mysql.binlog import segment_fetch
from headrace.sources.mysql.limits import BatchLimits, SegmentAccess
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import MySQLSource
from headrace.sources.mysql.split_reader import MySQLReader, SegmentSplit
from headrace.sources.splits import decode_split, encode_split
from testkit.oracles.binlogs import Image, Logbook, Place, images_of, open_logbook
from testkit.oracles.planned import replayed
from testkit.servers.accounts import Account


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(2000))")
    return book


@pytest.fixture
def address(book: Logbook, replica_account: Account) -> MySQLAddress:
    return MySQLAddress("127.0.0.1", book.server.port, replica_account.user, replica_account.password)


@contextmanager
def planned(book: Logbook, address: MySQLAddress, start: Place, access: SegmentAccess, directory: Path) -> Iterator[list[SegmentSplit]]:
    """Return the splits of the log from a position to now, through JSON; the relay's files exist during the block."""
    mariadb = book.server.flavour == "mariadb"
    identity = str(book.fetch(f"SELECT @@global.{'server_id' if mariadb else 'server_uuid'}")[0][0])
    limits = BatchLimits(flush_seconds=0, parallelism=8)
    position, end = BinlogPosition(start.file, start.offset), book.place()
    planner = MySQLSource(address, position, directory / access, 1 << 30, limits, mariadb, identity, access).planner()
    try:
        at, splits = planner.initial(), []
        while BinlogPosition.from_json(at) < BinlogPosition(end.file, end.offset):
            before, at = at, planner.plan(at)
            splits += planner.splits(before, at)
        yield [decode_split(encode_split(split), [SegmentSplit]) for split in splits if isinstance(split, SegmentSplit)]
    finally:
        planner.stop()


def images(book: Logbook, splits: Sequence[SegmentSplit], address: MySQLAddress | None, *, ordered: bool = False) -> list[Image]:
    """Return the images that tasks read."""
    catalog = book.catalog("t")
    tables = {name: replace(plan, ordered=ordered) for name, plan in catalog.tables.items()}
    selection = Selection((f"{book.database}.t",))
    reader = MySQLReader(address, tables, selection, ReadOptions(), 0)
    return images_of([block for split in splits for block in reader.read(split)])


def change(book: Logbook) -> None:
    """Run large and small transactions, compressed ones, and an XA transaction that is committed in a later file."""
    with open_logbook(book.server, book.database) as other:
        other.run("XA START 'x'", "INSERT INTO t VALUES (-1, REPEAT('x', 900))", "XA END 'x'", "XA PREPARE 'x'")
        book.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, REPEAT('a', 1000))" for i in range(60)), "COMMIT", "FLUSH BINARY LOGS")
        if book.server.flavour == "mysql":
            book.run("SET SESSION binlog_transaction_compression = ON")
        else:
            book.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
        try:
            book.run("UPDATE t SET v = REPEAT('b', 1500) WHERE id BETWEEN 0 AND 50", "DELETE FROM t WHERE id BETWEEN 30 AND 33")
        finally:
            if book.server.flavour == "mariadb":
                book.run("SET GLOBAL log_bin_compress = OFF")
        other.run("XA COMMIT 'x'")
        book.run("UPDATE t SET id = id + 1000 WHERE id BETWEEN 0 AND 4")


def test_fetched_segments_give_the_planned_images(
    book: Logbook, address: MySQLAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts inside of transactions, over files, compressed, with an XA transaction: the same images with the same versions."""
    monkeypatch.setattr(relay_module, "SPLIT_BYTES", 1)
    monkeypatch.setattr(planner_module, "_MIN_SEGMENT_BYTES", 1 << 12)
    start = book.place()
    change(book)
    with planned(book, address, start, SegmentAccess.LOCAL, tmp_path) as splits:
        assert len(splits) > 4
        assert any(split.segment.open_transaction for split in splits)
        assert any(split.segment.inserts for split in splits)
        mapped = images(book, splits, None)
    assert replayed(sorted(mapped, key=lambda image: image.version)) == book.select(book.schema("t"))
    with planned(book, address, start, SegmentAccess.LOCAL_OR_FETCH, tmp_path) as splits:
        # With local files no server is needed: there is no address.
        assert images(book, splits, None) == mapped
    # The same when the relay's files are missing, and when their path is unknown.
    assert images(book, splits, address) == mapped
    with planned(book, address, start, SegmentAccess.FETCH, tmp_path) as splits:
        assert str(tmp_path) not in "".join(map(encode_split, splits))
        assert images(book, splits, address) == mapped
        assert images(book, splits, address, ordered=True) == mapped


def test_a_relay_that_lags_behind_is_not_trusted(
    book: Logbook, address: MySQLAddress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A shared directory may show a short file, or holes instead of later bytes."""
    start = book.place()
    book.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, 'v')" for i in range(20)), "COMMIT")
    with planned(book, address, start, SegmentAccess.LOCAL_OR_FETCH, tmp_path) as [split]:
        mapped, path = images(book, [split], None), Path(split.segment.path)
        whole = path.read_bytes()
        holes = whole[: split.segment.start + 100] + bytes(100) + whole[split.segment.start + 200 :]
        for content in (whole[: split.segment.end - 1], holes):
            path.write_bytes(content)
            caplog.clear()
            assert images(book, [split], address) == mapped
            assert "is behind" in caplog.text


def changed(split: SegmentSplit, **fields: Any) -> SegmentSplit:
    """The split of another segment."""
    return replace(split, segment=replace(split.segment, **fields))


def test_another_log_is_a_transient_error(book: Logbook, address: MySQLAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server, other bytes, deleted bytes: an error, never rows."""
    monkeypatch.setattr(segment_fetch, "_RETRY_TIMEOUT_S", 0.1)
    start = book.place()
    book.run("INSERT INTO t VALUES (1, 'v')")
    with planned(book, address, start, SegmentAccess.FETCH, tmp_path) as [split]:
        pass
    with pytest.raises(TransientError, match="another server answers"):
        images(book, [changed(split, server="somebody")], address)
    with pytest.raises(TransientError, match="is not what it was when the batch was planned"):
        images(book, [changed(split, crc="00000000")], address)
    with pytest.raises(TransientError, match="did not send its log up to"):
        images(book, [changed(split, end=split.segment.end + (1 << 20))], address)
    with pytest.raises(DefiniteError, match="log"):
        images(book, [changed(split, file="binlog.999999")], address)
    assert len(images(book, [split], address)) == 1
