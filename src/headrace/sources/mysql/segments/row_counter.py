"""Counts row changes without decoding them, so that a batch can be cut by rows.

It counts all tables, replicated or not: the planner has no schemas. An event whose rows cannot be parsed (an unknown column type, or
damage, which the reader reports with its place) counts as one change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.kernels import row_images, scan
from headrace.sources.mysql.rows.column_layout import describe_storage
from headrace.sources.mysql.segments.event_expander import EventBuffer

_WINDOW_EVENTS: Final = 4_096
_MAX_MAPS: Final = 4_096
_ID_SLOTS: Final = 16_384


def groups_within(pieces: Iterator[EventBuffer], ends: npt.NDArray[np.int64], most: int, place: str) -> tuple[int, int]:
    """Return how many of the groups in `pieces`, which end at `ends`, hold at most `most` changes together, and their changes."""
    if not len(ends):
        return 0, 0
    totals = np.zeros(len(ends), dtype=np.int64)
    for piece in pieces:
        counter = _Counter(piece, place)
        while not counter.finished and totals.sum() <= most:
            for offset, changes in counter.step():
                totals[np.searchsorted(ends, offset, side="right")] += changes
        if totals.sum() > most:
            break
    sums = np.cumsum(totals)
    # Groups after the last parsed one have no count yet, but the sum before them already exceeds `most`.
    fitting = int(np.searchsorted(sums, most, side="right"))
    return fitting, int(sums[fitting - 1]) if fitting else 0


class _Counter:
    def __init__(self, piece: EventBuffer, place: str) -> None:
        self._piece, self._buf, self._place = piece, piece.buf, place
        self._events = np.empty((_WINDOW_EVENTS, scan.INDEX_COLUMNS), dtype=np.int64)
        self._maps = np.zeros((_MAX_MAPS, 2), dtype=np.int64)
        self._ids = np.zeros((_ID_SLOTS, 2), dtype=np.int64)
        self._tables: list[npt.NDArray[np.int32] | None] = []
        self._state = np.zeros(scan.INDEX_CELLS, dtype=np.int64)
        self._state[scan.I_POS] = piece.start

    @property
    def finished(self) -> bool:
        return int(self._state[scan.I_POS]) >= self._piece.end

    def step(self) -> list[tuple[int, int]]:
        """Return offset and number of changes of each row event in the next window."""
        self._state[scan.I_EVENTS] = 0
        piece = self._piece
        status = scan.index_rows(self._buf, piece.end, 0, piece.checksum, self._events, self._maps, self._ids, self._state)
        if status not in (scan.OK, scan.NO_ROOM):
            raise DefiniteError("the changes in the log cannot be counted", place=self._place, hint="run without --flush-rows")
        for m in range(len(self._tables), int(self._state[scan.I_MAPS])):
            self._tables.append(self._table(m))
        events = self._events[: self._state[scan.I_EVENTS]]
        _, places = piece.locate(events[:, scan.PLACE])
        return [(place, self._count(event)) for place, event in zip(places.tolist(), events.tolist(), strict=True)]

    def _count(self, event: list[int]) -> int:
        table = self._tables[event[scan.MAP]]
        if table is None:
            return 1
        changes = row_images.count_changes(self._buf, event[scan.COUNT_AT], event[scan.IMAGES_END], event[scan.CHANGE], table)
        return max(int(changes), 1)

    def _table(self, m: int) -> npt.NDArray[np.int32] | None:
        start, size = self._maps[m].tolist()
        try:
            return describe_storage(parse_table_map(self._buf[start : start + size].tobytes(), self._place))
        except DefiniteError:
            # The map is unreadable. If the table is replicated, the reader reports it with its place.
            return None
