"""Runs contenders on one corpus, one at a time, each in a fresh process tree and an empty scratch directory."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench.command_usage import measure_command, read_cpu_s
from bench.contenders.base import Contender, Window
from bench.corpus import Corpus
from bench.process_accounting import Usage
from bench.target import Target

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one contender."""

    title: str
    note: str
    window: Window
    usage: Usage
    server_cpu_s: float
    """CPU seconds of the source server during the run, mostly for sending the log. Not counted for the contender."""

    @property
    def rate(self) -> float:
        return self.window.changes / self.window.wall_s

    @property
    def cpu_rate(self) -> float:
        return self.window.changes / self.window.cpu_s

    @property
    def start_up_s(self) -> float:
        """Wall time of the run outside the window."""
        return self.usage.wall_s - self.window.wall_s


def run_contender(contender: Contender, corpus: Corpus) -> Result:
    """Return the contender's median run by CPU seconds."""
    with _suitable_target(contender, corpus) as target:
        runs = sorted((run_once(contender, target) for _ in range(contender.repeats)), key=lambda result: result.window.cpu_s)
    return runs[len(runs) // 2]


def _suitable_target(contender: Contender, corpus: Corpus) -> AbstractContextManager[Target]:
    return corpus.disguised() if contender.mysql_only else nullcontext(corpus.target())


def run_once(contender: Contender, target: Target) -> Result:
    """Run the contender in an empty directory."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        scratch = Path(directory)
        command = contender.command(target, scratch)
        server_before = read_cpu_s(target.pid)
        usage = measure_command(command.argv, directory=scratch, environment={**python_environment(), **command.environment})
        server_cpu_s = read_cpu_s(target.pid) - server_before
        return Result(contender.title, contender.note, contender.window(target, scratch, usage), usage, server_cpu_s)


def python_environment() -> dict[str, str]:
    """Return the environment with which an interpreter in another directory imports the same modules as this one."""
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), *(str(Path(entry).resolve()) for entry in inherited)))}
