"""Counting the changes in a piece of log without decoding them, so that a batch can be cut by rows.

Counts are of all tables, replicated or not: the planner knows no schemas. An event whose rows cannot be stepped over (a type of column
nobody can read, or damage, which the reader reports with its place) counts as one change.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql import images, scan
from headrace.sources.mysql.storage import describe_storage
from headrace.sources.mysql.tablemap import parse_table_map

_WINDOW_EVENTS: Final = 4_096
_MAX_MAPS: Final = 4_096
_ID_SLOTS: Final = 16_384


def groups_within(path: Path, checksum: bool, begin: int, ends: npt.NDArray[np.int64], most: int) -> tuple[int, int]:
    """How many of the groups that follow `begin` and end at `ends` hold at most `most` changes together, and how many they hold."""
    if not len(ends):
        return 0, 0
    totals = np.zeros(len(ends), dtype=np.int64)
    base = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), int(ends[-1]) - base, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=base)
    counter = _Counter(np.frombuffer(mapped, dtype=np.uint8), base, begin, checksum, f"{path}:{begin}")
    while not counter.finished:
        for offset, changes in counter.step():
            totals[np.searchsorted(ends, offset, side="right")] += changes
        if totals.sum() > most:
            break
    sums = np.cumsum(totals)
    # Groups beyond the last one looked at have no count yet, but the sum up to them is above `most` already.
    fitting = int(np.searchsorted(sums, most, side="right"))
    return fitting, int(sums[fitting - 1]) if fitting else 0


class _Counter:
    """One pass over mapped log, a window of events at a time."""

    def __init__(self, buf: npt.NDArray[np.uint8], base: int, begin: int, checksum: bool, place: str) -> None:
        self._buf, self._base, self._checksum, self._place = buf, base, checksum, place
        self._events = np.empty((_WINDOW_EVENTS, scan.INDEX_COLUMNS), dtype=np.int64)
        self._maps = np.zeros((_MAX_MAPS, 2), dtype=np.int64)
        self._ids = np.zeros((_ID_SLOTS, 2), dtype=np.int64)
        self._tables: list[npt.NDArray[np.int32] | None] = []
        self._state = np.zeros(4, dtype=np.int64)
        self._state[scan.I_POS] = begin - base

    @property
    def finished(self) -> bool:
        return int(self._state[scan.I_POS]) >= len(self._buf)

    def step(self) -> list[tuple[int, int]]:
        """Offset and number of changes of each row event in the next window."""
        self._state[scan.I_EVENTS] = 0
        status = scan.index_rows(self._buf, len(self._buf), self._base, self._checksum, self._events, self._maps, self._ids, self._state)
        if status not in (scan.OK, scan.NO_ROOM):
            raise DefiniteError("the changes in the log cannot be counted", place=self._place, hint="run without --flush-rows")
        for m in range(len(self._tables), int(self._state[scan.I_MAPS])):
            self._tables.append(self._table(m))
        return [self._count(event) for event in self._events[: self._state[scan.I_EVENTS]].tolist()]

    def _count(self, event: list[int]) -> tuple[int, int]:
        table = self._tables[event[scan.MAP]]
        if table is None:
            return event[scan.EVENT_AT], 1
        changes = images.count_changes(self._buf, event[scan.COUNT_AT], event[scan.IMAGES_END], event[scan.CHANGE], table)
        return event[scan.EVENT_AT], max(int(changes), 1)

    def _table(self, m: int) -> npt.NDArray[np.int32] | None:
        start, size = self._maps[m].tolist()
        try:
            return describe_storage(parse_table_map(self._buf[start : start + size].tobytes(), self._place))
        except DefiniteError:
            # A map nobody can read: if the table is replicated, the reader says so, with the place.
            return None
