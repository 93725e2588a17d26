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
from headrace.sources.scylla.position import LogPosition, Place
from headrace.sources.scylla.windows import FIRST_US, Window, adapted, next_window, onward, window_to

log = logging.getLogger("headrace.scylla")

_POLL_S: Final = 1.0
_LOOK_S: Final = 0.1


@dataclass(slots=True)
class _Course:
    """What is remembered of one table between two batches."""

    size: int = FIRST_US
    last: Window | None = None
    """The window that was planned last, until it is known how many rows it had."""
    queries: int = 0
    """Queries that a look at all streams of a generation takes."""
    generation: int = -1
    """The generation that they are of."""


@dataclass(slots=True)
class LogPlanner:
    """The planning side of the port (`sources.base.Planner`)."""

    catalog: StreamCatalog
    starts: Mapping[TableName, Start]
    choices: ScyllaChoices
    slots: int
    pace: Path | None = None
    wait: Callable[[float], None] = time.sleep
    _courses: dict[TableName, _Course] = field(default_factory=dict)

    def initial(self) -> Offset:
        return LogPosition({name: start.place for name, start in self.starts.items()}).to_json()

    def plan(self, start: Offset) -> Offset:
        # Tables that came since are read from where they begin; those that are not chosen any more are left.
        known = LogPosition.from_json(start).places
        places = {name: known.get(name, begin.place) for name, begin in self.starts.items()}
        self._adapt()
        for _ in range(int(_POLL_S / _LOOK_S)):
            now = self.catalog.now()
            ends = {name: self._advanced(name, place, now) for name, place in places.items()}
            if ends != known:
                return LogPosition(ends).to_json()
            self.wait(_LOOK_S)
        return start

    def works(self, start: Offset, end: Offset) -> list[Work]:
        before, after = LogPosition.from_json(start).places, LogPosition.from_json(end).places
        windows = {name: window_to(place) for name, place in after.items() if place.since >= 0 and place != before.get(name)}
        queries = max((self._queries(name, window.generation) for name, window in windows.items()), default=0)
        of = max(min(self.slots, queries), 1)
        listed = [[name.database, name.table, window.generation, window.after, window.until] for name, window in sorted(windows.items())]
        return [{"kind": "log", "windows": listed, "share": share, "of": of} for share in range(of)]

    def commit(self, end: Offset) -> None:
        """Nothing is kept for batches that are done."""

    def stop(self) -> None:
        self.catalog.close()

    def _advanced(self, name: TableName, place: Place, now: int) -> Place:
        """Where the next window of a table ends; the place itself if none is due."""
        generations = self.catalog.generations(name)
        place = self._past_expired(name, place, now)
        course = self._courses.setdefault(name, _Course())
        least = self._least(name, onward(place, generations).generation)
        window = next_window(place, generations, now - self.choices.confidence_us, course.size, least)
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
        queries = sum(self._queries(one, generation if one == name else self._courses[one].generation) for one in self._courses)
        return max(self.choices.window_us, int(queries / self.choices.queries_per_second * 1e6))

    def _queries(self, name: TableName, generation: int) -> int:
        course = self._courses.setdefault(name, _Course())
        if course.generation != generation and generation >= 0:
            groups = self.catalog.streams(name, generation)
            at_once = self.choices.streams_per_query
            course.queries, course.generation = sum(-(-len(group) // at_once) for group in groups), generation
        return course.queries

    def _adapt(self) -> None:
        """Let windows grow and shrink by what the last ones held."""
        found = told(self.pace)
        for name, course in self._courses.items():
            until, rows = found.get(name, (-1, 0))
            if course.last is not None and course.last.until == until:
                course.size = adapted(course.size, course.last, rows, self.choices.batch_rows, self.choices.window_us)
                course.last = None
