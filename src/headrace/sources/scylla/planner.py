"""Cuts the logs of many tables into batches: a window of each table that is due, shared among tasks by streams.

What a batch reads is in its end alone (generation, beginning and end of each window): planning it again after a crash gives the same
windows. How the streams are shared may differ then, and does not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.base import Offset, Work
from headrace.sources.scylla.choices import OnExpired, ScyllaChoices
from headrace.sources.scylla.generations import Start, StreamCatalog, expired, floor_us, lost_log, start_at
from headrace.sources.scylla.pace import told
from headrace.sources.scylla.position import LogPosition, Place, label_of
from headrace.sources.scylla.windows import FIRST_US, Window, adapted, next_window, onward, window_to

log = logging.getLogger("headrace.scylla")

_POLL_S: Final = 1.0
_LOOK_S: Final = 0.1
_AGAIN_WINDOWS: Final = 10
"""How many windows of the first look one of the second is long, at the least."""


@dataclass(slots=True)
class _Course:
    """What is remembered of one table between two batches."""

    size: int = FIRST_US
    last: Window | None = None
    """The window that was planned last, until it is known how many rows it had."""


@dataclass(slots=True)
class LogPlanner:
    """The planning side of the port (`sources.base.Planner`)."""

    catalog: StreamCatalog
    starts: Mapping[TableName, Start]
    choices: ScyllaChoices
    slots: int
    pace: Path | None = None
    wait: Callable[[float], None] = time.sleep
    _courses: dict[str, _Course] = field(default_factory=dict)
    _queries: dict[TableName, tuple[int, int]] = field(default_factory=dict)
    """A table's last generation, and how many queries a look at all its streams takes."""

    def initial(self) -> Offset:
        return LogPosition({name: start.place for name, start in self.starts.items()}).to_json()

    def plan(self, start: Offset) -> Offset:
        # Tables that came since are read from where they begin; those that are not chosen any more are left.
        known = LogPosition.from_json(start)
        first = {name: known.places.get(name, begin.place) for name, begin in self.starts.items()}
        # Whether a row is late is told from what is left of its life: without a TTL nobody can tell.
        looked = {name: begin for name, begin in self.starts.items() if self.choices.again and begin.ttl}
        second = {name: known.again.get(name, begin.place) for name, begin in looked.items()}
        self._adapt()
        for _ in range(int(_POLL_S / _LOOK_S)):
            now = self.catalog.now()
            ends = {name: self._advanced(name, place, now) for name, place in first.items()}
            again = {name: self._advanced_again(name, place, first[name], ends[name], now) for name, place in second.items()}
            end = LogPosition(ends, again).to_json()
            if end != start:
                return end
            self.wait(_LOOK_S)
        return start

    def works(self, start: Offset, end: Offset) -> list[Work]:
        before, after = LogPosition.from_json(start), LogPosition.from_json(end)
        # A batch that was planned before a table was left out is read without it.
        windows = [
            (name, window_to(place), again)
            for again, (old, new) in enumerate(((before.places, after.places), (before.again, after.again)))
            for name, place in sorted(new.items())
            if place.since >= 0 and place != old.get(name) and name in self.starts
        ]
        queries = max((self._queries_of(name, window.generation) for name, window, _ in windows), default=0)
        of = max(min(self.slots, queries), 1)
        listed = [[name.database, name.table, window.generation, window.after, window.until, again] for name, window, again in windows]
        return [{"kind": "log", "windows": listed, "share": share, "of": of} for share in range(of)]

    def commit(self, end: Offset) -> None:
        """Nothing is kept for batches that are done."""

    def stop(self) -> None:
        self.catalog.close()

    def _advanced(self, name: TableName, place: Place, now: int) -> Place:
        """Where the next window of a table ends; the place itself if none is due."""
        return self._next(name, self._past_expired(name, place, now), now - self.choices.confidence_us, again=False)

    def _advanced_again(self, name: TableName, place: Place, read: Place, end: Place, now: int) -> Place:
        """The same for the second look, which stays behind the first (it is at `read`, and the batch takes it to `end`)."""
        if place.time >= read.time and end.time <= now - self.choices.confidence_us - self.choices.again_us:
            # The first look itself is so late that nothing can come after it.
            return Place(end.generation, end.time)
        # What is gone by now was looked at once.
        floor = floor_us(self.starts[name].ttl, now)
        here = place if place.time >= floor else start_at(self.catalog.generations(name), floor)
        return self._next(name, here, min(now - self.choices.confidence_us - self.choices.again_us, read.time), again=True)

    def _next(self, name: TableName, place: Place, horizon: int, *, again: bool) -> Place:
        generations = self.catalog.generations(name)
        course = self._courses.setdefault(label_of(name, again=again), _Course())
        # Nobody waits for the second look: it asks less often.
        least = self._least(name, onward(place, generations).generation) * (_AGAIN_WINDOWS if again else 1)
        window = next_window(place, generations, horizon, course.size, least)
        if window is None:
            return place
        course.last = window
        return window.end

    def _past_expired(self, name: TableName, place: Place, now: int) -> Place:
        """The place, or a later one if what lies between is gone."""
        begin = self.starts[name]
        floor = min(floor_us(begin.ttl, now), now - self.choices.confidence_us)
        if place.time >= floor:
            return place
        if place.time >= begin.promised and self.choices.expired is OnExpired.HALT:
            raise lost_log(name, place.time, floor, begin.ttl)
        generations = self.catalog.generations(name)
        for one in expired(generations, place.time, floor):
            log.warning("the log of %s keeps its rows for %d s, and was not read before that: skipped %s", name, begin.ttl, one)
        return start_at(generations, floor)

    def _least(self, name: TableName, generation: int) -> int:
        """The least length of a window: with many streams, so long that servers are not asked too often."""
        self._queries_of(name, generation)
        queries = sum(count for _, count in self._queries.values())
        return max(self.choices.window_us, int(queries / self.choices.queries_per_second * 1e6))

    def _queries_of(self, name: TableName, generation: int) -> int:
        known = self._queries.get(name)
        if known is None or known[0] != generation:
            groups, at_once = self.catalog.streams(name, generation), self.choices.streams_per_query
            known = self._queries[name] = (generation, sum(-(-len(group) // at_once) for group in groups))
        return known[1]

    def _adapt(self) -> None:
        """Let windows grow and shrink by what the last ones held."""
        found = told(self.pace)
        for label, course in self._courses.items():
            until, rows = found.get(label, (-1, 0))
            if course.last is not None and course.last.until == until:
                course.size = adapted(course.size, course.last, rows, self.choices.batch_rows, self.choices.window_us)
                course.last = None
