"""Assigns version addresses to transaction groups; drops groups already applied and moves prepared XA rows to their commit.

The same groups from the same position get the same addresses, so a batch that is planned again after a crash has the same versions. An XA
COMMIT inserts the rows of the transaction it names, with the addresses that follow its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, parse_query
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.event_expander import InsertedRange, SkippedRange, find_rolled_back, map_plain
from headrace.sources.mysql.segments.group_gtids import named_xid, prepared_in
from headrace.sources.mysql.server.position import Prepared

UNCOUNTED: Final = (scan.PREPARED, scan.SKIPPED, scan.ROLLED_BACK)
"""Kinds of groups whose rows do not count at their own position. (Rows of non-transactional tables are never in a group that is rolled
back: both servers log them in separate groups.)
"""
_SPECIAL: Final = np.array([scan.PREPARED, scan.XA_COMMIT, scan.XA_ROLLBACK, scan.SKIPPED, scan.ROLLED_BACK])


class LogFile(Protocol):
    """The file that holds the groups."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def checksum(self) -> bool: ...


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


def assign_addresses(file: LogFile, groups: npt.NDArray[np.int64], shift: int, prepared: tuple[Prepared, ...]) -> GroupAddresses:
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
                    raise _unknown(statement, place)
                growths[g] += found.size
                path = str(file.path.with_name(found.file))
                inserts.append(InsertedRange(last, path, found.start, found.end, found.growth, found.checksum))
    sums = shift + np.cumsum(growths)
    shifts = np.concatenate((np.array([shift], dtype=np.int64), sums[:-1]))[: len(groups)]
    return GroupAddresses(shifts, int(sums[-1]) if len(sums) else shift, tuple(waiting.values()), tuple(skips), tuple(inserts))


def _event(file: LogFile, at: int) -> memoryview:
    """Return the event at an offset, without checksum."""
    size = int.from_bytes(_bytes(file, at, at + HEADER_SIZE)[9:13], "little")
    return _bytes(file, at, at + size)[: -CHECKSUM_SIZE if file.checksum else None]


def _bytes(file: LogFile, start: int, end: int) -> memoryview:
    with file.path.open("rb") as source:
        source.seek(start)
        return memoryview(source.read(end - start))


def _unknown(statement: str, place: str) -> DefiniteError:
    return DefiniteError(
        f"{statement} commits a transaction that was prepared before reading started, so its changes are not in what was read",
        place=place,
        hint="take a new snapshot while XA RECOVER shows no prepared transaction: remove the state directory and the target tables",
    )
