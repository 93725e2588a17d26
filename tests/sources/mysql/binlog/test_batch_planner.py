"""Batches end on group bounds and keep their limits; segments tile a batch exactly and start where a statement starts.

The log is synthetic: real layouts of events, any number of transactions, statements and rows, over one or two files.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.sources.mysql.binlog import batch_planner as planner_module
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner
from headrace.sources.mysql.binlog.relay import Appender, IndexedLog, Relay
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.group_addresses import IndexedLogFile
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition

START = 4
Transaction = list[int] | str
"""Rows per statement; or the text of a statement that changes no rows."""


@dataclass(slots=True)
class Log:
    """Writes events as a server does, without checksums."""

    data: bytearray = field(default_factory=lambda: bytearray(b"\xfebin"))
    statement_starts: list[int] = field(default_factory=list)
    group_ends: list[int] = field(default_factory=list)
    group_changes: list[int] = field(default_factory=list)
    barriers: list[int] = field(default_factory=list)

    def event(self, kind: int, body: bytes) -> None:
        end = len(self.data) + 19 + len(body)
        self.data += struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body), end, 0) + body

    def query(self, text: str) -> None:
        self.event(2, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode())

    def statement(self, rows: int) -> None:
        self.statement_starts.append(len(self.data))
        table_map = struct.pack("<IHH", 77, 0, 1) + b"\x04shop\0\x01t\0" + bytes([2, 3, 15]) + bytes([2, 60, 0]) + b"\x00"
        self.event(19, table_map)
        images = b"".join(b"\x00" + struct.pack("<i", i) + bytes([i % 30]) + b"x" * (i % 30) for i in range(rows))
        self.event(30, struct.pack("<IHH", 77, 0, 1) + struct.pack("<H", 2) + bytes([2, 0xFF]) + images)

    def add(self, transaction: Transaction) -> None:
        if isinstance(transaction, str):
            self.query(transaction)
            self.barriers.append(len(self.data))
            self.group_changes.append(0)
        else:
            self.query("BEGIN")
            for rows in transaction:
                self.statement(rows)
            self.event(16, struct.pack("<Q", 1))
            self.group_changes.append(sum(transaction))
        self.group_ends.append(len(self.data))


def write_log(transactions: list[Transaction]) -> Log:
    log = Log()
    for transaction in transactions:
        log.add(transaction)
    return log


def mirror_of(log: Log, name: str, directory: Path, split_bytes: int = 1) -> IndexedLogFile:
    path = directory / name
    path.write_bytes(log.data)
    buf = np.frombuffer(bytes(log.data[START:]), dtype=np.uint8).copy()
    groups = np.empty((1000, scan.GROUP_COLUMNS), dtype=np.int64)
    splits, state = np.empty((1000, scan.SPLIT_COLUMNS), dtype=np.int64), np.zeros(scan.STATE_CELLS, dtype=np.int64)
    assert scan.scan_groups(buf, len(buf), START, False, split_bytes, groups, splits, state) == scan.OK
    found = groups[: state[scan.GROUPS]].copy()
    assert found[:, scan.END].tolist() == log.group_ends
    return IndexedLogFile(name, path, START, False, found, splits[: state[scan.SPLITS]].copy(), len(log.data))


def planner_over(mirrors: list[IndexedLogFile], directory: Path, limits: BatchLimits) -> BatchPlanner:
    relay = Relay(MySQLAddress("127.0.0.1", 1, "nobody", ""), directory / "relay", 1 << 30, print)
    relay.files = mirrors
    return BatchPlanner(relay, limits, mariadb=True)


def at(name: str, offset: int) -> BinlogPosition:
    return BinlogPosition(name, offset)


def batches_of(planner: BatchPlanner, start: BinlogPosition) -> list[BinlogPosition]:
    """Return all batch ends."""
    ends = [start]
    while True:
        end = planner._cut(ends[-1])
        if end == ends[-1]:
            return ends
        ends.append(end)


rows = st.lists(st.integers(1, 40), min_size=1, max_size=4)
statement = st.sampled_from(["CREATE TABLE a (b INT)", "TRUNCATE t"])
transactions = st.lists(st.one_of(rows, rows, rows, statement), min_size=1, max_size=25)


@given(transactions, transactions, st.integers(1, 6000), st.integers(0, 120))
def test_batches_keep_their_limits_and_end_on_group_bounds(
    first: list[Transaction], second: list[Transaction], flush_bytes: int, flush_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        logs = {"log.000001": write_log(first), "log.000002": write_log(second)}
        mirrors = [mirror_of(log, file, directory) for file, log in logs.items()]
        planner = planner_over(mirrors, directory, BatchLimits(flush_bytes=flush_bytes, flush_rows=flush_rows))
        ends = batches_of(planner, at("log.000001", START))

    groups = [
        (at(file, end), size, changes, end in log.barriers)
        for file, log in logs.items()
        for end, size, changes in zip(log.group_ends, sizes_of(log), log.group_changes, strict=True)
    ]
    bounds = [group[0] for group in groups]
    assert ends[-1] == bounds[-1], "everything is planned"
    for start, end in pairwise(ends):
        assert end in bounds
        inside = [group for group in groups if start < group[0] <= end]
        assert not any(barrier for *_, barrier in inside[:-1]), "nothing follows a barrier in its batch"
        if len(inside) > 1:
            assert sum(size for _, size, _, _ in inside) <= flush_bytes
            assert flush_rows == 0 or sum(changes for _, _, changes, _ in inside) <= flush_rows
        following = bounds.index(end) + 1
        if following < len(groups) and not inside[-1][3]:
            # The batch did not stop short: the next group would have broken a limit.
            taken = [*inside, groups[following]]
            too_long = sum(size for _, size, _, _ in taken) > flush_bytes
            too_many = flush_rows > 0 and sum(changes for _, _, changes, _ in taken) > flush_rows
            full = sum(size for _, size, _, _ in inside) >= flush_bytes or 0 < flush_rows <= sum(changes for _, _, changes, _ in inside)
            assert too_long or too_many or full


def sizes_of(log: Log) -> list[int]:
    return [end - start for start, end in pairwise([START, *log.group_ends])]


@given(transactions, transactions, st.integers(1, 8), st.data())
def test_segments_tile_a_batch_and_start_with_statements(
    first: list[Transaction], second: list[Transaction], parallelism: int, data: st.DataObject
) -> None:
    logs = {"log.000001": write_log(first), "log.000002": write_log(second)}
    share = data.draw(st.integers(1, 3000))
    bounds = [at("log.000001", START), *(at(file, end) for file, log in logs.items() for end in log.group_ends)]
    begin = data.draw(st.integers(0, len(bounds) - 2))
    start, end = bounds[begin], bounds[data.draw(st.integers(begin + 1, len(bounds) - 1))]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner_module, "_MIN_SEGMENT_BYTES", share)
        mirrors = [mirror_of(log, file, Path(name)) for file, log in logs.items()]
        segments = planner_over(mirrors, Path(name), BatchLimits(parallelism=parallelism)).segments(start, end)

    covered = {file: sorted((s.start, s.end) for s in segments if s.file == file) for file in logs}
    for file, log in logs.items():
        low = start.offset if file == start.file else START
        high = end.offset if file == end.file else len(log.data)
        if file < start.file or file > end.file or low >= high:
            assert covered[file] == []
            continue
        pieces = covered[file]
        assert (pieces[0][0], pieces[-1][1]) == (low, high)
        assert all(one[1] == other[0] for one, other in pairwise(pieces)), "neither gap nor overlap"
        # A segment may start at a statement, or between two statements.
        for cut, _ in pieces[1:]:
            assert not any(s < cut < e for s, e in statements_of(log))


def statements_of(log: Log) -> list[tuple[int, int]]:
    """Each statement's span: its table map and its rows."""
    spans = []
    for begin in log.statement_starts:
        middle = begin + struct.unpack_from("<I", log.data, begin + 9)[0]
        spans.append((begin, middle + struct.unpack_from("<I", log.data, middle + 9)[0]))
    return spans


def test_a_single_group_beyond_every_limit_is_a_batch(tmp_path: Path) -> None:
    log = write_log([[500], [1], [1]])
    planner = planner_over([mirror_of(log, "log.000001", tmp_path)], tmp_path, BatchLimits(flush_bytes=10, flush_rows=3))
    ends = batches_of(planner, at("log.000001", START))
    assert [end.offset for end in ends[1:]] == log.group_ends


def test_rows_alone_cut_a_batch(tmp_path: Path) -> None:
    log = write_log([[3], [2, 2], [4], [1], [20], [1]])
    planner = planner_over([mirror_of(log, "log.000001", tmp_path)], tmp_path, BatchLimits(flush_rows=8))
    ends = [end.offset for end in batches_of(planner, at("log.000001", START))[1:]]
    # 3 + 4, then 4 + 1, then 20 alone, then 1.
    assert ends == [log.group_ends[i] for i in (1, 3, 4, 5)]


def test_a_batch_ends_at_the_last_group_before_a_given_place(tmp_path: Path) -> None:
    first, second = write_log([[1], [1], [1]]), write_log([[1], [1]])
    mirrors = [mirror_of(first, "log.000001", tmp_path), mirror_of(second, "log.000002", tmp_path)]
    planner = planner_over(mirrors, tmp_path, BatchLimits(flush_seconds=0))
    start, (one, two, three), (four, _) = at("log.000001", START), first.group_ends, second.group_ends
    wanted = {(1, one - 1): (1, START), (1, one): (1, one), (1, two + 5): (1, two), (1, three): (1, three), (2, four): (2, four)}
    for (file, offset), (end_file, end_offset) in wanted.items():
        end = planner.plan(start, at(f"log.00000{file}", offset))
        assert end == at(f"log.00000{end_file}", end_offset)
        assert planner.plan(end, at(f"log.00000{file}", offset)) == end
    assert planner.has_reached(at("log.000002", four))
    assert not planner.has_reached(at("log.000002", second.group_ends[-1] + 1))


def test_statements_are_reported_with_their_end(tmp_path: Path) -> None:
    log = write_log([[1], "TRUNCATE t", [1]])
    planner = planner_over([mirror_of(log, "log.000001", tmp_path)], tmp_path, BatchLimits())
    ends = batches_of(planner, at("log.000001", START))
    assert [end.offset for end in ends[1:]] == log.group_ends[1:]
    [found] = planner.statements(ends[0], ends[1])
    assert (found.query, found.position) == (Query("shop", "TRUNCATE t"), at("log.000001", log.group_ends[1]))
    assert planner.statements(ends[1], ends[2]) == []


def test_a_relay_fails_only_after_its_complete_groups_were_read(tmp_path: Path) -> None:
    log = write_log([[1], [2]])
    planner = planner_over([mirror_of(log, "log.000001", tmp_path)], tmp_path, BatchLimits(flush_seconds=0))
    planner._relay.failure = DefiniteError("the log is damaged")
    end = planner.plan(at("log.000001", START))
    assert end.offset == log.group_ends[-1]
    with pytest.raises(DefiniteError, match="damaged"):
        planner.plan(end)


def test_a_planned_end_that_the_log_no_longer_has_is_an_error(tmp_path: Path) -> None:
    """A crashed server lost the unsynced end of a file, and continues in the next one."""
    mirrors = [mirror_of(write_log([[1]]), f"log.{number:06}", tmp_path) for number in (1, 2)]
    planner = planner_over(mirrors, tmp_path, BatchLimits())
    end = mirrors[0].safe_end
    assert planner.await_end(at("log.000001", end))
    with pytest.raises(DefiniteError, match="lost a part of its log"):
        planner.await_end(at("log.000001", end + 1))
    # Without a next file, the end may only be late.
    assert not planner.await_end(at("log.000002", end + 1), 0.05)


def test_harmless_events_after_the_last_group_are_reached_at_once(tmp_path: Path) -> None:
    """MariaDB writes checkpoint events at any time; a run up to the log's end must not wait for an event after it."""
    log = write_log([[1], [2]])
    log.event(161, struct.pack("<I", 10) + b"log.000001")
    path = tmp_path / "log.000001"
    path.write_bytes(log.data)
    mirror = IndexedLog(1 << 30)
    start = log.group_ends[0]
    file = mirror._open("log.000001", path, start)
    mirror._append(Appender(file, checksum=False, in_place=True), np.frombuffer(bytearray(log.data[start:]), dtype=np.uint8))
    assert (len(file.groups), file.safe_end) == (1, len(log.data))
