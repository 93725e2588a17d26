"""Compressed logs of both servers: the table's rows, unique rising versions, and the same result for all cuts and replays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.sources.mysql.binlog import batch_planner as planner_module
from headrace.sources.mysql.binlog import relay
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments import event_expander
from headrace.sources.mysql.segments.event_expander import EventExpander
from headrace.sources.mysql.segments.segment_reader import read_segment
from testkit.oracles.binlogs import Logbook, Place, images_of, kinds_of, open_logbook, quoted, scan_log
from testkit.oracles.planned import PlannedLog, replayed
from testkit.servers.servers import execute

PAYLOAD, QUERY_COMPRESSED, ROWS_COMPRESSED = 40, 165, {166, 167, 168}


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    """A session whose changes are logged compressed."""
    with open_logbook(server, database) as book:
        if server.flavour == "mysql":
            book.run("SET SESSION binlog_transaction_compression = ON")
            yield book
            return
        before = book.fetch("SELECT @@GLOBAL.log_bin_compress, @@GLOBAL.log_bin_compress_min_len")[0]
        book.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
        try:
            yield book
        finally:
            book.run(f"SET GLOBAL log_bin_compress = {before[0]}", f"SET GLOBAL log_bin_compress_min_len = {before[1]}")


def work(book: Logbook) -> Place:
    """Run transactions of all sizes, with more images than compressed bytes, and a statement between them."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(2000))", "CREATE TABLE other (id INT PRIMARY KEY, n INT)")
    start = book.place()
    book.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, REPEAT('x', 1900))" for i in range(30)), "COMMIT")
    book.insert("other", [(i, 0) for i in range(3000)])
    book.run("UPDATE other SET n = n + 1", "UPDATE t SET v = 'short' WHERE id < 5", "UPDATE t SET id = id + 100 WHERE id < 3")
    book.run("CREATE TABLE between_them (id INT PRIMARY KEY, some_long_name_so_that_it_is_compressed INT)")
    book.run("BEGIN", "DELETE FROM other WHERE id % 2", "SAVEPOINT one", "UPDATE t SET v = REPEAT('y', 1000)", "ROLLBACK TO one")
    book.run("UPDATE t SET v = CONCAT(v, 'z') WHERE id > 20", "COMMIT", "INSERT INTO other VALUES (9999, 1)", "DELETE FROM t WHERE id = 15")
    return start


def test_what_is_compressed_is_the_table(book: Logbook) -> None:
    start = work(book)
    kinds = set(kinds_of(book.bytes_of(book.segment(start))))
    assert kinds >= ({PAYLOAD} if book.server.flavour == "mysql" else {QUERY_COMPRESSED, *ROWS_COMPRESSED})
    planned = PlannedLog(book, start)
    images = planned.images("t", "other")
    for table in ("t", "other"):
        schema = book.schema(table)
        assert replayed([image for image in images if image.table == schema.name]) == book.select(schema)
    # All updates of the 3000 small rows have unique versions, though they have fewer bytes than images.
    assert [found.query.statement for found in planned.statements()] == [
        "CREATE TABLE between_them (id INT PRIMARY KEY, some_long_name_so_that_it_is_compressed INT)"
    ]


def test_cuts_and_pieces_change_nothing(book: Logbook, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a log is cut into batches, segments and pieces, the images and their versions are the same."""
    start = work(book)
    whole = PlannedLog(book, start).images("t", "other")
    monkeypatch.setattr(planner_module, "_MIN_SEGMENT_BYTES", 700)
    monkeypatch.setattr(relay, "SPLIT_BYTES", 1)
    monkeypatch.setattr(event_expander, "_PIECE_BYTES", 3000)
    planned = PlannedLog(book, start, BatchLimits(flush_bytes=900, parallelism=8))
    segments = planned.segments()
    assert len(segments) > 4
    assert any(segment.shift for segment in segments)
    assert planned.images("t", "other") == whole
    # The shift of a position is enough to continue from there: the last batches alone give the last images.
    for start_at, end in pairwise(planned.positions()):
        found = [block for one in planned.planner.segments(start_at, end) for block in read_segment(one, book.catalog("t", "other"))]
        images = images_of(found)
        assert images == [image for image in whole if images and images[0].version <= image.version <= images[-1].version]


def test_rows_are_counted_in_compressed_events(book: Logbook) -> None:
    start = work(book)
    positions = PlannedLog(book, start, BatchLimits(flush_rows=3100)).positions()
    planned = PlannedLog(book, start)
    changes = []
    for pair in pairwise(positions):
        segments = planned.planner.segments(*pair)
        blocks = [block for one in segments for block in read_segment(one, book.catalog("t", "other"))]
        changes.append(sum(block.changes for block in blocks))
    # 30 + 3000; 3000 + 5 + 3 up to the statement; the rest.
    assert changes == [3030, 3008, 1500 + 12 + 1 + 1]


def test_damage_in_compressed_content_is_definite(book: Logbook, tmp_path: Path) -> None:
    """With checksums off, or a valid checksum over wrong bytes: the content is checked."""
    start = work(book)
    segment = book.segment(start)
    data = bytearray(book.bytes_of(segment))
    wrong = 0
    for at, kind, size in events_of(bytes(data)):
        if kind in (PAYLOAD, *ROWS_COMPRESSED):
            for damaged in (size // 2, size - 9, size - 30):
                copy = bytearray(data)
                copy[at + damaged] ^= 0xFF
                wrong += refused(segment.start, bytes(copy), tmp_path)
    assert wrong > 10


def test_random_damage_ends_in_definite_errors_or_rows(book: Logbook, tmp_path: Path) -> None:
    """Any change of headers, sizes or contents gives a definite error, also without checksums."""
    segment, chooser, errors = book.segment(work(book)), random.Random(5), 0
    data, catalog = book.bytes_of(segment), book.catalog("t", "other")
    path = tmp_path / "damaged"
    heads = [at + n for at, kind, _ in events_of(data) if kind in (PAYLOAD, QUERY_COMPRESSED, *ROWS_COMPRESSED) for n in range(4, 60)]
    for n in range(250):
        broken = bytearray(data)
        for _ in range(chooser.randint(1, 3)):
            at = chooser.choice(heads) if n % 2 else chooser.randrange(len(data))
            broken[min(at, len(data) - 1)] = chooser.randrange(256)
        scan_log(bytes(broken), segment.start, checksum=False)
        with path.open("wb") as file:
            file.seek(segment.start)
            file.write(broken)
        try:
            for _block in read_segment(replace(segment, path=str(path)), catalog):
                pass
        except DefiniteError:
            errors += 1
    assert errors > 50


def events_of(data: bytes) -> Iterator[tuple[int, int, int]]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        yield at, data[at + 4], size
        at += size


def refused(start: int, data: bytes, tmp_path: Path) -> bool:
    path = tmp_path / "damaged"
    with path.open("wb") as file:
        file.seek(start)
        file.write(data)
    expander = EventExpander(str(path), "binlog.000001", start, start + len(data), True, 0)
    try:
        for _ in expander.pieces():
            pass
    except DefiniteError as error:
        return bool("binlog.000001:" in error.place and error.hint)
    return False


def test_one_statement_of_many_events_in_one_payload(flavour: str, fresh_server: Callable[..., PrivateServer]) -> None:
    """A compressed transaction of 40 MB is read in pieces, each with the table maps that its rows need."""
    if flavour == "mariadb":
        pytest.skip("MariaDB compresses event by event; see the other tests")
    server = fresh_server(binlog_transaction_compression=True, max_allowed_packet="64M")
    execute(server, "CREATE DATABASE large")
    with open_logbook(server, "large") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(2000))", "CREATE TABLE n (id INT PRIMARY KEY)")
        book.insert("n", [(i,) for i in range(20_000)])
        start = book.place()
        book.run("INSERT INTO t SELECT id, REPEAT(id, 300) FROM n")
        planned = PlannedLog(book, start)
        [segment] = planned.segments()
        pieces = list(segment.pieces())
        assert len(pieces) > 3
        assert max(len(piece.buf) for piece in pieces) < 10 << 20
        assert segment.end - segment.start < 1 << 20
        found = planned.images("t")
        digest = f"SELECT COUNT(*), SUM(CRC32(v)), MAX(LENGTH(v)) FROM {quoted(book.schema('t').name)}"
        assert len(found) == 20_000 == int(book.fetch(digest)[0][0])
        assert replayed(found) == book.select(book.schema("t"))
