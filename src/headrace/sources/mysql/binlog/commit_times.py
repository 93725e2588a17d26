"""Commit times of the transactions that a relay has received, by log position, in a small file that the driver reads.

The relay runs in the source's process, and the driver must know how old the oldest change is that the sink does not show yet. The relay
writes one entry per tenth of a second of commit times, and joins old entries when there are too many; the driver looks up the first entry
behind the position that it has applied. Invariant: an entry is never younger than the transactions that it stands for, and it is older by
a tenth of a second or an eighth of its age at most. The file is scratch: a new stream begins with an empty one.
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
"""A server sends a heartbeat every two seconds. A relay that has heard nothing for this long does not know what was committed since."""
_FILE_BITS: Final = 48
_ENTRIES: Final = 1024
_STEP_US: Final = 100_000
_AGES: Final = 16
"""When entries are joined: how many are left for ages from one second to e seconds, from e to e * e, and so on."""
_SECOND_US: Final = 1_000_000
_SEQUENCE, _HEARD, _OPEN_SINCE, _COUNT, _HEADER = 0, 1, 2, 3, 4
_CELLS: Final = _HEADER + 2 * _ENTRIES
_READS: Final = 1000


def log_place(file: str, offset: int) -> int:
    """A position as one number that rises along a server's log."""
    return (file_number(file) << _FILE_BITS) + offset


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a relay had received at one moment. Times are microseconds since 1970 by the clock of this machine."""

    heard_us: int
    """When the source was last heard of; 0 if it was not yet."""
    open_since_us: int
    """When the first bytes of a transaction came that is not complete; 0 if there is none."""
    places: npt.NDArray[np.int64]
    commits_us: npt.NDArray[np.int64]
    """For each place, when the oldest transaction from there on was committed."""

    def pending_since(self, applied: int, now_us: int) -> int | None:
        """When the oldest change behind the place `applied` was committed; None if nothing is pending."""
        first = int(np.searchsorted(self.places, applied, side="right"))
        if first < len(self.places):
            return int(self.commits_us[first])
        if self.open_since_us:
            return self.open_since_us
        return self.heard_us if now_us - self.heard_us > SILENCE_S * _SECOND_US else None


class BacklogWriter:
    """The relay's side. Safe for threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._cells = np.memmap(path, dtype=np.int64, mode="w+", shape=(_CELLS,))
        path.chmod(0o600)
        self._lock = threading.Lock()
        self._places = self._commits = np.empty(0, dtype=np.int64)
        self._skew_us = self._idle_us = self._open_us = 0
        self._clock_us = _clock_us()

    def set_server_clock(self, skew_us: int) -> None:
        """The server's clock is ahead of this machine's by so much."""
        with self._lock:
            self._follow_clock()
            self._skew_us = skew_us

    def heard(self, *, idle: bool) -> None:
        """Something came from the source. `idle`: the source has sent all that was committed."""
        with self._lock:
            now_us = self._follow_clock()
            if idle:
                self._idle_us = now_us
            self._publish(now_us)

    def received(self, file: str, groups: npt.NDArray[np.int64], *, is_open: bool) -> None:
        """Whole transactions are on disk. `is_open`: the first part of another one has come, too."""
        groups = groups[groups[:, scan.KIND] != scan.FILE_END]
        with self._lock:
            now_us = self._follow_clock()
            if len(groups):
                self._add((file_number(file) << _FILE_BITS) + groups[:, scan.END], self._commit_times(groups, now_us), now_us)
                # A part that has come belongs to a later transaction.
                self._open_us = 0
            self._open_us = (self._open_us or now_us) if is_open else 0
            self._publish(now_us)

    def applied(self, file: str, offset: int) -> None:
        """Everything up to a position is in the sink."""
        with self._lock:
            kept = self._places > log_place(file, offset)
            self._places, self._commits = self._places[kept], self._commits[kept]

    def _follow_clock(self) -> int:
        """The time now. If this machine's clock was set since the last call, all times follow it: the source's clock was not set."""
        clock_us = _clock_us()
        step_us, self._clock_us = clock_us - self._clock_us, clock_us
        # Smaller ones are what adjustments of the clock's speed add up to.
        if abs(step_us) >= _STEP_US:
            self._skew_us -= step_us
            self._idle_us += step_us if self._idle_us else 0
            self._open_us += step_us if self._open_us else 0
            self._commits = self._commits + step_us
        return _now_us()

    def _commit_times(self, groups: npt.NDArray[np.int64], now_us: int) -> npt.NDArray[np.int64]:
        """By this machine's clock. Without exact times in the log, an event's second counts up to its end."""
        exact = groups[:, scan.COMMITTED]
        times: npt.NDArray[np.int64] = np.where(exact != 0, exact, (groups[:, scan.TIME] + 1) * _SECOND_US)
        # What came after a moment without traffic was committed after it, whatever the server's clock says.
        found: npt.NDArray[np.int64] = np.minimum(np.maximum(times - self._skew_us, self._idle_us), now_us)
        return found

    def _add(self, places: npt.NDArray[np.int64], commits: npt.NDArray[np.int64], now_us: int) -> None:
        self._places, commits = np.concatenate((self._places, places)), np.concatenate((self._commits, commits))
        # A place stands for all that follows it: its time is the oldest commit time from there on. So the times rise with the places.
        self._commits = np.minimum.accumulate(commits[::-1])[::-1]
        self._join(self._commits // _STEP_US)
        if len(self._places) > _ENTRIES:
            ages_us = np.maximum(now_us - self._commits, _STEP_US)
            self._join((np.log(ages_us) * _AGES).astype(np.int64))

    def _join(self, steps: npt.NDArray[np.int64]) -> None:
        """Make one entry of neighbours in the same step of time: the last place and the oldest commit time stand for all."""
        first = np.flatnonzero(np.concatenate(([True], steps[1:] != steps[:-1])))
        last = np.concatenate((first[1:], [len(steps)])) - 1
        self._places, self._commits = self._places[last], np.minimum.reduceat(self._commits, first)

    def _publish(self, now_us: int) -> None:
        cells, count = self._cells, len(self._places)
        # A reader that meets an odd number, or another one after it has read, reads again.
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
        """What the relay has received; None if there is no relay yet, or if it has not heard of the source."""
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
    """The difference between the system's clock and the monotonic one. It changes when the system's clock is set."""
    while True:
        before, clock, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        # Else the thread was interrupted between the clocks.
        if after - before < _STEP_US * 1000 // 10:
            return (clock - before) // 1000
