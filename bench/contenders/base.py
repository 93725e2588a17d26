"""The interface of a contender.

A contender names a command. The benchmark runs it in a fresh process tree and measures it from outside. A contender with a start-up that a
long-running service pays once (a Java machine, a Spark session) also writes a `Window`: the time between the arrival of its first and its
last batch. Rates are those of the window; the start-up has its own column. Both come from the same run.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.process_accounting import Usage, tree_cpu_s
from bench.target import Target

TARGET_FILE, WINDOW_FILE = "target.json", "window.json"


@dataclass(frozen=True, slots=True)
class Command:
    """The command to run."""

    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run between the first and the last batch."""

    changes: int
    """Changes that arrived after the window opened."""
    wall_s: float
    cpu_s: float
    total_changes: int
    """All changes, including those of the first batch."""
    cold_wall_s: float = 0.0
    cold_cpu_s: float = 0.0
    """From the request for the first byte to the last change, including the start of the workers; 0 if not measured."""


class Contender(Protocol):
    """A program that reads the binary log or copies the tables."""

    title: str
    note: str
    repeats: int
    """The number of runs; the median by CPU seconds counts. More than 1 only if a run takes a second or less."""

    mysql_only: bool
    """Refuses a server that reports to be MariaDB."""

    def command(self, target: Target, scratch: Path) -> Command: ...

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:
        """Return the measured window after checking that all changes were read."""


def python_command(name: str, target: Target, scratch: Path) -> Command:
    """Build the command that runs the contender `name` in a fresh interpreter. It reads its target from `scratch` and writes its window
    there."""
    target.save(scratch / TARGET_FILE)
    return Command([sys.executable, "-m", "bench.contenders", name, str(scratch)])


def read_window(scratch: Path) -> Window:
    return Window(**json.loads((scratch / WINDOW_FILE).read_text()))


class Reader(Contender, Protocol):
    """A contender that is Python code of the benchmark, or Java that this code calls."""

    def read(self, target: Target) -> Window: ...


class Stopwatch:
    """Wall and CPU time since its creation, of this process alone or with all its descendants."""

    def __init__(self, *, whole_tree: bool = False) -> None:
        self._read_cpu_s = tree_cpu_s if whole_tree else time.process_time
        self._wall = time.perf_counter()
        self._cpu = self._read_cpu_s()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, self._read_cpu_s() - self._cpu
