"""The contender's port.

A contender names a command; the benchmark runs it in a fresh process tree and measures that from outside. A contender with a start-up
that a long-running service pays once (a virtual machine, a Spark session) also writes a `Window`: the stretch between the arrival of its
first and its last batch. Rates are taken over the window, the start-up is shown beside it, and both come from the same run.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.supervise import Usage, tree_cpu_s
from bench.target import Target

TARGET_FILE, WINDOW_FILE = "target.json", "window.json"


@dataclass(frozen=True, slots=True)
class Command:
    """What to run."""

    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of a run in which changes flowed."""

    changes: int
    """Changes that arrived after the window opened."""
    wall_s: float
    cpu_s: float
    total_changes: int
    """All changes seen, those of the first batch too."""
    cold_wall_s: float = 0.0
    cold_cpu_s: float = 0.0
    """From the first byte asked for to the last change, so with the start of the workers; 0 where nobody measured it."""


class Contender(Protocol):
    """A reader of the binary log."""

    title: str
    note: str
    repeats: int
    """How often to run it; the median by CPU seconds is kept. More than 1 only for what takes a second or less."""

    mysql_only: bool
    """Refuses a server that says it is MariaDB."""

    def command(self, target: Target, scratch: Path) -> Command: ...

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:
        """What flowed, after checking that it was what should have flowed."""


def python_command(name: str, target: Target, scratch: Path) -> Command:
    """Have the contender called `name` read in a fresh interpreter; it finds its target and leaves its window in `scratch`."""
    target.save(scratch / TARGET_FILE)
    return Command([sys.executable, "-m", "bench.contenders", name, str(scratch)])


def read_window(scratch: Path) -> Window:
    return Window(**json.loads((scratch / WINDOW_FILE).read_text()))


class Reader(Contender, Protocol):
    """A contender that is Python code of ours, or Java called from it."""

    def read(self, target: Target) -> Window: ...


class Stopwatch:
    """Wall and CPU time since it was made, of this process alone or with everything it started."""

    def __init__(self, *, whole_tree: bool = False) -> None:
        self._read_cpu_s = tree_cpu_s if whole_tree else time.process_time
        self._wall = time.perf_counter()
        self._cpu = self._read_cpu_s()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, self._read_cpu_s() - self._cpu
