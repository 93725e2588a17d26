"""Chooses which part of a table's log is read next: pure arithmetic of times.

A window lies in one generation of streams and ends before the confidence time. Microseconds are not cut, so a window holds all rows of a
`cdc$time` or none. Windows grow fourfold while they hold few rows and shrink when they hold many, so an old generation without changes
costs a few windows regardless of its age.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.sources.scylla.position import StreamPosition

FIRST_US: Final = 60_000_000
"""The length of the first window while a pipe catches up."""
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of a generation with `after < cdc$time <= until`, in microseconds."""

    generation: int
    after: int
    until: int

    @property
    def length(self) -> int:
        return self.until - self.after

    @property
    def end(self) -> StreamPosition:
        """The position after reading it."""
        return StreamPosition(self.generation, self.until, self.after)


def start_us(generation: int) -> int:
    """Return the first microsecond of a generation."""
    return generation * 1000


def generation_at(generations: Sequence[int], time: int) -> int | None:
    """Return the generation at a microsecond; None if that is before the first. `generations` are ascending."""
    found = bisect.bisect_right(generations, time // 1000)
    return generations[found - 1] if found else None


def following(generations: Sequence[int], generation: int) -> int | None:
    """Return the next generation; None if it is the last."""
    found = bisect.bisect_right(generations, generation)
    return generations[found] if found < len(generations) else None


def onward(place: StreamPosition, generations: Sequence[int]) -> StreamPosition:
    """Return where reading continues: at the start of the next generation if the current one was read to its end.

    A generation that became known late, after its predecessor was read past its end, is still read from its own start: what was written
    since then is in its streams.
    """
    while (after := following(generations, place.generation)) is not None and place.time >= start_us(after) - 1:
        place = StreamPosition(after, start_us(after) - 1, place.since)
    return place


def next_window(place: StreamPosition, generations: Sequence[int], horizon: int, size: int, least: int) -> Window | None:
    """Return the window to read from a position, at most `size` long; None if nothing is due.

    Nothing after `horizon` is read. A window shorter than `least` waits, unless its generation ends with it.
    """
    place = onward(place, generations)
    after = following(generations, place.generation)
    end = start_us(after) - 1 if after is not None else None
    until = min(horizon, place.time + max(size, least))
    if end is not None and until >= end:
        until = end
    elif until - place.time < least:
        return None
    return Window(place.generation, place.time, until) if until > place.time else None


def window_to(place: StreamPosition) -> Window:
    """Return the window that ended at a position."""
    return Window(place.generation, place.since, place.time)


def adapted(size: int, window: Window, rows: int, wanted_rows: int, least: int) -> int:
    """Return the maximum length of the next window, given the row count of the last one."""
    fit = window.length * wanted_rows // max(rows, 1)
    if fit < size:
        return max(fit, least)
    # A window cut short by the clock does not show how many rows a longer one would have.
    return min(fit, size * _GROWTH) if window.length >= size else size
