"""Stores the commit times of received transactions, by log position, in a small file for the driver.

The relay runs in the source's process, and the driver reports how old the oldest change is that the sink does not show yet. The relay
writes one entry per tenth of a second of commit times, and merges old entries when there are too many. The driver looks up the first entry
after the position that it has applied. Invariant: an entry is never younger than the transactions that it stands for, and at most a tenth
of a second or an eighth of its age older. The file is scratch: a new stream begins with an empty one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.server.position import file_number

SILENCE_S: Final = 5.0
"""A server sends a heartbeat every two seconds. After this long without one, the relay does not know what was committed since."""
_FILE_BITS: Final = 48
_ENTRIES: Final = 1024
_STEP_US: Final = 100_000
_AGES: Final = 16
"""When entries are merged: how many remain for ages from one second to e seconds, from e to e * e, and so on."""
_SECOND_US: Final = 1_000_000
_SEQUENCE, _HEARD, _OPEN_SINCE, _COUNT, _HEADER = 0, 1, 2, 3, 4
_CELLS: Final = _HEADER + 2 * _ENTRIES
_READS: Final = 1000


def log_place(file: str, offset: int) -> int:
    """Return a position as one number that rises along a server's log."""
    return (file_number(file) << _FILE_BITS) + offset


@dataclass(frozen=True, slots=True)
class Backlog:
    """The transactions that a relay had received at one moment. Times are microseconds since 1970 by the clock of this machine."""

    heard_us: int
    """When the source last sent something; 0 if it has not yet."""
    open_since_us: int
    """When the first bytes of an incomplete transaction arrived; 0 if there is none."""
    places: npt.NDArray[np.int64]
    commits_us: npt.NDArray[np.int64]
    """For each position, the commit time of the oldest transaction from there on."""

    def pending_since(self, applied: int, now_us: int) -> int | None:
        """Return the commit time of the oldest change after the position `applied`; None if nothing is pending."""
        first = int(np.searchsorted(self.places, applied, side="right"))
        if first < len(self.places):
            return int(self.commits_us[first])
        if self.open_since_us:
            return self.open_since_us
        return self.heard_us if now_us - self.heard_us > SILENCE_S * _SECOND_US else None


class BacklogWriter:
    """The relay's side. Thread-safe."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._cells = np.memmap(path, dtype=np.int64, mode="w+", shape=(_CELLS,))
        path.chmod(0o600)
        self._lock = threading.Lock()
        self._places = self._commits = np.empty(0, dtype=np.int64)
        self._skew_us = self._idle_us = self._open_us = 0
        self._clock_us = _clock_us()

    def set_server_clock(self, skew_us: int) -> None:
        with self._lock:
            self._follow_clock()
            self._skew_us = skew_us

    def heard(self, *, idle: bool) -> None:
        """Record that the source sent something. `idle`: it has sent all committed transactions."""
        with self._lock:
            now_us = self._follow_clock()
            if idle:
                self._idle_us = now_us
            self._publish(now_us)

    def received(self, file: str, groups: npt.NDArray[np.int64], *, is_open: bool) -> None:
        """Record whole transactions that are on disk. `is_open`: the first part of another one has arrived."""
        groups = groups[groups[:, scan.KIND] != scan.FILE_END]
        with self._lock:
            now_us = self._follow_clock()
            if len(groups):
                self._add((file_number(file) << _FILE_BITS) + groups[:, scan.END], self._commit_times(groups, now_us), now_us)
                # A part that has arrived belongs to a later transaction.
                self._open_us = 0
            self._open_us = (self._open_us or now_us) if is_open else 0
            self._publish(now_us)

    def applied(self, file: str, offset: int) -> None:
        with self._lock:
            kept = self._places > log_place(file, offset)
            self._places, self._commits = self._places[kept], self._commits[kept]

    def _follow_clock(self) -> int:
        """Return the current time. If this machine's clock was set since the last call, shift all times: the source's clock was not set."""
        clock_us = _clock_us()
        step_us, self._clock_us = clock_us - self._clock_us, clock_us
        # Smaller steps come from adjustments of the clock's speed.
        if abs(step_us) >= _STEP_US:
            self._skew_us -= step_us
            self._idle_us += step_us if self._idle_us else 0
            self._open_us += step_us if self._open_us else 0
            self._commits = self._commits + step_us
        return _now_us()

    def _commit_times(self, groups: npt.NDArray[np.int64], now_us: int) -> npt.NDArray[np.int64]:
        """Return commit times by this machine's clock. Without exact times in the log, the end of the event's second is used."""
        exact = groups[:, scan.COMMITTED]
        times: npt.NDArray[np.int64] = np.where(exact != 0, exact, (groups[:, scan.TIME] + 1) * _SECOND_US)
        # Transactions that arrive after an idle moment were committed after it, whatever the server's clock shows.
        found: npt.NDArray[np.int64] = np.minimum(np.maximum(times - self._skew_us, self._idle_us), now_us)
        return found

    def _add(self, places: npt.NDArray[np.int64], commits: npt.NDArray[np.int64], now_us: int) -> None:
        self._places, commits = np.concatenate((self._places, places)), np.concatenate((self._commits, commits))
        # An entry stands for everything after its position: its time is the oldest commit time from there on. So the times rise with the
        # positions.
        self._commits = np.minimum.accumulate(commits[::-1])[::-1]
        self._join(self._commits // _STEP_US)
        if len(self._places) > _ENTRIES:
            ages_us = np.maximum(now_us - self._commits, _STEP_US)
            self._join((np.log(ages_us) * _AGES).astype(np.int64))

    def _join(self, steps: npt.NDArray[np.int64]) -> None:
        """Merge neighbouring entries of the same time step: keep the last position and the oldest commit time."""
        first = np.flatnonzero(np.concatenate(([True], steps[1:] != steps[:-1])))
        last = np.concatenate((first[1:], [len(steps)])) - 1
        self._places, self._commits = self._places[last], np.minimum.reduceat(self._commits, first)

    def _publish(self, now_us: int) -> None:
        cells, count = self._cells, len(self._places)
        # A reader that sees an odd number, or a different one after reading, reads again.
        cells[_SEQUENCE] += 1
        cells[_HEARD], cells[_OPEN_SINCE], cells[_COUNT] = now_us, self._open_us, count
        cells[_HEADER : _HEADER + count] = self._places
        cells[_HEADER + _ENTRIES : _HEADER + _ENTRIES + count] = self._commits
        cells[_SEQUENCE] += 1


class BacklogFile:
    """The driver's side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cells: npt.NDArray[np.int64] | None = None

    def read(self) -> Backlog | None:
        """Return the received transactions; None if there is no relay yet, or if the source has sent nothing."""
        if self._cells is None:
            if not self.path.exists() or self.path.stat().st_size < _CELLS * 8:
                return None
            self._cells = np.memmap(self.path, dtype=np.int64, mode="r", shape=(_CELLS,))
        cells = self._cells
        for _ in range(_READS):
            before = int(cells[_SEQUENCE])
            copy = np.array(cells)
            if before % 2 == 0 and before == int(cells[_SEQUENCE]) == int(copy[_SEQUENCE]):
                count = int(copy[_COUNT])
                if not copy[_HEARD]:
                    return None
                places, commits = copy[_HEADER : _HEADER + count], copy[_HEADER + _ENTRIES : _HEADER + _ENTRIES + count]
                return Backlog(int(copy[_HEARD]), int(copy[_OPEN_SINCE]), places, commits)
        return None


def _now_us() -> int:
    return time.time_ns() // 1000


def _clock_us() -> int:
    """Return the difference between the system clock and the monotonic clock. It changes when the system clock is set."""
    while True:
        before, clock, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        # Otherwise the thread was interrupted between the two clock readings.
        if after - before < _STEP_US * 1000 // 10:
            return (clock - before) // 1000
