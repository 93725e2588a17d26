"""How far log tables were read: for each base table, the generation of streams that is being read and the time up to which it was.

Invariant: all of a table's log with a `cdc$time` up to `time` is in the sink, whichever generation it lies in: a generation is read to its
end before the next one begins. Times rise from batch to batch, unless a generation becomes known late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.model.schema import TableName
from headrace.sources.base import Offset

FIRST, AUDIT = 0, -1
"""The first read of a log, and its audit; the reads between them are numbered from 1."""
_AGAIN, _AUDIT = " again", " audit"
"""What follows a table's name in offsets where its log is read again or audited. (No name has a space.)"""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in one table's log."""

    generation: int
    """When the generation began to operate, milliseconds since 1970: that is its name."""
    time: int
    """Microseconds since 1970; rows of this very microsecond were read."""
    since: int = -1
    """Where the window began that ended here: rows from before it were read earlier, or were not there any more. -1: nothing was read."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the logs of all tables of a pipe."""

    places: Mapping[TableName, StreamPosition] = field(default_factory=dict)
    rereads: Mapping[tuple[TableName, int], StreamPosition] = field(default_factory=dict)
    """How far logs were read again for rows that arrived late, by the number of the read."""
    gtid: str = ""

    @classmethod
    def from_json(cls, raw: Offset) -> LogPosition:
        found = {parse_label(label): StreamPosition(*map(int, place)) for label, place in raw.items()}
        return cls(
            {name: place for (name, look), place in found.items() if look == FIRST},
            {key: place for key, place in found.items() if key[1] != FIRST},
        )

    def to_json(self) -> Offset:
        looks = [(label_of(name, FIRST), place) for name, place in self.places.items()]
        looks += [(label_of(name, look), place) for (name, look), place in self.rereads.items()]
        return {label: [place.generation, place.time, place.since] for label, place in sorted(looks)}

    @property
    def version(self) -> int:
        """Rises with the position. (No row's version: cells have their write times.)"""
        return sum(place.time // 1000 for place in self.places.values())

    @property
    def reached(self) -> int:
        """The time up to which every table was read; 0 if there is no table."""
        return min((place.time for place in self.places.values()), default=0)

    def covers(self, tables: Mapping[TableName, int]) -> bool:
        """Whether each of these tables was read up to its time."""
        return all(name in self.places and self.places[name].time >= time for name, time in tables.items())

    def __str__(self) -> str:
        return f"{moment(self.reached)} in {len(self.places)} tables" if self.places else "the beginning"


def label_of(name: TableName, look: int) -> str:
    """What a read of a table's log is called in offsets."""
    if look == AUDIT:
        return f"{name}{_AUDIT}"
    return f"{name}{_AGAIN if look else ''}{f' {look}' if look > 1 else ''}"


def parse_label(label: str) -> tuple[TableName, int]:
    """The table and the read that `label_of` names."""
    name, _, read = label.partition(" ")
    word, _, number = read.partition(" ")
    look = {"": FIRST, _AUDIT.strip(): AUDIT, _AGAIN.strip(): int(number or 1)}[word]
    return parse_name(name), look


def parse_name(text: str) -> TableName:
    """A table from `keyspace.table`; neither part has a dot."""
    keyspace, _, table = text.partition(".")
    return TableName(keyspace, table)


def moment(micros: int) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(micros // 1000 / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
