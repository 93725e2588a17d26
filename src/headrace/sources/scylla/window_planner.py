"""Plans batches of the logs of many tables: one window of each table that is due, shared among tasks by streams.

What a batch reads is in its end alone (generation, beginning and end of each window): planning it again after a crash gives the same
windows. How the streams are shared may differ then, and does not matter.

The driver writes the row counts of the last windows to one small file for the planner, which is another process. Only the length of windows
depends on it: a missing, old or damaged file leaves lengths unchanged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from headrace.cql.address import CqlAddress
from headrace.cql.session import connect
from headrace.model.schema import TableName
from headrace.retry import retrying
from headrace.sources.base import Json, Offset
from headrace.sources.scylla.generations import (
    LogStart,
    ServerCatalog,
    expired,
    floor_us,
    lost_log,
    oldest,
    past_lost_streams,
    start_at,
)
from headrace.sources.scylla.position import (
    AUDIT,
    FIRST,
    FIRST_US,
    LogPosition,
    StreamPosition,
    Window,
    adapted,
    label_of,
    next_window,
    onward,
    window_to,
)
from headrace.sources.scylla.snapshot.options import OnExpired, ScyllaOptions


class WindowRead(NamedTuple):
    """A window of a table's log, and the number of the read (see `position`)."""

    keyspace: str
    table: str
    generation: int
    after: int
    until: int
    read_number: int


@dataclass(frozen=True, slots=True)
class WindowSplit:
    """One task's share of the streams of some windows."""

    split_kind: ClassVar[str] = "log"
    once: ClassVar[bool] = False
    windows: tuple[WindowRead, ...]
    share: int
    of: int

    def to_json(self) -> Json:
        return {"windows": self.windows, "share": self.share, "of": self.of}

    @classmethod
    def from_json(cls, raw: Json) -> WindowSplit:
        return cls(tuple(WindowRead(*window) for window in raw["windows"]), raw["share"], raw["of"])


log = logging.getLogger("headrace.scylla")

_POLL_S: Final = 1.0
_LOOK_S: Final = 0.1
_AGAIN_WINDOWS: Final = 10
"""Minimum length of a reread's window, in windows of the first read."""


@dataclass(slots=True)
class _WindowState:
    """State of one read of a table between two batches."""

    size: int = FIRST_US
    last: Window | None = None
    """The last planned window, until its row count is known."""


@dataclass(slots=True)
class WindowPlanner:
    """The planning side of the port (`sources.base.Planner`)."""

    catalog: ServerCatalog
    starts: Mapping[TableName, LogStart]
    options: ScyllaOptions
    slots: int
    pace: Path | None = None
    wait: Callable[[float], None] = time.sleep
    _courses: dict[str, _WindowState] = field(default_factory=dict)
    _expired: set[TableName] = field(default_factory=set)
    """Tables for which a warning named expired rows."""
    _audit_ends: dict[TableName, int] = field(default_factory=dict)
    """The end time of each running audit."""
    _queries: dict[TableName, tuple[int, int]] = field(default_factory=dict)
    """A table's last generation, and how many queries read all its streams."""

    def initial(self) -> Offset:
        return LogPosition({name: start.place for name, start in self.starts.items()}).to_json()

    def plan(self, start: Offset) -> Offset:
        # New tables are read from their start; tables that are no longer selected are dropped.
        known = LogPosition.from_json(start)
        first = {name: known.places.get(name, begin.place) for name, begin in self.starts.items()}
        self._adapt()
        for _ in range(int(_POLL_S / _LOOK_S)):
            now = self.catalog.now()
            ends = {name: self._advanced(name, place, now) for name, place in first.items()}
            rereads = {key: place for name in first for key, place in self._rereads(name, known, first[name], ends[name], now).items()}
            end = LogPosition(ends, rereads).to_json()
            if end != start:
                return end
            self.wait(_LOOK_S)
        return start

    def splits(self, start: Offset, end: Offset) -> list[WindowSplit]:
        before, after = LogPosition.from_json(start), LogPosition.from_json(end)
        # A batch planned before a table was excluded is read without it.
        reads = [((name, FIRST), place, before.places.get(name)) for name, place in sorted(after.places.items())]
        reads += [(key, place, before.rereads.get(key)) for key, place in sorted(after.rereads.items())]
        windows = [
            (name, window_to(place), read_number)
            for (name, read_number), place, old in reads
            if place.since >= 0 and place != old and name in self.starts
        ]
        queries = max((self._queries_of(name, window.generation) for name, window, _ in windows), default=0)
        of = max(min(self.slots, queries), 1)
        listed = tuple(
            WindowRead(name.database, name.table, window.generation, window.after, window.until, read_number)
            for name, window, read_number in windows
        )
        return [WindowSplit(listed, share, of) for share in range(of)]

    def commit(self, end: Offset) -> None:
        """Completed batches leave no state."""

    def stop(self) -> None:
        self.catalog.close()

    def _advanced(self, name: TableName, place: StreamPosition, now: int) -> StreamPosition:
        """Return where a table's next window ends; the current position if none is due."""
        return self._next(name, self._checked(name, place, now), now - self.options.confidence_us, FIRST)

    def _rereads(
        self, name: TableName, known: LogPosition, read: StreamPosition, end: StreamPosition, now: int
    ) -> dict[tuple[TableName, int], StreamPosition]:
        """Return the positions of a table's rereads after the batch. The first read goes from `read` to `end` in this batch."""
        found: dict[tuple[TableName, int], StreamPosition] = {}
        ages = self.options.reread_ages_us(self.starts[name].ttl)
        for read_number, age in enumerate(ages, 1):
            place = known.rereads.get((name, read_number), known.rereads.get((name, 1)) or self._look_back_start(name, ages[-1]))
            end = found[name, read_number] = self._advanced_reread(
                name, read_number, place, read, end, now - self.options.confidence_us - age, now
            )
            read = place
        if ages and self.options.audit:
            horizon = now - self.options.confidence_us - ages[-1]
            found[name, AUDIT] = self._audited(name, known.rereads.get((name, AUDIT)), min(horizon, read.time), now)
        return found

    def _look_back_start(self, name: TableName, look_back_us: int) -> StreamPosition:
        """Return the start of the rereads: rows may arrive with timestamps from before the pipe started."""
        return start_at(self.catalog.generations(name), max(self.starts[name].place.time - look_back_us, 0))

    def _advanced_reread(
        self, name: TableName, read_number: int, place: StreamPosition, read: StreamPosition, end: StreamPosition, horizon: int, now: int
    ) -> StreamPosition:
        """Return the position of a reread after the batch. It stays behind the previous read, which goes from `read` to `end`."""
        if place.time >= read.time and end.time <= horizon:
            # The previous read is so late that nothing can arrive after it within the look-back window.
            return StreamPosition(end.generation, end.time)
        place = past_lost_streams(self.catalog, name, place, floor_us(self.starts[name].ttl, now))
        return self._next(name, place, min(horizon, read.time), read_number)

    def _audited(self, name: TableName, place: StreamPosition | None, horizon: int, now: int) -> StreamPosition:
        """Return the audit's position after the batch. A position without a window holds the time at which the last audit ended."""
        generations, idle = self.catalog.generations(name), StreamPosition(0, now)
        if place is None:
            return idle
        if place.since < 0:
            if now - place.time < self.options.audit_us(self.starts[name].ttl):
                return place
            place = past_lost_streams(self.catalog, name, oldest(generations), floor_us(self.starts[name].ttl, now))
        # The end of an audit is fixed at its start: if it followed the log, it would never end.
        end = self._next(name, place, self._audit_ends.setdefault(name, horizon), AUDIT)
        if end == place:
            del self._audit_ends[name]
        return end if end != place else idle

    def _next(self, name: TableName, place: StreamPosition, horizon: int, read_number: int) -> StreamPosition:
        generations = self.catalog.generations(name)
        course = self._courses.setdefault(label_of(name, read_number), _WindowState())
        # Later reads are not urgent: they query less often.
        least = self._least(name, onward(place, generations).generation) * (_AGAIN_WINDOWS if read_number else 1)
        window = next_window(place, generations, horizon, course.size, least)
        if window is None:
            return place
        course.last = window
        return window.end

    def _checked(self, name: TableName, place: StreamPosition, now: int) -> StreamPosition:
        """Return the position, or a later one if streams in between are gone. Raise if unread rows have expired there, unless that is
        allowed.

        Otherwise reading continues at the position: rows written later with timestamps of that time still exist.
        """
        begin = self.starts[name]
        floor = min(floor_us(begin.ttl, now), now - self.options.confidence_us)
        if place.time >= floor:
            return place
        if place.time >= begin.promised and name not in self._expired:
            if self.options.expired is OnExpired.HALT:
                raise lost_log(name, place.time, floor, begin.ttl)
            self._expired.add(name)
            for one in expired(self.catalog.generations(name), place.time, floor):
                log.warning("the log of %s keeps its rows for %d s and was not read in time: rows are missing in %s", name, begin.ttl, one)
        return past_lost_streams(self.catalog, name, place, floor)

    def _least(self, name: TableName, generation: int) -> int:
        """Return the least length of a window: with many streams, long enough not to query servers too often."""
        self._queries_of(name, generation)
        queries = sum(count for _, count in self._queries.values())
        return max(self.options.window_us, int(queries / self.options.queries_per_second * 1e6))

    def _queries_of(self, name: TableName, generation: int) -> int:
        known = self._queries.get(name)
        if known is None or known[0] != generation:
            groups, at_once = self.catalog.streams(name, generation), self.options.streams_per_query
            known = self._queries[name] = (generation, sum(-(-len(group) // at_once) for group in groups))
        return known[1]

    def _adapt(self) -> None:
        """Adapt the length of windows to the row counts of the last ones."""
        found = read_feedback(self.pace)
        for label, course in self._courses.items():
            until, rows = found.get(label, (-1, 0))
            if course.last is not None and course.last.until == until:
                course.size = adapted(course.size, course.last, rows, self.options.batch_rows, self.options.window_us)
                course.last = None


def write_feedback(path: Path, reached: LogPosition, rows: Mapping[str, int]) -> None:
    """Write the row counts of the windows that ended here, by their labels in offsets."""
    ends = reached.to_json()
    content = {label: [ends[label][1], count] for label, count in rows.items() if label in ends}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def read_feedback(path: Path | None) -> dict[str, tuple[int, int]]:
    """Return the end and the row count of each label's last window."""
    try:
        raw = json.loads(path.read_bytes()) if path is not None else {}
        return {label: (int(until), int(rows)) for label, (until, rows) in raw.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class ScyllaSource:
    """The logs of some tables of a cluster. Picklable."""

    address: CqlAddress
    starts: Mapping[TableName, LogStart]
    options: ScyllaOptions
    slots: int
    pace: Path | None = None

    def planner(self) -> WindowPlanner:
        session = retrying(lambda: connect(self.address))
        return WindowPlanner(ServerCatalog(session, self.options), self.starts, self.options, self.slots, self.pace)
