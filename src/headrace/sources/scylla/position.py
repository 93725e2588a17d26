"""Positions and windows in log tables: for each base table the generation of streams, and the time up to which it was read.

Invariant: all of a table's log with a `cdc$time` up to `time` is in the sink, whichever generation it lies in: a generation is read to its
end before the next one begins. Times rise from batch to batch, unless a generation becomes known late.

A window lies in one generation and ends before the confidence time. Microseconds are not cut, so a window holds all rows of a `cdc$time` or
none. Windows grow fourfold while they hold few rows and shrink when they hold many, so an old generation without changes costs a few
windows regardless of its age.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.base import Offset

FIRST, AUDIT = 0, -1
"""The first read of a log, and its audit; the reads between them are numbered from 1."""
_AGAIN, _AUDIT = " again", " audit"
"""Suffixes of table names in offsets of rereads and audits. (Names contain no spaces.)"""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in one table's log."""

    generation: int
    """Start of the generation, milliseconds since 1970; identifies it."""
    time: int
    """Microseconds since 1970, inclusive."""
    since: int = -1
    """Start of the window that ended here: earlier rows were read before, or had expired. -1: nothing was read."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    places: Mapping[TableName, StreamPosition] = field(default_factory=dict)
    rereads: Mapping[tuple[TableName, int], StreamPosition] = field(default_factory=dict)
    """Positions of the rereads for late rows, by the number of the read."""
    gtid: str = ""

    @classmethod
    def from_json(cls, raw: Offset) -> LogPosition:
        found = {parse_label(label): StreamPosition(*map(int, place)) for label, place in raw.items()}
        return cls(
            {name: place for (name, read_number), place in found.items() if read_number == FIRST},
            {key: place for key, place in found.items() if key[1] != FIRST},
        )

    def to_json(self) -> Offset:
        reads = [(label_of(name, FIRST), place) for name, place in self.places.items()]
        reads += [(label_of(name, read_number), place) for (name, read_number), place in self.rereads.items()]
        return {label: [place.generation, place.time, place.since] for label, place in sorted(reads)}

    @property
    def version(self) -> int:
        """Increases with the position. (Not a row version: cells have their write times.)"""
        return sum(place.time // 1000 for place in self.places.values())

    @property
    def reached(self) -> int:
        """The time up to which every table was read; 0 if there is no table."""
        return min((place.time for place in self.places.values()), default=0)

    def covers(self, tables: Mapping[TableName, int]) -> bool:
        """Return whether each of these tables was read up to its time."""
        return all(name in self.places and self.places[name].time >= time for name, time in tables.items())

    def __str__(self) -> str:
        return f"{moment(self.reached)} in {len(self.places)} tables" if self.places else "the beginning"


def label_of(name: TableName, read_number: int) -> str:
    """Return the name of a read of a table's log in offsets."""
    if read_number == AUDIT:
        return f"{name}{_AUDIT}"
    return f"{name}{_AGAIN if read_number else ''}{f' {read_number}' if read_number > 1 else ''}"


def parse_label(label: str) -> tuple[TableName, int]:
    """Return the table and the number of the read; the inverse of `label_of`."""
    name, _, read = label.partition(" ")
    word, _, number = read.partition(" ")
    read_number = {"": FIRST, _AUDIT.strip(): AUDIT, _AGAIN.strip(): int(number or 1)}[word]
    return parse_name(name), read_number


def parse_name(text: str) -> TableName:
    """Parse `keyspace.table`; neither part contains a dot."""
    keyspace, _, table = text.partition(".")
    return TableName(keyspace, table)


def moment(micros: int) -> str:
    """Format a time for users, in UTC."""
    return datetime.fromtimestamp(micros // 1000 / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


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
    return Window(place.generation, place.since, place.time)


def adapted(size: int, window: Window, rows: int, wanted_rows: int, least: int) -> int:
    """Return the maximum length of the next window, given the row count of the last one."""
    fit = window.length * wanted_rows // max(rows, 1)
    if fit < size:
        return max(fit, least)
    # A window cut short by the clock does not show how many rows a longer one would have.
    return min(fit, size * _GROWTH) if window.length >= size else size
