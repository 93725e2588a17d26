"""Expands a segment into plain events, with the addresses they would have in a log without compression.

Compressed events hold more row images than bytes, so their offsets cannot number the images. Instead, an image's *address* is the offset it
would have if every compressed event before it in the file, from the start of reading, were decompressed: the offset plus the *shift*. Event
headers contain the plain sizes, so the planner knows every segment's shift without decompressing, and reading a segment again gives the
same addresses. The rows of an XA transaction, which precede its XA COMMIT, take the addresses after the start of that statement, as if they
had been logged there. So versions follow the commit order, and a snapshot taken between the two halves has a lower version.

Buffers are cut on event bounds and hold all table maps that their row events need, so memory is bounded by the largest event.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.compressed_event import event_size, inner_events, plain_event
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, parse_query, truncated
from headrace.sources.mysql.segments.partial_json_update import plain_update

_PIECE_BYTES: Final = 8 << 20
_GTIDS: Final = frozenset(
    {event_types.GTID_EVENT, event_types.ANONYMOUS_GTID_EVENT, event_types.GTID_TAGGED_EVENT, event_types.MARIADB_GTID_EVENT}
)
_ROWS: Final = frozenset({23, 24, 25, 30, 31, 32})
_STATEMENT_END: Final = 1
_IN_PAYLOAD: Final = ("BEGIN", "COMMIT", "SAVEPOINT", "XA START ", "XA END ")
_SAVEPOINT, _ROLLBACK_TO = "SAVEPOINT ", "ROLLBACK TO "


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Events inside a segment that are skipped: bytes [start, end), which would grow by `growth` (-1: not known yet)."""

    start: int
    end: int
    growth: int = -1


@dataclass(frozen=True, slots=True)
class InsertedRange:
    """Bytes [start, end) of another file range, whose events count at the position of the event at `at`."""

    at: int
    path: str
    start: int
    end: int
    growth: int
    checksum: bool
    crc: str = ""
    """See `Segment.crc`."""


@dataclass(frozen=True, slots=True)
class EventBuffer:
    """Plain events in buf[start:end)."""

    buf: npt.NDArray[np.uint8]
    start: int
    end: int
    checksum: bool
    positions: npt.NDArray[np.int64] | None
    """The start of each event in `buf`, if addresses are not simply positions plus `base`."""
    addresses: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """The offset of each event in the log file. For an event inside a compressed one: the offset of the compressed one."""
    base: int = 0

    def locate(self, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if self.positions is None:
            return positions + (self.base + int(self.addresses[0])), positions + self.base
        at = np.searchsorted(self.positions, positions)
        return self.addresses[at], self.places[at]


def map_plain(path: str, name: str, start: int, end: int, checksum: bool, shift: int) -> EventBuffer:
    """Map a range of a file as one buffer, without copying. `shift`: the distance of its addresses from its offsets."""
    base = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if end > size:
            raise truncated("binary log", f"{name}:{size}")
        # numpy requires a writable mapping; nothing writes to it.
        mapped = mmap.mmap(file.fileno(), end - base, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=base)
    shifts = np.array([shift], dtype=np.int64)
    return EventBuffer(np.frombuffer(mapped, dtype=np.uint8), start - base, end - base, checksum, None, shifts, shifts, base)


class EventExpander:
    def __init__(self, path: str, name: str, start: int, end: int, checksum: bool, shift: int) -> None:
        self._path, self._name, self._start, self._end, self._checksum = path, name, start, end, checksum
        self._shift = shift
        self._maps: dict[bytes, tuple[bytes, int, int]] = {}
        self._clear()

    def pieces(self, skips: tuple[SkippedRange, ...] = (), inserts: tuple[InsertedRange, ...] = ()) -> Iterator[EventBuffer]:
        """Yield the plain events, without `skips` and with `inserts`."""
        skipped = {skip.start: skip for skip in skips}
        inserted = {insert.at: insert for insert in inserts}
        view = self._view(self._path, self._start, self._end, self._checksum)
        at = self._start
        while at < self._end:
            if at in skipped:
                self._shift += self._growth(view, skipped[at])
                at = skipped[at].end
                continue
            if at in inserted:
                yield from self._insert(inserted[at])
            event = self._event(view, at - self._start, self._checksum, at)
            size = event_size(event)
            before = self._shift
            yield from self._plain(event[: size - _tail(self._checksum)], at + before, at, size)
            at += size
        if self._out:
            yield self._piece()

    def _insert(self, insert: InsertedRange) -> Iterator[EventBuffer]:
        view = self._view(insert.path, insert.start, insert.end, insert.checksum)
        origin = self._shift
        at = 0
        rolled_back = find_rolled_back(view, 0, insert.checksum, f"{self._name}:{insert.at}")
        while at < len(view):
            event = self._event(view, at, insert.checksum, insert.at)
            size = event_size(event)
            # The statement that commits the transaction has its own GTID.
            if event[4] not in _GTIDS and not any(skip.start <= at < skip.end for skip in rolled_back):
                address = insert.at + self._shift + at
                yield from self._plain(event[: size - _tail(insert.checksum)], address, insert.at, size)
            at += size
        self._shift = origin + insert.end - insert.start + insert.growth

    def _growth(self, view: memoryview, skip: SkippedRange) -> int:
        if skip.growth >= 0:
            return skip.growth
        at, growth = skip.start - self._start, 0
        while at < skip.end - self._start:
            event = self._event(view, at, self._checksum, self._start + at)
            if event_types.QUERY_COMPRESSED_EVENT <= event[4] <= 171:
                plain = plain_event(event[: len(event) - _tail(self._checksum)], f"{self._name}:{self._start + at}")
                growth += max(len(plain) - len(event), 0)
            at += len(event)
        return growth

    def _plain(self, event: memoryview, address: int, place: int, size: int) -> Iterator[EventBuffer]:
        """Add an event, given without checksum, that occupies `size` bytes of the log; yield full buffers."""
        kind = event[4]
        where = f"{self._name}:{place}"
        if kind == event_types.TRANSACTION_PAYLOAD_EVENT:
            inside = 0
            for inner in inner_events(event[HEADER_SIZE:], where):
                self._check_inner(inner, where)
                yield from self._add(self._resolved(inner, where), address + inside, place)
                inside += len(inner)
            self._shift += max(inside - size, 0)
        elif event_types.QUERY_COMPRESSED_EVENT <= kind <= 171:
            plain = plain_event(event, where)
            yield from self._add(plain, address, place)
            self._shift += max(len(plain) - size, 0)
        else:
            yield from self._add(self._resolved(event, where), address, place)

    def _resolved(self, event: memoryview, where: str) -> bytes:
        """Return the event's bytes with the size that they have without checksum. A partial update becomes a full one."""
        if event[4] == event_types.PARTIAL_UPDATE_ROWS_EVENT:
            table_id = bytes(event[HEADER_SIZE : HEADER_SIZE + 6])
            if table_id not in self._maps:
                raise DefiniteError("a row event has no table map before it", place=where)
            return plain_update(event, self._maps[table_id][0][HEADER_SIZE + 8 :], where)
        head = bytearray(event)
        head[9:13] = len(event).to_bytes(4, "little")
        return bytes(head)

    def _check_inner(self, event: memoryview, where: str) -> None:
        """Raise if a payload holds anything but row changes: the planner has not seen its content."""
        if event[4] == event_types.QUERY_EVENT:
            query = parse_query(bytes(event[HEADER_SIZE:]), where)
            if not query.statement.upper().startswith(_IN_PAYLOAD):
                raise DefiniteError(
                    f"a compressed transaction holds a statement: {query.statement[:200]}",
                    place=where,
                    hint="SET GLOBAL binlog_transaction_compression = OFF on the source and report it with the server's version",
                )

    def _add(self, event: bytes, address: int, place: int) -> Iterator[EventBuffer]:
        kind = event[4]
        if kind == event_types.TABLE_MAP_EVENT:
            self._maps[event[HEADER_SIZE : HEADER_SIZE + 6]] = event, address, place
        self._put(event, address, place)
        if kind in _ROWS and int.from_bytes(event[HEADER_SIZE + 6 : HEADER_SIZE + 8], "little") & _STATEMENT_END:
            self._maps.clear()
        if len(self._out) >= _PIECE_BYTES:
            yield self._piece()
            for one in self._maps.values():
                self._put(*one)

    def _put(self, event: bytes, address: int, place: int) -> None:
        self._positions.append(len(self._out))
        self._addresses.append(address)
        self._places.append(place)
        self._out += event

    def _piece(self) -> EventBuffer:
        positions, addresses, places = (np.array(found, dtype=np.int64) for found in (self._positions, self._addresses, self._places))
        buf = np.frombuffer(self._out, dtype=np.uint8)
        self._clear()
        return EventBuffer(buf, 0, len(buf), False, positions, addresses, places)

    def _clear(self) -> None:
        self._out = bytearray()
        self._positions: list[int] = []
        self._addresses: list[int] = []
        self._places: list[int] = []

    def _view(self, path: str, start: int, end: int, checksum: bool) -> memoryview:
        piece = map_plain(path, self._name, start, end, checksum, 0)
        return piece.buf.data[piece.start : piece.end]

    def _event(self, view: memoryview, at: int, checksum: bool, place: int) -> memoryview:
        size = event_size(view, at) if at + HEADER_SIZE <= len(view) else 0
        if size < HEADER_SIZE + _tail(checksum) or at + size > len(view):
            raise truncated("binary log", f"{self._name}:{place}")
        return view[at : at + size]


def _tail(checksum: bool) -> int:
    return CHECKSUM_SIZE if checksum else 0


def find_rolled_back(view: memoryview, base: int, checksum: bool, place: str) -> tuple[SkippedRange, ...]:
    """Return the rolled back events: those between each savepoint and the last ROLLBACK TO it. `base` is the offset of view[0].

    MariaDB logs them, with the ROLLBACK TO, if it cannot truncate the transaction in its cache.
    """
    savepoints: dict[str, int] = {}
    rolled_back: list[SkippedRange] = []
    at = 0
    while at + HEADER_SIZE <= len(view):
        size = event_size(view, at)
        if size < HEADER_SIZE + _tail(checksum) or at + size > len(view):
            raise truncated("binary log", place)
        if view[at + 4] == event_types.QUERY_EVENT:
            statement = parse_query(bytes(view[at + HEADER_SIZE : at + size - _tail(checksum)]), place).statement
            if statement.upper().startswith(_SAVEPOINT):
                savepoints[_savepoint(statement[len(_SAVEPOINT) :])] = base + at + size
            elif statement.upper().startswith(_ROLLBACK_TO):
                start = savepoints.get(_savepoint(statement[len(_ROLLBACK_TO) :]))
                if start is None:
                    raise DefiniteError(f"{statement} returns to a savepoint that is not in its transaction", place=place)
                # Ranges rolled back inside this one are part of it.
                rolled_back = [skip for skip in rolled_back if skip.start < start] + [SkippedRange(start, base + at)]
        at += size
    return tuple(skip for skip in rolled_back if skip.start < skip.end)


def _savepoint(name: str) -> str:
    """Return a savepoint's name, which is case-insensitive."""
    text = name.strip()
    return (text[1:-1].replace("``", "`") if text.startswith("`") else text).casefold()
