"""Cuts the log into batches and segments, by its index alone.

A batch ends on a group bound: at the last one within `flush_bytes` and `flush_rows` (at least one group), after `flush_seconds`, or right
after a statement that is not a row change, because such a statement is a barrier. Batches that take all changes there are follow each other
after `latency_seconds`, because each costs the same however few changes it has. Segments divide a batch among tasks, on group bounds and,
inside a large transaction, on statement bounds. For the same start and end, the segments cover the same bytes with the same addresses,
wherever they are cut. `assign_addresses` removes groups that do not count at their own position (prepared XA transactions, groups already
applied).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.mysql.binlog.log_comparison import describe_transaction, identify
from headrace.sources.mysql.binlog.relay import IndexedLog
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.compressed_event import plain_event
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, Query, parse_load_query, parse_query
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.group_addresses import UNCOUNTED, GroupAddresses, IndexedLogFile, assign_addresses
from headrace.sources.mysql.segments.row_counter import groups_within
from headrace.sources.mysql.segments.segment_reader import Segment
from headrace.sources.mysql.segments.transaction_labels import OpenTransaction, name_group
from headrace.sources.mysql.server.gtid import parse_gtid_set
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition, LogIdentity, file_number

_MIN_SEGMENT_BYTES: Final = 1 << 20
_MAX_SEGMENT_BYTES: Final = 64 << 20
_ORDERED_SEGMENT_BYTES: Final = 64 << 20
"""Determines the bounds of blocks with deduplication tokens. If it changed, a batch planned with the old value would count twice (see
decision 20).
"""
_POLL_S: Final = 1.0
_GATHER_POLL_S: Final = 0.05
_INERT: Final = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "XA ")
_NAME: Final = r"`(?:[^`]|``)+`|[\w$]+"
_CREATE: Final = re.compile(
    # The server writes such a statement in its own form, so nothing else needs to be parsed.
    rf"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?",
    re.IGNORECASE,
)
_STATEMENTS: Final = frozenset({event_types.QUERY_EVENT, event_types.QUERY_COMPRESSED_EVENT, event_types.EXECUTE_LOAD_QUERY_EVENT})


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """A statement in the log that is not a row change, and the position of its end."""

    query: Query
    position: BinlogPosition
    with_rows: bool = False
    """Whether its group also holds row changes, as with CREATE TABLE ... SELECT."""

    @property
    def creates_with_rows(self) -> TableName | None:
        """The table that it creates together with rows, if any."""
        found = _CREATE.match(self.query.statement)
        if found is None or not self.with_rows:
            return None
        first, second = (_unquoted(part) if part else None for part in found.group("first", "second"))
        return TableName(first or "", second) if second is not None else TableName(self.query.database, first or "")


class BatchPlanner:
    def __init__(self, relay: IndexedLog, limits: BatchLimits, *, mariadb: bool) -> None:
        self._relay, self._limits, self._mariadb = relay, limits, mariadb
        self._next_s = 0.0
        """When the next batch may end, by the monotonic clock."""

    def plan(self, start: BinlogPosition, until: BinlogPosition | None = None) -> BinlogPosition:
        """Return the end of the next batch from `start`, not after `until`; `start` itself if no events came for a while."""
        relay = self._relay
        deadline = time.monotonic() + self._limits.poll_seconds
        with relay.changed:
            while not self._beyond(start):
                if relay.failure is not None:
                    raise relay.failure
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return start
                relay.changed.wait(remaining)
        self._gather(start, time.monotonic() + self._limits.flush_seconds)
        with relay.changed:
            end = self._cut(start, until)
            # A batch that leaves changes behind, or that ends with a statement, is followed by the next one at once.
            took_all = end >= self._newest() and not self._holds_barrier(start, end)
            self._next_s = time.monotonic() + self._limits.latency_seconds if took_all else 0.0
            return end

    def _gather(self, start: BinlogPosition, until_s: float) -> None:
        """Wait for more changes, unless a batch is full, or ends with a statement anyway."""
        relay, until_s = self._relay, max(until_s, self._next_s)
        while (remaining := until_s - time.monotonic()) > 0:
            with relay.changed:
                if (
                    relay.failure is not None
                    or self._pending(start) >= self._limits.flush_bytes
                    or self._holds_barrier(start, self._newest())
                ):
                    return
            # The relay reports each transaction, of which there may be thousands a second.
            time.sleep(min(remaining, _GATHER_POLL_S))

    def _holds_barrier(self, start: BinlogPosition, end: BinlogPosition) -> bool:
        for log_file in self._relay.files:
            begin, stop = _range(log_file, start, end)
            if begin < stop and _barriers(_groups_within(log_file.groups, begin, stop)).any():
                return True
        return False

    def has_reached(self, position: BinlogPosition) -> bool:
        with self._relay.changed:
            return bool(self._relay.files) and self._newest() >= position

    def await_end(self, end: BinlogPosition, timeout_s: float = 3600.0) -> bool:
        """Wait until the log is indexed up to `end`, for a batch that runs again after a crash. Return whether it is."""
        relay = self._relay
        deadline = time.monotonic() + timeout_s
        with relay.changed:
            while not (relay.files and self._newest() >= end):
                if relay.failure is not None:
                    raise relay.failure
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                relay.changed.wait(min(remaining, _POLL_S))
            log_file = next((log_file for log_file in relay.files if log_file.name == end.file), None)
            if log_file is None or max(log_file.safe_end, log_file.start) < end.offset:
                # The next file has begun, and this one is shorter than when the batch was planned.
                raise log_lost(end, str(log_file.safe_end if log_file is not None else 0))
            return True

    def segments(self, start: BinlogPosition, end: BinlogPosition) -> list[Segment]:
        """Return the segments of [start, end), one per task."""
        ranges = self._file_ranges(start, end)
        total = sum(one.stop - one.begin for one in ranges)
        share = min(max(total // max(self._limits.parallelism, 1) + 1, _MIN_SEGMENT_BYTES), _MAX_SEGMENT_BYTES)
        return [segment for one in ranges for segment in self._split(one, share, start.epoch)]

    def ordered_segments(self, start: BinlogPosition, end: BinlogPosition) -> list[Segment]:
        """Return all of [start, end), cut by its bytes alone, so that a replay reads the same blocks."""
        return [segment for one in self._file_ranges(start, end) for segment in self._split(one, _ORDERED_SEGMENT_BYTES, start.epoch)]

    def file_segments(self, start: BinlogPosition, end: BinlogPosition) -> list[Segment]:
        """Return all of [start, end) as one segment per log file."""
        return [segment for one in self._file_ranges(start, end) for segment in self._split(one, one.stop - one.begin, start.epoch)]

    def holds_rows(self, segment: Segment) -> bool:
        """Whether a segment has rows to read. Log files without groups need no task."""
        with self._relay.changed:
            groups = next((log_file.groups for log_file in self._relay.files if log_file.name == segment.file), None)
        if groups is None or segment.inserts:
            return True
        first = int(np.searchsorted(groups[:, scan.END], segment.start, side="right"))
        # A group that a split cuts in two ends after the segment.
        last = int(np.searchsorted(groups[:, scan.END], segment.end)) + 1
        counting = groups[first:last][~np.isin(groups[first:last, scan.KIND], UNCOUNTED)]
        return bool(counting[:, scan.ROWS].any())

    def statements(self, start: BinlogPosition, end: BinlogPosition) -> list[LoggedStatement]:
        """Return the statements in [start, end) that are not row changes, in order."""
        found: list[LoggedStatement] = []
        for file_range in self._file_ranges(start, end):
            log_file, groups = file_range.log_file, file_range.groups
            for g in np.flatnonzero(_barriers(groups)).tolist():
                offset, shift = int(groups[g, scan.END]), int(file_range.addresses.shifts[g] + groups[g, scan.GROWTH])
                position = BinlogPosition(log_file.name, offset, epoch=start.epoch, shift=shift)
                with_rows = bool(groups[g, scan.ROWS])
                found.extend(
                    LoggedStatement(query, position, with_rows) for query in _queries(log_file, int(groups[g, scan.START]), offset)
                )
        return found

    def _file_ranges(self, start: BinlogPosition, end: BinlogPosition) -> list[_FileRange]:
        with self._relay.changed:
            ranges = [(log_file, *_range(log_file, start, end), log_file.groups, log_file.splits) for log_file in self._relay.files]
        found: list[_FileRange] = []
        shift, prepared = start.shift, start.prepared
        for log_file, begin, stop, groups, splits in ranges:
            if begin >= stop:
                continue
            inside = _groups_within(groups, begin, stop)
            addresses = assign_addresses(log_file, inside, shift if log_file.name == start.file else 0, prepared)
            prepared = addresses.prepared
            found.append(_FileRange(log_file, begin, stop, inside, splits, addresses))
        return found

    def _split(self, file_range: _FileRange, share: int, epoch: int) -> Iterator[Segment]:
        """Yield about equal segments of about `share` bytes, cut at the bounds nearest to the equal cuts."""
        begin, stop, log_file = file_range.begin, file_range.stop, file_range.log_file
        bounds = file_range.bounds
        pieces = -(-(stop - begin) // share)
        at = begin
        for i in range(1, pieces + 1):
            wanted = begin + (stop - begin) * i // pieces
            cut = stop if i == pieces else _nearest(bounds, wanted, stop)
            if cut > at:
                plain = Segment(str(log_file.path), log_file.name, at, cut, epoch, log_file.checksum)
                yield file_range.with_reader_details(plain, mariadb=self._mariadb)
                at = cut

    def _beyond(self, start: BinlogPosition) -> bool:
        return bool(self._relay.files) and self._newest() > start

    def _newest(self) -> BinlogPosition:
        log_file = self._relay.files[-1]
        return BinlogPosition(log_file.name, max(log_file.safe_end, log_file.start), epoch=self._relay.epoch)

    def _pending(self, start: BinlogPosition) -> int:
        return sum(max(stop - begin, 0) for begin, stop in (_range(log_file, start, self._newest()) for log_file in self._relay.files))

    def _cut(self, start: BinlogPosition, until: BinlogPosition | None = None) -> BinlogPosition:
        gtid = None if start.gtid == UNKNOWN_GTID else parse_gtid_set(start.gtid, mariadb=self._mariadb)
        room, rows_room = self._limits.flush_bytes, self._limits.flush_rows
        end = start
        for log_file in self._relay.files:
            if file_number(log_file.name) < file_number(start.file):
                continue
            if until is not None and file_number(log_file.name) > file_number(until.file):
                break
            begin = start.offset if log_file.name == start.file else log_file.start
            last = until.offset if until is not None and log_file.name == until.file else log_file.safe_end
            before = end if log_file.name == end.file else BinlogPosition(log_file.name, begin, prepared=end.prepared)
            taken, complete, rows = self._take(log_file, before, last, room, rows_room, at_least=int(end == start))
            if gtid is not None and len(taken):
                gtid = gtid.add_groups(taken[:, scan.GTID])
            if not complete and not len(taken):
                break
            offset = max(min(log_file.safe_end, last), begin) if complete else int(taken[-1, scan.END])
            addresses = assign_addresses(log_file, taken, before.shift, before.prepared)
            known = UNKNOWN_GTID if gtid is None else str(gtid)
            identity = self._identity_at(log_file, taken, offset, end)
            end = BinlogPosition(log_file.name, offset, known, start.epoch, start.ahead, addresses.shift, addresses.prepared, identity)
            room, rows_room = room - (offset - begin), rows_room - rows
            if not complete or room <= 0 or (self._limits.flush_rows and rows_room <= 0):
                break
        return end

    def _identity_at(
        self, log_file: IndexedLogFile, groups: npt.NDArray[np.int64], offset: int, before: BinlogPosition
    ) -> LogIdentity | None:
        last = None if before.identity is None else before.identity.transaction
        named = groups[groups[:, scan.GTID2] != 0]
        if len(named):
            last = describe_transaction(log_file, named[-1], name_group(named[-1], log_file.name, mariadb=self._mariadb))
        return identify(log_file, groups, offset, before.identity if before.file == log_file.name else None, last)

    def _take(
        self, log_file: IndexedLogFile, before: BinlogPosition, last: int, room: int, rows_room: int, at_least: int
    ) -> tuple[npt.NDArray[np.int64], bool, int]:
        """Return the groups of a file that fit the batch, whether the batch may continue after them, and the row changes (if counted)."""
        begin = before.offset
        groups = log_file.groups[np.searchsorted(log_file.groups[:, scan.END], begin, side="right") :]
        allowed = int(np.searchsorted(groups[:, scan.END], last, side="right"))
        fitting = min(max(int(np.searchsorted(groups[:, scan.END], begin + room, side="right")), at_least), allowed)
        barriers = np.flatnonzero(_barriers(groups[:fitting]))
        if len(barriers):
            fitting = int(barriers[0]) + 1
        taken, rows = groups[:fitting], 0
        if self._limits.flush_rows:
            count, rows = self._count(log_file, before, taken, rows_room)
            if count < min(at_least, len(taken)):
                # The first group alone exceeds the limit, so it is the whole batch.
                count, rows = at_least, rows_room
            taken = taken[:count]
        complete = len(taken) == len(groups) and not (len(barriers) and len(taken) == fitting)
        return taken, complete, rows

    def _count(self, log_file: IndexedLogFile, before: BinlogPosition, groups: npt.NDArray[np.int64], most: int) -> tuple[int, int]:
        """Return how many of the groups after a position hold at most `most` changes together, and how many changes they hold."""
        if not len(groups):
            return 0, 0
        begin, stop = before.offset, int(groups[-1, scan.END])
        file_range = _FileRange(
            log_file, begin, stop, groups, log_file.splits, assign_addresses(log_file, groups, before.shift, before.prepared)
        )
        segment = file_range.with_reader_details(
            Segment(str(log_file.path), log_file.name, begin, stop, 0, log_file.checksum), mariadb=self._mariadb
        )
        return groups_within(segment.pieces(), groups[:, scan.END], most, f"{log_file.path}:{begin}")


def log_lost(end: BinlogPosition, found: str) -> DefiniteError:
    return DefiniteError(
        f"the source lost a part of its log that was read before: a batch was planned up to {end}, but the log ends at {found}",
        place=str(end),
        hint="changes in the target may be lost at the source (sync_binlog = 1 prevents that); "
        "to start over, remove the state directory and the target tables",
    )


def _range(log_file: IndexedLogFile, start: BinlogPosition, end: BinlogPosition) -> tuple[int, int]:
    """Return the part of a log file that lies in [start, end)."""
    number = file_number(log_file.name)
    begin = start.offset if log_file.name == start.file else log_file.start
    stop = end.offset if log_file.name == end.file else log_file.safe_end
    if number < file_number(start.file) or number > file_number(end.file):
        return 0, 0
    return begin, stop


def _groups_within(groups: npt.NDArray[np.int64], begin: int, stop: int) -> npt.NDArray[np.int64]:
    """Return the groups that end in [begin, stop)."""
    ends = groups[:, scan.END]
    return groups[np.searchsorted(ends, begin, side="right") : np.searchsorted(ends, stop, side="right")]


def _barriers(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which groups hold statements that must be applied before anything after them is read."""
    kinds = groups[:, scan.KIND]
    held: npt.NDArray[np.bool_] = (kinds == scan.STATEMENT) | ((kinds == scan.PREPARED) & (groups[:, scan.STATEMENTS] != 0))
    return held


@dataclass(frozen=True, slots=True)
class _FileRange:
    """Bytes [begin, stop) of one file, the groups that end in them, and the addresses of those groups."""

    log_file: IndexedLogFile
    begin: int
    stop: int
    groups: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int64]
    addresses: GroupAddresses

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """The offsets at which it may be cut."""
        offsets = self.splits[:, scan.SPLIT_AT]
        owners = np.searchsorted(self.groups[:, scan.END], offsets)
        inside = (owners < len(self.groups)) & (offsets > self.begin)
        owner = self.groups[owners[inside]]
        counting = ~np.isin(owner[:, scan.KIND], UNCOUNTED) & (owner[:, scan.UNDONE] == 0)
        bounds = np.union1d(self.groups[:, scan.END], offsets[inside][counting])
        return bounds[(bounds > self.begin) & (bounds < self.stop)]

    def with_reader_details(self, segment: Segment, *, mariadb: bool) -> Segment:
        """Return a segment of this range with everything that its reader needs."""
        ends = self.groups[:, scan.END]
        first, last = int(np.searchsorted(ends, segment.start, side="right")), int(np.searchsorted(ends, segment.end))
        addresses = self.addresses
        skips = tuple(skip for skip in addresses.skips if segment.start <= skip.start < segment.end)
        inserts = tuple(insert for insert in addresses.inserts if segment.start <= insert.at < segment.end)
        needs_expansion = bool(self.groups[first : last + 1, scan.PACKED].any() or skips or inserts)
        shift, open_transaction = (int(addresses.shifts[first]) if first < len(ends) else addresses.shift), None
        if first < len(ends) and segment.start > self.groups[first, scan.START] and self.groups[first, scan.ROWS]:
            group = self.groups[first]
            open_transaction = OpenTransaction(
                int(group[scan.START]) + shift, name_group(group, segment.file, mariadb=mariadb), int(group[scan.COMMITTED])
            )
            at = int(np.searchsorted(self.splits[:, scan.SPLIT_AT], segment.start))
            shift += int(self.splits[at, scan.SPLIT_GROWTH])
        return replace(
            segment, shift=shift, needs_expansion=needs_expansion, skips=skips, inserts=inserts, open_transaction=open_transaction
        )


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _nearest(bounds: npt.NDArray[np.int64], wanted: int, stop: int) -> int:
    after = int(np.searchsorted(bounds, wanted))
    near = [int(bound) for bound in bounds[max(after - 1, 0) : after + 1]]
    return min(near, key=lambda bound: abs(bound - wanted), default=stop)


def _queries(log_file: IndexedLogFile, begin: int, stop: int) -> Iterator[Query]:
    """Return the statements of one group, except those that only delimit a transaction."""
    tail = CHECKSUM_SIZE if log_file.checksum else 0
    with log_file.path.open("rb") as file:
        at = begin
        while at < stop:
            file.seek(at)
            header = file.read(HEADER_SIZE)
            size = int.from_bytes(header[9:13], "little")
            if size < HEADER_SIZE:
                raise DefiniteError(
                    "the relay's file is damaged", place=f"{log_file.path}:{at}", hint="check the disk of the state directory"
                )
            if header[4] in _STATEMENTS:
                event = header + file.read(size - HEADER_SIZE - tail)
                query = _parse_statement(event, f"{log_file.name}:{at}")
                if not query.statement.upper().startswith(_INERT):
                    yield query
            at += size


def _parse_statement(event: bytes, place: str) -> Query:
    if event[4] == event_types.QUERY_COMPRESSED_EVENT:
        event = plain_event(memoryview(event), place)
    if event[4] == event_types.EXECUTE_LOAD_QUERY_EVENT:
        return parse_load_query(event[HEADER_SIZE:], place)
    return parse_query(event[HEADER_SIZE:], place)
