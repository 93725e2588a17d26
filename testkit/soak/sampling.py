"""Samples memory, CPU, descriptors, threads, disk and lag every few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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
