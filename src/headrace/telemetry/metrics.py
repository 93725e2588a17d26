"""Thirty days of measurements of each pipe, in three resolutions, in a file of fixed size per pipe.

A file is an array of points. The point of a period has its place by the period's number, so a file never grows, and each point says which
period it is of. Invariant: pipes neither read the files nor wait for them. A file of another size or form is written again; a point that
cannot be of its place is dropped.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

log = logging.getLogger("headrace")

DIRECTORY: Final = ".metrics"
_HEADER: Final = b"headrace metrics 1\n".ljust(32)
_POINT: Final = np.dtype([("period", "<u4"), ("count", "<u4"), ("rate", "<f4"), ("copied", "<f4"), ("lag_s", "<f4"), ("behind", "<f4")])
_VALUES: Final = ("rate", "copied", "lag_s", "behind")


@dataclass(frozen=True, slots=True)
class Resolution:
    step_s: int
    points: int


RANGES: Final = {"1h": Resolution(10, 360), "1d": Resolution(60, 1440), "30d": Resolution(900, 2880)}
POINTS: Final = sum(one.points for one in RANGES.values())
FILE_BYTES: Final = len(_HEADER) + POINTS * _POINT.itemsize


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured once a second. None: not known."""

    at: float
    rate: float
    """Changes per second."""
    copied: float
    """Snapshot rows per second."""
    lag_s: float | None
    behind: float | None
    """Bytes or records between the pipe and the end of the source's log."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one range, oldest first: rates are means of a point's period, lags are its maximum."""

    step_s: int
    points: tuple[Measurement, ...]


@dataclass(slots=True)
class _Open:
    """The point that measurements are added to."""

    period: int = 0
    count: int = 0
    rate: float = 0.0
    copied: float = 0.0
    lag_s: float = math.nan
    behind: float = math.nan

    def add(self, one: Measurement) -> None:
        self.count += 1
        self.rate += (one.rate - self.rate) / self.count
        self.copied += (one.copied - self.copied) / self.count
        self.lag_s = _larger(self.lag_s, one.lag_s)
        self.behind = _larger(self.behind, one.behind)


def _larger(known: float, fresh: float | None) -> float:
    return known if fresh is None else fresh if math.isnan(known) else max(known, fresh)


class PipeMetrics:
    """The measurements of one pipe. Thread-safe; only `store` and the constructor touch the file."""

    def __init__(self, directory: Path, pipe: str) -> None:
        # A name may have characters that a file name must not have.
        self.path = directory / DIRECTORY / f"{hashlib.sha256(pipe.encode(errors='replace')).hexdigest()[:24]}.bin"
        self._lock = threading.Lock()
        self._is_writable, self._is_whole = True, False
        self._arrays = self._load()
        self._open = {name: _Open() for name in RANGES}
        self._dirty: set[tuple[str, int]] = set()

    def add(self, one: Measurement) -> None:
        if not math.isfinite(one.at) or not 0 <= one.at < 1 << 32:
            return
        with self._lock:
            for name, resolution in RANGES.items():
                period, point = int(one.at // resolution.step_s), self._open[name]
                if point.period != period:
                    self._put(name, point)
                    point = self._open[name] = self._resumed(name, period)
                point.add(one)

    def series(self, name: str, now: float) -> Series:
        """Return the points of a range up to now."""
        resolution = RANGES[name]
        with self._lock:
            self._put(name, self._open[name])
            array = self._arrays[name].copy()
        last = int(now // resolution.step_s)
        inside = (array["count"] > 0) & (array["period"] <= last) & (array["period"] > last - resolution.points)
        chosen = np.sort(array[inside], order="period").tolist()
        middle = resolution.step_s / 2
        return Series(
            resolution.step_s,
            tuple(
                Measurement(min(period * resolution.step_s + middle, now), rate, copied, _known(lag_s), _known(behind))
                for period, _, rate, copied, lag_s, behind in chosen
            ),
        )

    def store(self) -> None:
        """Write the points that have changed since the last call."""
        with self._lock:
            for name, point in self._open.items():
                self._put(name, point)
            changed = [(name, index, self._arrays[name][index].tobytes()) for name, index in self._dirty]
            whole = b"" if self._is_whole else b"".join([_HEADER, *(self._arrays[name].tobytes() for name in RANGES)])
            self._dirty.clear()
        try:
            self._write(whole, changed)
            self._is_writable = self._is_whole = True
        except OSError as error:
            if self._is_writable:
                log.warning("metrics: %s cannot be written, so charts may have gaps after a restart: %s", self.path, error)
            self._is_writable = self._is_whole = False

    def _write(self, whole: bytes, changed: list[tuple[str, int, bytes]]) -> None:
        if whole:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = self.path.with_suffix(".new")
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600), "wb") as file:
                file.write(whole)
            temporary.replace(self.path)
        elif changed:
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                for name, index, content in changed:
                    os.pwrite(descriptor, content, _offset(name) + index * _POINT.itemsize)
            finally:
                os.close(descriptor)

    # -- under the lock

    def _put(self, name: str, point: _Open) -> None:
        if point.count:
            index = point.period % RANGES[name].points
            values = (point.period, point.count, point.rate, point.copied, point.lag_s, point.behind)
            self._arrays[name][index] = values
            self._dirty.add((name, index))

    def _resumed(self, name: str, period: int) -> _Open:
        """Return the stored point of a period that an earlier process began, or a new one."""
        stored = self._arrays[name][period % RANGES[name].points]
        return _Open(*stored.item()) if int(stored["period"]) == period and stored["count"] else _Open(period)

    # -- at the start

    def _load(self) -> dict[str, npt.NDArray[np.void]]:
        try:
            with self.path.open("rb") as file:
                content = file.read(FILE_BYTES + 1)
        except FileNotFoundError:
            return _empty()
        except OSError as error:
            log.warning("metrics: %s cannot be read: %s", self.path, error)
            return _empty()
        if len(content) != FILE_BYTES or not content.startswith(_HEADER):
            log.warning("metrics: %s is damaged, and begins again", self.path)
            return _empty()
        self._is_whole = True
        arrays = {}
        for name, resolution in RANGES.items():
            array = np.frombuffer(content, _POINT, resolution.points, _offset(name)).copy()
            possible = (array["period"] % resolution.points == np.arange(resolution.points)) & (array["count"] <= resolution.step_s * 10)
            for value in _VALUES:
                possible &= np.isnan(array[value]) | ((array[value] >= 0) & np.isfinite(array[value]))
            possible &= ~np.isnan(array["rate"]) & ~np.isnan(array["copied"])
            array[~possible] = 0
            arrays[name] = array
        return arrays


def _empty() -> dict[str, npt.NDArray[np.void]]:
    return {name: np.zeros(resolution.points, _POINT) for name, resolution in RANGES.items()}


def _offset(wanted: str) -> int:
    points = 0
    for name, resolution in RANGES.items():
        if name == wanted:
            break
        points += resolution.points
    return len(_HEADER) + points * _POINT.itemsize


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def prune(directory: Path, now: float) -> None:
    """Remove the files of pipes that have had no measurement for longer than any range."""
    oldest = now - max(one.step_s * one.points for one in RANGES.values())
    for file in (directory / DIRECTORY).glob("*.bin"):
        with suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()


def merge_series(parts: list[Series]) -> Series:
    """Merge the points of the same periods: the sources of one pipe."""
    if len(parts) == 1:
        return parts[0]
    periods: dict[int, list[Measurement]] = {}
    for part in parts:
        for point in part.points:
            periods.setdefault(int(point.at // part.step_s), []).append(point)
    return Series(parts[0].step_s, tuple(_merge(points) for _, points in sorted(periods.items())))


def _merge(points: list[Measurement]) -> Measurement:
    lags = [one.lag_s for one in points if one.lag_s is not None]
    sizes = [one.behind for one in points if one.behind is not None]
    rate, copied = sum(one.rate for one in points), sum(one.copied for one in points)
    return Measurement(points[0].at, rate, copied, max(lags, default=None), sum(sizes) if sizes else None)
