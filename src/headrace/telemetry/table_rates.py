"""Changes/s and snapshot rows/s of each table of a pipe: now, and for the busiest tables of the last hour.

Invariant: memory is bounded. Of at most `MAX_TABLES` tables, `POINTS` points are kept; a busier table takes the place of the one with the
fewest recent changes. The figures are those of this process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.model.json_record import JsonRecord

MAX_TABLES: Final = 50
STEP_S: Final = 10
POINTS: Final = 360
_WINDOW_S: Final = 3.0
_DECAY: Final = 0.99
"""Per point: changes of seven minutes ago weigh a half."""


@dataclass(frozen=True, slots=True)
class TableCount:
    """Counters of one table, which never fall while the process runs."""

    changes: int
    copied: int
    """Rows that the snapshot has read; a new snapshot begins at 0 again."""


@dataclass(frozen=True, slots=True)
class TableRate:
    changes: float
    copied: float


@dataclass(frozen=True, slots=True)
class TableSeries(JsonRecord):
    step_s: int
    end: float
    """The time of the last point of each series."""
    changes: Mapping[str, Sequence[float]]
    """Changes/s by table, oldest first; a series may be shorter than an hour."""


@dataclass(slots=True)
class _Series:
    points: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    score: float = 0.0


class TableRates:
    """The rates of one pipe. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._window: deque[tuple[float, Mapping[str, TableCount]]] = deque()
        self._rates: Mapping[str, TableRate] = {}
        self._series: dict[str, _Series] = {}
        self._last: tuple[float, Mapping[str, TableCount]] | None = None

    def add(self, now: float, counts: Mapping[str, TableCount]) -> None:
        """Take the counters of all tables; called once a second."""
        with self._lock:
            if self._window and now <= self._window[-1][0]:
                # The clock was set back.
                self._window.clear()
                self._last = None
            self._window.append((now, counts))
            while len(self._window) > 2 and self._window[1][0] <= now - _WINDOW_S:
                self._window.popleft()
            then, before = self._window[0]
            if now > then:
                self._rates = {name: rate for name, count in counts.items() if (rate := _rate(before.get(name), count, now - then))}
            self._add_points(now, counts)

    def rates(self) -> Mapping[str, TableRate]:
        """Return the rates of the last few seconds, without tables at rest."""
        with self._lock:
            return self._rates

    def series(self) -> TableSeries:
        with self._lock:
            end = 0.0 if self._last is None else self._last[0]
            return TableSeries(STEP_S, end, {name: tuple(one.points) for name, one in self._series.items()})

    # -- under the lock

    def _add_points(self, now: float, counts: Mapping[str, TableCount]) -> None:
        if self._last is None:
            self._last = now, counts
        then, before = self._last
        if now - then < STEP_S:
            return
        self._last = now, counts
        fresh = {name: count.changes - before[name].changes if name in before else count.changes for name, count in counts.items()}
        for name in [name for name in self._series if name not in counts]:
            del self._series[name]
        for one in self._series.values():
            one.score *= _DECAY
        for name, changes in fresh.items():
            if changes > 0 and name not in self._series:
                self._make_room(name, changes)
        # After a pause of the machine one point stands for a longer time.
        for name, one in self._series.items():
            one.score += max(0, fresh[name])
            one.points.append(round(max(0, fresh[name]) / (now - then), 2))

    def _make_room(self, name: str, changes: int) -> None:
        if len(self._series) >= MAX_TABLES:
            least = min(self._series, key=lambda other: self._series[other].score)
            if self._series[least].score >= changes:
                return
            del self._series[least]
        self._series[name] = _Series()


def _rate(before: TableCount | None, count: TableCount, seconds: float) -> TableRate | None:
    if before is None or before == count:
        return None
    return TableRate((count.changes - before.changes) / seconds, max(0, count.copied - before.copied) / seconds)
