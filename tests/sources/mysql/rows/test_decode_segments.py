"""All cuts that the planner may make give the same images and versions; damage is an error with its position, never a row.

One workload per server, as bytes; the tests read copies of it, complete, in pieces and damaged.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments import segment_reader
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, read_segment
from testkit.oracles.binlogs import Image, Logbook, images_of, open_logbook, parts_of, scan_log

DATABASE = "decode_segments"


@dataclass(frozen=True, slots=True)
class Recording:
    """A workload's piece of log."""

    data: bytes
    segment: Segment
    catalog: ReadCatalog
    whole: list[Image]

    def copied(self, data: bytes, directory: Path) -> Segment:
        """A segment over other bytes at the same log offset."""
        path = directory / "log"
        with path.open("wb") as file:
            file.seek(self.segment.start)
            file.write(data)
        return replace(self.segment, path=str(path), end=self.segment.start + len(data))


def record(book: Logbook) -> Recording:
    book.run("CREATE TABLE wide (id INT PRIMARY KEY, s TEXT, d DECIMAL(30,5), t DATETIME(3), e ENUM('a','b'), j JSON, b BIT(9))")
    book.run("CREATE TABLE slim (k VARCHAR(20) PRIMARY KEY, n TINYINT UNSIGNED)")
    start = book.place()
    for n in range(6):
        rows = ", ".join(f"({n * 100 + i}, REPEAT('s', {i * 7}), {i}.5, '2024-01-0{n + 1}', 'b', '[{i}]', {i})" for i in range(12))
        book.run("BEGIN", f"INSERT INTO wide VALUES {rows}", f"INSERT INTO slim VALUES ('k{n}', {n}), ('K-{n}', NULL)")
        book.run(f"UPDATE wide SET d = NULL, s = 'new' WHERE id % 100 > {n}", f"UPDATE slim SET k = CONCAT(k, 'x') WHERE k = 'k{n}'")
        book.run(f"DELETE FROM wide WHERE id % 100 = {n + 3}", "COMMIT", f"INSERT INTO slim VALUES ('auto{n}', 255)")
    book.run("SAVEPOINT nothing", "BEGIN", "INSERT INTO slim VALUES ('kept', 1)", "SAVEPOINT s", "INSERT INTO slim VALUES ('lost', 1)")
    book.run("ROLLBACK TO s", "COMMIT")
    segment = book.segment(start)
    catalog = book.catalog("wide", "slim")
    return Recording(book.bytes_of(segment), segment, catalog, images_of(list(read_segment(segment, catalog))))


@pytest.fixture(scope="module")
def recording(server: PrivateServer, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        with open_logbook(server, DATABASE) as book:
            made = record(book)
        cursor.execute(f"DROP DATABASE {DATABASE}")
    return replace(made, segment=made.copied(made.data, tmp_path_factory.mktemp("log")))


def read(recording: Recording, segment: Segment) -> list[Image]:
    return images_of(list(read_segment(segment, recording.catalog)))


def event_ends(data: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(data):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
        ends.append(at)
    return ends


def test_the_workload_is_complete(recording: Recording) -> None:
    counts = {op: sum(image.op.name == op for image in recording.whole) for op in ("INSERT", "UPDATE", "DELETE", "BEFORE")}
    updates = sum(12 - n - 1 for n in range(6))
    # The row after the savepoint was rolled back; the log of an InnoDB transaction holds only committed rows.
    assert counts == {"INSERT": 6 * 15 + 1, "UPDATE": updates + 6, "DELETE": 1 + 2 + 3 + 4 + 5 + 6, "BEFORE": 6}


def test_reading_again_gives_identical_blocks(recording: Recording) -> None:
    once, twice = (list(read_segment(recording.segment, recording.catalog)) for _ in range(2))
    assert [same_block(a, b) for a, b in zip(once, twice, strict=True)] == [True] * len(once)


def same_block(one: ChangeBlock, other: ChangeBlock) -> bool:
    return all(getattr(one, part).equals(getattr(other, part)) for part in ("images", "op", "version", "commit_ts"))


def test_a_cut_at_any_group_bound_changes_nothing(recording: Recording) -> None:
    status, groups, _, state = scan_log(recording.data, recording.segment.start, checksum=True)
    assert status == scan.OK
    assert state[scan.POS] == len(recording.data)
    ends = groups[:, scan.END].tolist()
    assert ends[-1] == recording.segment.end
    assert set(groups[:, scan.KIND].tolist()) == {scan.DATA}
    for cut in ends:
        pieces = [read(recording, part) for part in parts_of(recording.segment, [cut])]
        assert [image for piece in pieces for image in piece] == recording.whole
    alone = [read(recording, part) for part in parts_of(recording.segment, ends)]
    assert [image for piece in alone for image in piece] == recording.whole


@pytest.mark.parametrize("split_bytes", [1, 500, 2000])
def test_a_cut_at_any_statement_end_changes_nothing(recording: Recording, split_bytes: int) -> None:
    _, groups, splits, _ = scan_log(recording.data, recording.segment.start, checksum=True, split_bytes=split_bytes)
    assert len(splits) > 5
    assert all(later - earlier >= split_bytes for earlier, later in pairwise(splits.tolist()))
    pieces = [read(recording, part) for part in parts_of(recording.segment, splits.tolist(), groups)]
    assert [image for piece in pieces for image in piece] == recording.whole


def test_a_scan_in_arbitrary_steps_finds_the_same_groups(recording: Recording) -> None:
    """Bytes arrive in any portions; a group may take any number of calls."""
    data, start = recording.data, recording.segment.start
    _, whole, splits, _ = scan_log(data, start, checksum=True, split_bytes=300)
    buf = np.frombuffer(bytearray(data), dtype=np.uint8)
    chooser = random.Random(7)
    for _ in range(20):
        groups = np.zeros((1000, scan.GROUP_COLUMNS), dtype=np.int64)
        found = np.zeros((1000, scan.SPLIT_COLUMNS), dtype=np.int64)
        state = np.zeros(scan.STATE_CELLS, dtype=np.int64)
        for end in [*sorted(chooser.sample(range(len(data)), 15)), len(data)]:
            assert scan.scan_groups(buf, end, start, True, 300, groups, found, state) == scan.OK
        assert groups[: state[scan.GROUPS]].tolist() == whole.tolist()
        assert found[: state[scan.SPLITS], scan.SPLIT_AT].tolist() == splits.tolist()


def test_small_windows_and_blocks_change_nothing(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "_WINDOW_EVENTS", 3)
    monkeypatch.setattr("headrace.sources.mysql.rows.row_decoder.MAX_BLOCK_ROWS", 4)
    blocks = list(read_segment(recording.segment, recording.catalog))
    assert max(block.rows for block in blocks) <= 4
    assert images_of(blocks) == recording.whole


def test_full_arenas_change_nothing(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer bytes than one text needs: blocks end early, single rows make them grow."""
    monkeypatch.setattr("headrace.sources.mysql.rows.row_decoder._MAX_DATA_BYTES", 16)
    every = replace(recording.catalog, options=ReadOptions(every_before=True))
    blocks = list(read_segment(recording.segment, every))
    assert len(blocks) > 20
    images = images_of(blocks)
    assert [image for image in images if image in recording.whole] == recording.whole


def test_an_empty_segment_has_no_blocks(recording: Recording) -> None:
    assert read(recording, replace(recording.segment, end=recording.segment.start)) == []


def test_every_truncation_is_an_error_or_whole_statements(recording: Recording, tmp_path: Path) -> None:
    data, start = recording.data, recording.segment.start
    segment = recording.copied(data, tmp_path)
    ends = {start + end for end in event_ends(data)}
    for end in range(start + 1, segment.end):
        cut = replace(segment, end=end)
        if end in ends:
            images = read(recording, cut)
            assert images == recording.whole[: len(images)]
        else:
            with pytest.raises(DefiniteError) as caught:
                read(recording, cut)
            assert caught.value.place.startswith(segment.file)


def test_a_file_shorter_than_its_segment_is_an_error(recording: Recording, tmp_path: Path) -> None:
    for missing in (1, 19, 500, len(recording.data)):
        segment = recording.copied(recording.data[: len(recording.data) - missing], tmp_path)
        with pytest.raises(DefiniteError, match="cut short"):
            read(recording, replace(segment, end=recording.segment.end))


def test_the_scan_catches_every_flipped_byte(recording: Recording) -> None:
    """With checksums, one changed byte anywhere is an error; where it makes an event longer, the scan waits without a result."""
    data, start = recording.data, recording.segment.start
    _, whole, _, _ = scan_log(data, start, checksum=True)
    broken = bytearray(data)
    for at in range(len(data)):
        for bits in (0xFF, 1 << at % 8):
            broken[at] ^= bits
            status, groups, _, state = scan_log(bytes(broken), start, checksum=True)
            broken[at] ^= bits
            if status == scan.OK:
                assert state[scan.POS] < len(data), f"byte {at} changed without an error"
                assert state[scan.POS] <= at
            else:
                assert start <= state[scan.ERROR_AT] <= start + at
            assert groups.tolist() == whole[: len(groups)].tolist()


def test_damaged_rows_never_crash_the_decoder(recording: Recording, tmp_path: Path) -> None:
    """The decoder does not check checksums: for any bytes it gives blocks or an error, and stays within its memory."""
    chooser = random.Random(11)
    data = recording.data
    outcomes = {"rows": 0, "error": 0}
    for _ in range(600):
        broken = bytearray(data)
        for _ in range(chooser.choice((1, 1, 2, 8))):
            broken[chooser.randrange(len(data))] = chooser.choice((0, 1, 0x7F, 0x80, 0xFC, 0xFE, 0xFF, chooser.randrange(256)))
        outcomes[outcome(recording, recording.copied(bytes(broken), tmp_path))] += 1
    assert min(outcomes.values()) > 20


def outcome(recording: Recording, segment: Segment) -> str:
    try:
        for block in read_segment(segment, recording.catalog):
            assert block.rows == len(block.op) == len(block.version) == len(block.commit_ts)
            block.images.validate()
    except DefiniteError as error:
        return "error" if error.place.startswith(segment.file) else "error without a place"
    return "rows"


@pytest.mark.parametrize(("times", "plus"), [(1, -5), (0, 18), (0, 0), (1, 1), (0, 0xFFFFFFFF)])
def test_a_wrong_event_size_is_an_error(recording: Recording, tmp_path: Path, times: int, plus: int) -> None:
    broken = bytearray(recording.data)
    at = event_ends(recording.data)[2]
    size = int.from_bytes(broken[at + 9 : at + 13], "little")
    broken[at + 9 : at + 13] = (size * times + plus).to_bytes(4, "little")
    with pytest.raises(DefiniteError):
        read(recording, recording.copied(bytes(broken), tmp_path))


def test_row_events_without_their_table_map(recording: Recording) -> None:
    data = recording.data
    at = next(end for end in event_ends(data) if data[end + 4] in (23, 30))
    with pytest.raises(DefiniteError, match="no table map before it") as caught:
        read(recording, replace(recording.segment, start=recording.segment.start + at))
    assert caught.value.place == f"{recording.segment.file}:{recording.segment.start + at}"


def test_checksums_are_the_standard_s(recording: Recording) -> None:
    """The compiled CRC-32 equals zlib's."""
    at = 0
    for end in event_ends(recording.data):
        event = recording.data[at:end]
        assert zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")
        at = end
