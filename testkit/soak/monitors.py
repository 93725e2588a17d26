"""Two threads that observe: the heartbeats of the probe tables, and the memory, CPU, descriptors, disk and lag of the processes."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from testkit.soak.operator import Operator
from testkit.soak.routes import Route
from testkit.soak.traffic import BEAT_S

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one moment."""

    pid: int
    kind: str
    age_s: float
    rss: int
    uss: int
    """Private memory: it is free when the process ends."""
    descriptors: int
    """Without files in /proc: ClickHouse keeps three of them open for each of its threads."""
    threads: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at one moment."""

    at: float
    """Seconds since the soak began."""
    processes: tuple[ProcessSample, ...]
    lag_s: Mapping[str, float | None]
    """By route; None: the copy did not answer."""
    state_bytes: int
    relay_bytes: int
    checkpoint_files: int
    load: float
    calm: bool
    """Whether Headrace's long-lived processes are not killed at this time."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def total(self, of: Callable[[ProcessSample], float]) -> float:
        return sum(map(of, self.processes))


def sample_processes(kinds: Mapping[int, str]) -> tuple[ProcessSample, ...]:
    """Return samples of the running processes."""
    return tuple(found for pid, kind in kinds.items() if (found := _look(pid, kind)) is not None)


def _look(pid: int, kind: str) -> ProcessSample | None:
    here = Path(f"/proc/{pid}")
    try:
        fields = (here / "stat").read_text().rpartition(")")[2].split()
        memory = dict(_sizes((here / "smaps_rollup").read_text().splitlines()[1:]))
        descriptors = sum(not _target(found).startswith("/proc/") for found in (here / "fd").iterdir())
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    private = memory.get("Private_Clean", 0) + memory.get("Private_Dirty", 0)
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICK
    age_s = uptime - int(fields[19]) / _TICK
    return ProcessSample(pid, kind, age_s, memory.get("Rss", 0), private, descriptors, int(fields[17]), cpu_s)


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        # It was closed in the meantime.
        return "/proc/"


def _sizes(lines: Iterable[str]) -> Iterable[tuple[str, int]]:
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            yield words[0].rstrip(":"), int(words[1]) << 10


def disk_use(state: Path) -> tuple[int, int, int]:
    """Return the bytes of a state directory, the bytes of its relays, and the files of its checkpoints. Files may disappear during the
    walk."""
    total = relay = checkpoint = 0
    for folder, _, files in os.walk(state):
        parts = Path(folder).relative_to(state).parts
        for name in files:
            try:
                size = Path(folder, name).stat().st_blocks * 512
            except OSError:
                continue
            total += size
            relay += size if "relay" in parts else 0
            checkpoint += "checkpoint" in parts
    return total, relay, checkpoint


class Clock:
    """Seconds since the soak began."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._begun


LOOK_S, SAMPLE_S = 0.5, 5.0


class Watch:
    """Samples everything while it is open, and runs the operator."""

    def __init__(self, routes: Sequence[Route], operator: Operator, state: Path, samples: Path, clock: Clock) -> None:
        self._routes, self._operator, self._state, self._file, self._clock = routes, operator, state, samples, clock
        self._seen: dict[str, datetime] = {}
        # Servers are killed during queries; the driver would log each time.
        logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
        self._stopping = threading.Event()
        work: tuple[Callable[[], None], ...] = (self._look, self._sample, self._tend)
        self._threads = [threading.Thread(target=self._repeat, args=(one,), name=f"watch-{one.__name__}", daemon=True) for one in work]
        self.samples: list[Sample] = []
        self.failures: list[BaseException] = []
        self.calm = False
        self.tending = True

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def seen(self, route: str) -> datetime | None:
        """Return when the newest heartbeat of the copy was written."""
        return self._seen.get(route)

    def lag_s(self, route: Route) -> float | None:
        """Return the lag of the copy behind the last commit; 0 while the source is down."""
        shown, last = self._seen.get(route.name), route.traffic.last_beat
        if shown is None or last is None:
            return None
        now = datetime.now(UTC)
        if (now - last).total_seconds() > 4 * BEAT_S:
            return max((last - shown).total_seconds(), 0.0)
        return max((now - shown).total_seconds() - BEAT_S, 0.0)

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._stopping.is_set():
                work()
        # An error in this thread must be reported.
        except BaseException as error:  # noqa: BLE001
            self.failures.append(error)

    def _look(self) -> None:
        for route in self._routes:
            shown = route.visible()
            if shown is not None:
                self._seen[route.name] = shown
        self._stopping.wait(LOOK_S)

    def _tend(self) -> None:
        if self.tending:
            self._operator.tend()
        self._stopping.wait(1.0)

    def _sample(self) -> None:
        begun = time.monotonic()
        lags = {route.name: self.lag_s(route) for route in self._routes}
        found = sample_processes(self._operator.processes())
        sample = Sample(round(self._clock(), 1), found, lags, *disk_use(self._state), os.getloadavg()[0], self.calm)
        self.samples.append(sample)
        with self._file.open("a") as file:
            file.write(json.dumps(sample.to_json()) + "\n")
        self._stopping.wait(max(SAMPLE_S - (time.monotonic() - begun), 0.5))
