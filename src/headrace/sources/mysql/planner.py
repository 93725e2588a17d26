"""Cuts the mirrored log into batches and segments, by its index alone.

A batch ends on a group bound: at the last one within `flush_bytes` (at least one group), after `flush_seconds`, or right after a statement
that is not a change of rows, because such a statement is a barrier. Segments split a batch among tasks, on group bounds and, inside a large
transaction, on statement bounds. Given the same start and end, the segments cover the same bytes, whatever the cuts between them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.errors import DefiniteError
from headrace.sources.mysql import scan
from headrace.sources.mysql.events import CHECKSUM_SIZE, HEADER_SIZE, QUERY_EVENT, Query, parse_query
from headrace.sources.mysql.gtid import GtidSet, parse_gtid_set
from headrace.sources.mysql.origin import Limits
from headrace.sources.mysql.position import BinlogPosition, file_number
from headrace.sources.mysql.reader import Segment
from headrace.sources.mysql.relay import MirrorFile, Relay

__all__ = ["UNKNOWN_GTID", "Limits", "Planner", "Statement"]

UNKNOWN_GTID: Final = "unknown"
"""The GTID set of a position noted on a server too busy to tell."""

_MIN_SEGMENT_BYTES: Final = 1 << 20
_MAX_SEGMENT_BYTES: Final = 32 << 20
_POLL_S: Final = 1.0
_INERT = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in the log that is not a change of rows, and where it ends."""

    query: Query
    position: BinlogPosition


class Planner:
    """Plans batches over one relay."""

    def __init__(self, relay: Relay, limits: Limits, *, mariadb: bool) -> None:
        self._relay, self._limits, self._mariadb = relay, limits, mariadb

    def plan(self, start: BinlogPosition) -> BinlogPosition:
        """Where the next batch from `start` ends; `start` itself if nothing came for a while."""
        relay = self._relay
        deadline = time.monotonic() + _POLL_S
        with relay.changed:
            while not self._beyond(start):
                if relay.failure is not None:
                    raise relay.failure
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return start
                relay.changed.wait(remaining)
            gather_until = time.monotonic() + self._limits.flush_seconds
            while (remaining := gather_until - time.monotonic()) > 0:
                if relay.failure is not None or self._pending(start) >= self._limits.flush_bytes:
                    break
                relay.changed.wait(remaining)
            return self._cut(start)

    def await_end(self, end: BinlogPosition) -> None:
        """Wait until the relay has everything up to `end`, as when a planned batch is run again after a crash."""
        relay = self._relay
        with relay.changed:
            while not (relay.files and self._newest() >= end):
                if relay.failure is not None:
                    raise relay.failure
                relay.changed.wait(_POLL_S)

    def segments(self, start: BinlogPosition, end: BinlogPosition) -> list[Segment]:
        """The pieces of [start, end), each a task's work."""
        with self._relay.changed:
            pieces = [(mirror, *_range(mirror, start, end)) for mirror in self._relay.files]
        total = sum(max(stop - begin, 0) for _, begin, stop in pieces)
        share = min(max(total // max(self._limits.parallelism, 1) + 1, _MIN_SEGMENT_BYTES), _MAX_SEGMENT_BYTES)
        return [segment for mirror, begin, stop in pieces if begin < stop for segment in _split(mirror, begin, stop, share, start.epoch)]

    def statements(self, start: BinlogPosition, end: BinlogPosition) -> list[Statement]:
        """The statements in [start, end) that are not changes of rows, in order."""
        found: list[Statement] = []
        with self._relay.changed:
            pieces = [(mirror, *_range(mirror, start, end), mirror.groups) for mirror in self._relay.files]
        for mirror, begin, stop, groups in pieces:
            ends = groups[:, scan.END]
            for i in np.flatnonzero((groups[:, scan.KIND] == scan.STATEMENT) & (ends > begin) & (ends <= stop)).tolist():
                group_start = max(int(ends[i - 1]) if i else begin, begin)
                position = BinlogPosition(mirror.name, int(ends[i]), epoch=start.epoch)
                found.extend(Statement(query, position) for query in _queries(mirror, group_start, int(ends[i])))
        return found

    def _beyond(self, start: BinlogPosition) -> bool:
        return bool(self._relay.files) and self._newest() > start

    def _newest(self) -> BinlogPosition:
        mirror = self._relay.files[-1]
        return BinlogPosition(mirror.name, max(mirror.safe_end, mirror.start), epoch=self._relay.epoch)

    def _pending(self, start: BinlogPosition) -> int:
        return sum(max(stop - begin, 0) for begin, stop in (_range(mirror, start, self._newest()) for mirror in self._relay.files))

    def _cut(self, start: BinlogPosition) -> BinlogPosition:
        gtid = None if start.gtid == UNKNOWN_GTID else parse_gtid_set(start.gtid, mariadb=self._mariadb)
        room = self._limits.flush_bytes
        end = start
        for mirror in self._relay.files:
            if file_number(mirror.name) < file_number(start.file):
                continue
            begin = start.offset if mirror.name == start.file else mirror.start
            offset, gtid, room = _cut_file(mirror, begin, room, gtid)
            end = BinlogPosition(mirror.name, offset, UNKNOWN_GTID if gtid is None else str(gtid), start.epoch)
            if room <= 0:
                break
        return end


def _cut_file(mirror: MirrorFile, begin: int, room: int, gtid: GtidSet | None) -> tuple[int, GtidSet | None, int]:
    """How far into one file a batch goes, the GTIDs after it, and the room left (0: the batch ends here)."""
    ends = mirror.groups[:, scan.END]
    first = int(np.searchsorted(ends, begin, side="right"))
    last = max(int(np.searchsorted(ends, begin + room, side="right")), first + 1)
    barriers = np.flatnonzero(mirror.groups[first:last, scan.KIND] == scan.STATEMENT)
    if len(barriers):
        last = first + int(barriers[0]) + 1
    taken = mirror.groups[first:last]
    if gtid is not None and len(taken):
        gtid = gtid.add_groups(taken[:, [scan.GTID0, scan.GTID1, scan.GTID2]])
    if len(barriers) or last < len(mirror.groups):
        return int(ends[last - 1]), gtid, 0
    end = max(mirror.safe_end, begin)
    return end, gtid, room - (end - begin)


def _range(mirror: MirrorFile, start: BinlogPosition, end: BinlogPosition) -> tuple[int, int]:
    """The part of a mirror file that lies in [start, end)."""
    number = file_number(mirror.name)
    begin = start.offset if mirror.name == start.file else mirror.start
    stop = end.offset if mirror.name == end.file else mirror.safe_end
    if number < file_number(start.file) or number > file_number(end.file):
        return 0, 0
    return begin, stop


def _split(mirror: MirrorFile, begin: int, stop: int, share: int, epoch: int) -> Iterator[Segment]:
    bounds = np.union1d(mirror.groups[:, scan.END], mirror.splits)
    bounds = bounds[(bounds > begin) & (bounds < stop)]
    at = begin
    while at < stop:
        if stop - at <= share:
            cut = stop
        else:
            fitting = int(np.searchsorted(bounds, at + share, side="right"))
            index = fitting - 1 if fitting and bounds[fitting - 1] > at else fitting
            cut = int(bounds[index]) if index < len(bounds) else stop
        yield Segment(str(mirror.path), mirror.name, at, cut, epoch, mirror.checksum)
        at = cut


def _queries(mirror: MirrorFile, begin: int, stop: int) -> Iterator[Query]:
    """The statements of one group that do more than bound a transaction."""
    tail = CHECKSUM_SIZE if mirror.checksum else 0
    with mirror.path.open("rb") as file:
        at = begin
        while at < stop:
            file.seek(at)
            header = file.read(HEADER_SIZE)
            size = int.from_bytes(header[9:13], "little")
            if size < HEADER_SIZE:
                raise DefiniteError(
                    "the relay's file is damaged", place=f"{mirror.path}:{at}", hint="check the disk of the state directory"
                )
            if header[4] == QUERY_EVENT:
                query = parse_query(file.read(size - HEADER_SIZE)[: size - HEADER_SIZE - tail], f"{mirror.name}:{at}")
                if not query.statement.upper().startswith(_INERT):
                    yield query
            at += size
