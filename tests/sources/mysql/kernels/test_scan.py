"""`scan_groups` on synthetic events: ends of groups, events outside of groups, and errors."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.kernels.crc32 import crc32

BASE = 4
TIME = 1_700_000_000


class Log:
    """Builds a file of events with valid positions and checksums."""

    def __init__(self, base: int = BASE, *, checksum: bool = True) -> None:
        self.base, self.checksum = base, checksum
        self.data = b""

    def add(self, kind: int, body: bytes = b"", flags: int = 0, *, placed: bool = True) -> Log:
        size = 19 + len(body) + (4 if self.checksum else 0)
        end = (self.base + len(self.data) + size) & 0xFFFFFFFF if placed else 0
        event = struct.pack("<IBIIIH", TIME, kind, 77, size, end, flags) + body
        self.data += event + (struct.pack("<I", zlib.crc32(event)) if self.checksum else b"")
        return self

    def query(self, text: str) -> Log:
        return self.add(2, struct.pack("<IIBHH", 1, 0, 2, 0, 3) + b"xyz" + b"db\0" + text.encode())

    def gtid(self, number: int) -> Log:
        return self.add(33, b"\0" + bytes(range(16)) + struct.pack("<Q", number))

    def maria(self, sequence: int, domain: int = 5, *, standalone: bool = False) -> Log:
        return self.add(162, struct.pack("<QIB", sequence, domain, 1 if standalone else 0) + b"\0" * 6)

    def rows(self, *, last: bool = True, size: int = 20, placed: bool = True) -> Log:
        body = b"\x09\0\0\0\0\0" + struct.pack("<H", int(last)) + b"\0" * size
        return self.add(19, b"\x09\0\0\0\0\0\x01\0map", placed=placed).add(30, body, placed=placed)

    def xid(self) -> Log:
        return self.add(16, b"\x01" * 8)

    @property
    def end(self) -> int:
        return self.base + len(self.data)

    def scan(self, split_bytes: int = 1 << 40, room: int = 100) -> tuple[int, list[list[int]], list[int], np.ndarray]:
        groups, splits = np.zeros((room, scan.GROUP_COLUMNS), dtype=np.int64), np.zeros((room, scan.SPLIT_COLUMNS), dtype=np.int64)
        state = np.zeros(scan.STATE_CELLS, dtype=np.int64)
        buf = np.frombuffer(bytearray(self.data), dtype=np.uint8)
        status = scan.scan_groups(buf, len(buf), self.base, self.checksum, split_bytes, groups, splits, state)
        return int(status), groups[: state[scan.GROUPS]].tolist(), splits[: state[scan.SPLITS], scan.SPLIT_AT].tolist(), state

    def kinds(self) -> list[tuple[int, int]]:
        """Return kind and presence of rows of every group of a scan without error."""
        status, groups, _, _ = self.scan()
        assert status == scan.OK
        return [(group[scan.KIND], group[scan.ROWS]) for group in groups]


def test_a_transaction_ends_with_its_xid() -> None:
    log = Log().gtid(9).query("BEGIN").rows().rows().xid()
    status, groups, splits, state = log.scan()
    assert (status, splits, int(state[scan.POS])) == (scan.OK, [], len(log.data))
    high, low = int.from_bytes(bytes(range(8)), "big"), int.from_bytes(bytes(range(8, 16)), "big")
    [group] = groups
    assert [group[column] for column in (scan.END, scan.KIND, scan.GTID0, scan.GTID1, scan.GTID2, scan.TIME, scan.ROWS)] == [
        log.end,
        scan.DATA,
        high,
        low,
        9,
        TIME,
        1,
    ]
    assert (group[scan.START], group[scan.LAST_AT]) == (BASE, log.end - 31)
    assert [group[column] for column in (scan.TAG, scan.STATEMENTS, scan.PACKED, scan.GROWTH, scan.COMMITTED)] == [0] * 5


def test_a_transaction_of_a_table_without_transactions_ends_with_commit() -> None:
    assert Log().gtid(1).query("BEGIN").rows().query("COMMIT").kinds() == [(scan.DATA, 1)]
    assert Log().maria(1).rows().query("commit").kinds() == [(scan.DATA, 1)]


def test_mariadb_announces_what_follows() -> None:
    log = Log().maria(1).rows().xid().maria(2, standalone=True).query("DROP TABLE t").maria(3).query("INSERT INTO t VALUES (1)").xid()
    assert log.kinds() == [(scan.DATA, 1), (scan.STATEMENT, 0), (scan.STATEMENT, 0)]
    assert [group[2:5] for group in log.scan()[1]] == [[5, 77, 1], [5, 77, 2], [5, 77, 3]]


def test_statements_outside_transactions_are_groups_of_their_own() -> None:
    assert Log().gtid(1).query("CREATE TABLE t (id INT)").gtid(2).query("DROP TABLE t").kinds() == [(scan.STATEMENT, 0)] * 2


def test_a_statement_within_a_transaction_marks_it() -> None:
    """CREATE TABLE ... SELECT: rows and a statement that the planner must see."""
    assert Log().gtid(1).query("BEGIN").query("CREATE TABLE t (id INT) START TRANSACTION").rows().xid().kinds() == [(scan.STATEMENT, 1)]


@pytest.mark.parametrize("text", ["SAVEPOINT `s`", "ROLLBACK TO `s`", "savepoint x"])
def test_savepoints_change_nothing(text: str) -> None:
    assert Log().gtid(1).query("BEGIN").rows().query(text).rows().xid().kinds() == [(scan.DATA, 1)]


@pytest.mark.parametrize("text", ["BEGINNING", "COMMITMENT", "ROLLBACKS", "BEGI", "", "XA RECOVER"])
def test_only_the_whole_word_counts(text: str) -> None:
    assert Log().gtid(1).query(text).kinds() == [(scan.STATEMENT, 0)]


def test_rolled_back_rows_are_recognised() -> None:
    """Only non-transactional tables keep them; the log does not show which."""
    assert Log().gtid(1).query("BEGIN").rows().query("ROLLBACK").kinds() == [(scan.ROLLED_BACK, 1)]
    assert Log().gtid(1).query("BEGIN").query("ROLLBACK").kinds() == [(scan.DATA, 0)]


@pytest.mark.parametrize("kind", [3, 4])
def test_a_file_ends_with_stop_or_rotate(kind: int) -> None:
    assert Log().gtid(1).query("BEGIN").xid().add(kind, b"\x04" + b"\0" * 7 + b"binlog.000002").kinds() == [
        (scan.DATA, 0),
        (scan.FILE_END, 0),
    ]


@pytest.mark.parametrize("kind", [15, 35, 36, 37, 28, 161, 163, 29, 160])
def test_events_that_carry_no_change_are_stepped_over(kind: int) -> None:
    assert Log().add(kind, b"?" * 60).gtid(1).query("BEGIN").add(kind, b"?" * 60).rows().xid().kinds() == [(scan.DATA, 1)]


@pytest.mark.parametrize("kind", [0, 1, 6, 7, 8, 10, 11, 12, 20, 26, 164, 172, 255])
def test_an_event_that_may_matter_and_is_not_known_stops_the_scan(kind: int) -> None:
    log = Log().gtid(1)
    place = log.end
    status, _, _, state = log.add(kind, b"?" * 30).scan()
    assert (status, int(state[scan.ERROR_AT])) == (scan.UNKNOWN_EVENT, place)


def test_an_unknown_event_that_says_it_may_be_ignored_is() -> None:
    assert Log().add(200, b"?", flags=0x80).gtid(1).query("BEGIN").xid().kinds() == [(scan.DATA, 0)]


def test_splits_are_statement_ends_at_least_so_far_apart() -> None:
    log = Log().gtid(1).query("BEGIN")
    ends = []
    for _ in range(6):
        log.rows(last=False, size=100).rows(size=100)
        ends.append(log.end)
    log.xid()
    assert log.scan(split_bytes=1)[2] == ends
    step = ends[1] - ends[0]
    assert log.scan(split_bytes=step)[2] == ends
    # The first cut is nearer, because the transaction's head counts.
    assert log.scan(split_bytes=2 * step)[2] == [ends[1], ends[3], ends[5]]


def test_a_split_distance_restarts_with_each_group() -> None:
    log = Log()
    for number in range(4):
        log.gtid(number + 1).query("BEGIN").rows(size=50).xid()
    assert log.scan(split_bytes=250)[2] == []


def test_a_scan_resumes_after_a_full_buffer() -> None:
    log = Log()
    for number in range(10):
        log.gtid(number + 1).query("BEGIN").rows().xid()
    whole = log.scan()[1]
    groups, splits = np.zeros((3, scan.GROUP_COLUMNS), dtype=np.int64), np.zeros((2, scan.SPLIT_COLUMNS), dtype=np.int64)
    state = np.zeros(scan.STATE_CELLS, dtype=np.int64)
    buf = np.frombuffer(bytearray(log.data), dtype=np.uint8)
    found = []
    for _ in range(20):
        status = scan.scan_groups(buf, len(buf), BASE, True, 1, groups, splits, state)
        found += groups[: state[scan.GROUPS]].tolist()
        state[scan.GROUPS] = state[scan.SPLITS] = 0
        if status == scan.OK:
            break
        assert status == scan.NO_ROOM
    assert found == whole


def test_positions_past_four_gibibytes_wrap_in_the_header_only() -> None:
    log = Log(base=(1 << 32) - 60).gtid(1).query("BEGIN").rows().xid()
    assert log.scan()[1][0][scan.END] == log.end > 1 << 32


def test_an_event_that_is_not_where_it_says_is_an_error() -> None:
    log = Log().gtid(1)
    log.base += 1
    assert log.scan()[0] == scan.BAD_POSITION


def test_events_of_mariadb_transactions_may_have_no_position() -> None:
    """MariaDB 11.7 and later write 0 inside transactions (binlog_legacy_event_pos = OFF), and nowhere else."""
    whole = Log().maria(1).rows().xid()
    log = Log().maria(1).rows(placed=False).xid()
    status, groups, _, _ = log.scan()
    assert (status, groups) == (scan.OK, whole.scan()[1])
    assert Log().maria(1).query("BEGIN").rows(placed=False).xid().scan()[0] == scan.OK
    for damaged in (
        Log().gtid(1).query("BEGIN").rows(placed=False).xid(),
        Log().maria(1, standalone=True).add(2, b"\xff" * 13, placed=False),
        Log().maria(1).rows().xid().rows(placed=False),
    ):
        assert damaged.scan()[0] == scan.BAD_POSITION


def test_a_size_that_cannot_be_is_an_error() -> None:
    for size in (0, 18, 22):
        log = Log().gtid(1)
        log.data = log.data[:9] + struct.pack("<I", size) + log.data[13:]
        assert log.scan()[0] == scan.BAD_SIZE
    assert Log(checksum=False).add(30, b"short").scan()[0] == scan.BAD_SIZE
    assert Log().add(33, b"short").scan()[0] == scan.BAD_SIZE
    assert Log().add(162, b"short").scan()[0] == scan.BAD_SIZE


def test_an_unfinished_event_is_waited_for() -> None:
    log = Log().gtid(1).query("BEGIN").rows().xid()
    for missing in range(1, 30):
        part = Log()
        part.data = log.data[:-missing]
        status, groups, _, state = part.scan()
        assert (status, groups) == (scan.OK, [])
        assert state[scan.POS] < len(part.data) or missing == 27 + 4
    assert Log().scan()[0] == scan.OK


def test_a_query_whose_lengths_lie_is_a_statement() -> None:
    """It stops the planner, which inspects it and reports the error."""
    assert Log().add(2, b"\xff" * 13).kinds() == [(scan.STATEMENT, 0)]
    assert Log().add(2, b"").kinds() == [(scan.STATEMENT, 0)]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 4096])
def test_crc32_is_the_standard_one(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 5, dtype=np.uint8)
    assert crc32(data, 3, 3 + size) == zlib.crc32(data[3 : 3 + size].tobytes())
