"""Assigns version addresses to transaction groups; drops groups already applied and moves prepared XA rows to their commit.

The same groups from the same position get the same addresses, so a batch that is planned again after a crash has the same versions. An XA
COMMIT inserts the rows of the transaction it names, with the addresses that follow its own. Rare groups that the scan leaves to Python
are completed here: tagged GTIDs, and XA transactions inside compressed events.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.compressed_event import inner_events
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, parse_query, truncated
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.event_expander import InsertedRange, SkippedRange, find_rolled_back, map_plain
from headrace.sources.mysql.server.gtid import GtidSet, MariaDBGtidPosition, tag_number
from headrace.sources.mysql.server.position import Prepared

UNCOUNTED: Final = (scan.PREPARED, scan.SKIPPED, scan.ROLLED_BACK)
"""Kinds of groups whose rows do not count at their own position. (Rows of non-transactional tables are never in a group that is rolled
back: both servers log them in separate groups.)
"""
_SPECIAL: Final = np.array([scan.PREPARED, scan.XA_COMMIT, scan.XA_ROLLBACK, scan.SKIPPED, scan.ROLLED_BACK])
_XID: Final = re.compile(r"XA\s+\w+\s+(X'[0-9A-F]*',X'[0-9A-F]*',-?[0-9]+)", re.IGNORECASE)
_START_OVER: Final = "remove the state directory and the target tables"
_PLAIN: Final = np.array([scan.DATA, scan.STATEMENT, scan.ROLLED_BACK])


@dataclass(slots=True)
class IndexedLogFile:
    """One log file and its index."""

    name: str
    path: Path
    start: int
    """The offset from which the copy holds bytes."""
    checksum: bool = False
    groups: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, scan.GROUP_COLUMNS), dtype=np.int64))
    splits: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, scan.SPLIT_COLUMNS), dtype=np.int64))
    safe_end: int = 0
    """No group is open here: the end of the last group and of the events after it that belong to no group."""
    created: int = 0
    """When the server created the file, in seconds since 1970; 0 until its format description has arrived."""

    @property
    def reached(self) -> int:
        return max(self.safe_end, self.start)


class AppliedGroups:
    """Marks the groups that were already applied, in log order: those in a GTID set that is ahead of the start of reading.

    A GTID set is no single position in a server's log, because transactions of several servers or domains have a different order in each
    log. So reading starts where the set is surely not behind, and every group in the set is marked here before the planner sees it. A
    marked group yields no split and no statement, and adds nothing to the set. A prepared XA transaction keeps its rows, because its commit
    may come later. A commit that was already applied becomes a rollback: it ends the transaction without effect.
    """

    def __init__(self, applied: GtidSet) -> None:
        self._applied = applied
        self._passed: set[int] = set()

    def mark(self, groups: npt.NDArray[np.int64], place: str) -> None:
        gtids = groups[:, scan.GTID]
        held = self._applied.holds(gtids)
        if isinstance(self._applied, MariaDBGtidPosition):
            self._check_order(gtids, held, place)
        kinds = groups[:, scan.KIND]
        plain = np.isin(kinds, _PLAIN)
        if (plain & (gtids[:, 2] == 0)).any():
            raise DefiniteError(
                "a transaction in the source's log has no GTID, so it is unknown whether it was already applied",
                place=place,
                hint=f"start at a FILE:OFFSET; to start over, {_START_OVER}",
            )
        groups[held & (kinds == scan.XA_COMMIT), scan.KIND] = scan.XA_ROLLBACK
        groups[held & plain, scan.ROWS] = 0
        groups[held & plain, scan.KIND] = scan.SKIPPED
        groups[held, scan.GTID] = 0

    def _check_order(self, gtids: npt.NDArray[np.int64], held: npt.NDArray[np.bool_], place: str) -> None:
        """Raise if a domain's sequence numbers decrease: they show what was applied only while they rise along the log."""
        named = gtids[:, 2] != 0
        for domain in np.unique(gtids[named, 0]).tolist():
            ours = held[named & (gtids[:, 0] == domain)]
            late = np.flatnonzero(~ours)
            if ours.any() and (domain in self._passed or (len(late) and ours[late[0] :].any())):
                raise DefiniteError(
                    f"the GTIDs of domain {domain} go back in the source's log, so they do not show what was already applied",
                    place=place,
                    hint=f"set gtid_strict_mode = ON on all servers; to start over, {_START_OVER}",
                )
            if len(late):
                self._passed.add(domain)


@dataclass(frozen=True, slots=True)
class GroupAddresses:
    """The addresses of consecutive groups of one file, and the ranges to skip and to insert."""

    shifts: npt.NDArray[np.int64]
    """The distance of addresses from offsets before each group."""
    shift: int
    """The same after the last group."""
    prepared: tuple[Prepared, ...]
    skips: tuple[SkippedRange, ...] = ()
    inserts: tuple[InsertedRange, ...] = ()


def assign_addresses(file: IndexedLogFile, groups: npt.NDArray[np.int64], shift: int, prepared: tuple[Prepared, ...]) -> GroupAddresses:
    """Assign addresses to groups that start with this shift and these prepared transactions."""
    growths = groups[:, scan.GROWTH].copy()
    waiting = {one.xid: one for one in prepared}
    skips: list[SkippedRange] = []
    inserts: list[InsertedRange] = []
    for g in np.flatnonzero(np.isin(groups[:, scan.KIND], _SPECIAL) | (groups[:, scan.UNDONE] != 0)).tolist():
        start, end, last, kind, growth = groups[g, [scan.START, scan.END, scan.LAST_AT, scan.KIND, scan.GROWTH]].tolist()
        place = f"{file.name}:{last}"
        if kind in UNCOUNTED:
            skips.append(SkippedRange(start, end, growth))
        elif groups[g, scan.UNDONE]:
            piece = map_plain(str(file.path), file.name, start, end, file.checksum, 0)
            skips += find_rolled_back(piece.buf.data[piece.start : piece.end], start, file.checksum, place)
        if kind == scan.PREPARED:
            xid = prepared_in(_event(file, last), place)
            if xid is not None:
                waiting[xid] = Prepared(xid, file.name, start, end, growth, file.checksum)
        elif kind in (scan.XA_COMMIT, scan.XA_ROLLBACK):
            statement = parse_query(bytes(_event(file, last)[HEADER_SIZE:]), place).statement
            found = waiting.pop(named_xid(statement, place), None)
            if kind == scan.XA_COMMIT:
                if found is None:
                    what = "commits a transaction that was prepared before reading started, so its changes are not in what was read"
                    hint = f"take a new snapshot while XA RECOVER shows no prepared transaction: {_START_OVER}"
                    raise DefiniteError(f"{statement} {what}", place=place, hint=hint)
                growths[g] += found.size
                path = str(file.path.with_name(found.file))
                inserts.append(InsertedRange(last, path, found.start, found.end, found.growth, found.checksum))
    sums = shift + np.cumsum(growths)
    shifts = np.concatenate((np.array([shift], dtype=np.int64), sums[:-1]))[: len(groups)]
    return GroupAddresses(shifts, int(sums[-1]) if len(sums) else shift, tuple(waiting.values()), tuple(skips), tuple(inserts))


def _event(file: IndexedLogFile, at: int) -> memoryview:
    size = int.from_bytes(_bytes(file, at, at + HEADER_SIZE)[9:13], "little")
    return _bytes(file, at, at + size)[: -CHECKSUM_SIZE if file.checksum else None]


def _bytes(file: IndexedLogFile, start: int, end: int) -> memoryview:
    with file.path.open("rb") as source:
        source.seek(start)
        return memoryview(source.read(end - start))


def complete(
    groups: npt.NDArray[np.int64], event_at: Callable[[int], memoryview], name: str
) -> tuple[npt.NDArray[np.int64], DefiniteError | None]:
    """Resolve the groups that the scan left open. Return the groups up to the first failure, and that failure if there is one.

    `event_at` returns the event at an offset of the file, without checksum.
    """
    open_ones = (groups[:, scan.TAG] != 0) | ((groups[:, scan.PACKED] != 0) & (groups[:, scan.KIND] == scan.DATA))
    for g in np.flatnonzero(open_ones).tolist():
        try:
            _complete(groups[g], event_at, name)
        except DefiniteError as error:
            return groups[:g], error
    return groups, None


def _complete(group: npt.NDArray[np.int64], event_at: Callable[[int], memoryview], name: str) -> None:
    tag_at, last_at = int(group[scan.TAG]), int(group[scan.LAST_AT])
    if tag_at:
        source, number, tag, committed = parse_tagged_gtid(bytes(event_at(tag_at)[HEADER_SIZE:]), f"{name}:{tag_at}")
        group[scan.GTID0 : scan.GTID2 + 1] = (*(np.frombuffer(source, dtype=">i8").tolist()), number)
        group[scan.TAG], group[scan.COMMITTED] = tag_number(tag), committed
    if group[scan.PACKED] and group[scan.KIND] == scan.DATA:
        event = event_at(last_at)
        if event[4] == event_types.TRANSACTION_PAYLOAD_EVENT and prepared_in(event, f"{name}:{last_at}") is not None:
            group[scan.KIND] = scan.PREPARED


def parse_tagged_gtid(body: bytes, place: str) -> tuple[bytes, int, str, int]:
    """Return source, number, tag and commit time (microseconds) from the body of a GTID_TAGGED event, without checksum.

    The format is the server's own serialization: numbered fields in rising order, integers whose first byte holds their length.
    """
    source, number, tag, committed = b"", 0, "", 0
    try:
        at = 0
        for _ in ("version", "size", "last field that must be known"):
            _, at = _integer(body, at)
        while at < len(body):
            field, at = _integer(body, at)
            if field == 1:
                octets = []
                for _ in range(16):
                    octet, at = _integer(body, at)
                    octets.append(octet)
                source = bytes(octets)
            elif field == 3:
                size, at = _integer(body, at)
                tag = body[at : at + size].decode("ascii")
                at += size
            elif field <= 11:
                value, at = _integer(body, at)
                number = value >> 1 if field == 2 else number
                committed = value if field == 6 else committed
            else:
                break
    except (IndexError, ValueError) as error:
        raise truncated("GTID_TAGGED", place) from error
    if len(source) != 16 or number <= 0:
        raise truncated("GTID_TAGGED", place)
    return source, number, tag, committed


def _integer(body: bytes, at: int) -> tuple[int, int]:
    """The number of low one bits of the first byte is the number of further bytes; the other bits are the number, low bytes first."""
    more = 0
    while more < 8 and body[at] >> more & 1:
        more += 1
    if at + 1 + more > len(body):
        raise IndexError
    return int.from_bytes(body[at : at + 1 + more], "little") >> min(more + 1, 8), at + 1 + more


def prepared_in(event: memoryview, place: str) -> str | None:
    """Return the xid that a payload or an XA_PREPARE event leaves prepared, if any."""
    if event[4] != event_types.TRANSACTION_PAYLOAD_EVENT:
        return _prepared_xid(bytes(event[HEADER_SIZE:]), place)
    last = b""
    for n, inner in enumerate(inner_events(event[HEADER_SIZE:], place)):
        # The first event shows whether it is an XA transaction. Others need not be decompressed further.
        if n == 0 and (
            inner[4] != event_types.QUERY_EVENT or not parse_query(bytes(inner[HEADER_SIZE:]), place).statement.startswith("XA START ")
        ):
            return None
        last = bytes(inner) if inner[4] == event_types.XA_PREPARE_EVENT else b""
    return _prepared_xid(last[HEADER_SIZE:], place) if last else None


def _prepared_xid(body: bytes, place: str) -> str | None:
    """Return the xid of an XA_PREPARE event; None if it was committed in one phase."""
    sizes = [int.from_bytes(body[at : at + 4], "little") for at in (5, 9)]
    if len(body) < 13 + sum(sizes):
        raise truncated("XA_PREPARE", place)
    if body[0]:
        return None
    form = int.from_bytes(body[1:5], "little", signed=True)
    middle, end = 13 + sizes[0], 13 + sum(sizes)
    return f"X'{body[13:middle].hex()}',X'{body[middle:end].hex()}',{form}"


def named_xid(statement: str, place: str) -> str:
    """Return the xid in an XA COMMIT or XA ROLLBACK statement, as the servers log it."""
    match = _XID.match(statement)
    if match is None:
        raise truncated("XA QUERY", place)
    return match[1].lower().replace("x'", "X'")
