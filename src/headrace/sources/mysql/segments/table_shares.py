"""Assigns the tables of a batch to its tasks.

A sink that stores blocks as parts pays for each block, whatever its size. If every task read a range of the log, a batch of a hundred
tables would have a hundred blocks per task. So one task reads a table with few changes whole, and only tables with many changes are divided
by ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.sources.mysql.events.event_types import truncated
from headrace.sources.mysql.events.table_map import parse_table_name
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.event_expander import EventBuffer
from headrace.sources.mysql.segments.segment_reader import Segment

DIVIDED_BYTES: Final = 4 << 20
"""Tables whose row events take this much for each task are read by ranges: the cost of another block is small against theirs."""
_WINDOW_EVENTS: Final = 16_384
_MAX_MAPS: Final = 4_096
_ID_SLOTS: Final = 16_384


@dataclass(frozen=True, slots=True)
class TableShare(JsonRecord):
    """The tables of a batch that one task reads whole, and those that every task reads in its own segment only."""

    segments: tuple[Segment, ...]
    """The whole batch."""
    whole: tuple[TableName, ...]
    divided: tuple[TableName, ...]


def share_tables(sizes: Mapping[TableName, int], ranges: Sequence[int], batch: tuple[Segment, ...]) -> list[TableShare]:
    """Return the share of each task, so that all tasks read about as many bytes.

    `sizes`: the bytes of each table's row events. `ranges`: the bytes of each task's own segment.
    """
    limit, total = DIVIDED_BYTES * len(ranges), sum(ranges)
    largest_first = sorted(sizes, key=lambda name: (-sizes[name], str(name)))
    divided = tuple(name for name in largest_first if sizes[name] >= limit)
    divided_bytes = sum(sizes[name] for name in divided)
    loads = [divided_bytes * size / total for size in ranges]
    whole: list[list[TableName]] = [[] for _ in ranges]
    for name in largest_first[len(divided) :]:
        task = loads.index(min(loads))
        loads[task] += sizes[name]
        whole[task].append(name)
    return [TableShare(batch, tuple(names), divided) for names in whole]


def measure_tables(segments: Sequence[Segment]) -> dict[TableName, int]:
    """Return the bytes of each table's row events, also of tables that are not replicated."""
    sizes: defaultdict[TableName, int] = defaultdict(int)
    for segment in segments:
        for piece in segment.pieces():
            for name, size in _measure_piece(piece, segment.file):
                sizes[name] += size
    return dict(sizes)


def _measure_piece(piece: EventBuffer, file: str) -> Iterator[tuple[TableName, int]]:
    """Yield each table map's table and the bytes of its row events."""
    events = np.empty((_WINDOW_EVENTS, scan.INDEX_COLUMNS), dtype=np.int64)
    maps = np.zeros((_MAX_MAPS, 2), dtype=np.int64)
    ids = np.zeros((_ID_SLOTS, 2), dtype=np.int64)
    state = np.zeros(scan.INDEX_CELLS, dtype=np.int64)
    state[scan.I_POS] = piece.start
    totals = np.zeros(_MAX_MAPS, dtype=np.int64)
    while state[scan.I_POS] < piece.end:
        state[scan.I_EVENTS] = 0
        status = scan.index_rows(piece.buf, piece.end, 0, piece.checksum, events, maps, ids, state)
        if status not in (scan.OK, scan.NO_ROOM):
            raise truncated("binary log", file)
        found = events[: state[scan.I_EVENTS]]
        sizes = found[:, scan.IMAGES_END] - found[:, scan.COUNT_AT]
        totals += np.bincount(found[:, scan.MAP], weights=sizes, minlength=_MAX_MAPS).astype(np.int64)
    for m in np.flatnonzero(totals).tolist():
        start, size = maps[m].tolist()
        yield parse_table_name(piece.buf[start : start + size].tobytes(), file), int(totals[m])
