"""Signals at chosen moments of a command, and the rules that every command must meet then.

A moment is counted from when the command handles SIGTERM, which is its first line: before that, the interpreter starts (15 ms), and the
kernel's default applies. After the signal: the exit code of the signal, no error message on the terminal, no process of the run, and no
temporary directory.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.machine.wait_condition import wait_until
from testkit.pipelines.pipeline import Run, command_lines

LIMIT_S = 5.0
"""The time in which a command must end."""
_NOISE = re.compile(r"Traceback|Exception|KeyboardInterrupt|Error\b|ERROR|headrace: (?!dashboard|pipe )")
_START_S = 30.0


@dataclass(frozen=True, slots=True)
class Interruption:
    """One signal, or two."""

    after_s: float
    number: signal.Signals = signal.SIGINT
    group: bool = False
    again_s: float | None = None
    """When a second signal follows the first."""

    def __str__(self) -> str:
        again = f", again after {self.again_s:.1f} s" if self.again_s is not None else ""
        return f"{self.number.name} to the {'group' if self.group else 'process'} at {self.after_s:.2f} s{again}"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The outcome."""

    code: int
    took_s: float
    output: str
    ended_before: bool
    """Whether the command had ended before the signal."""


def interrupt(arguments: Sequence[str], home: Path, what: Interruption, environment: dict[str, str] | None = None) -> Interrupted:
    """Start a command, send the signals, and check the rules; `home` is for its log and temporary files."""
    temporary = home / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    log = home / "command.log"
    log.unlink(missing_ok=True)
    run = Run(arguments, log, {**(environment or {}), "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"})
    try:
        _await_handlers(run)
        begun = time.monotonic()
        while run.code is None and time.monotonic() - begun < what.after_s:
            time.sleep(0.005)
        if run.code is not None:
            return Interrupted(run.code, 0.0, run.output, ended_before=True)
        return _ended(run, what, temporary)
    finally:
        run.kill()


def _ended(run: Run, what: Interruption, temporary: Path) -> Interrupted:
    _send(run, what)
    sent = time.monotonic()
    if what.again_s is not None:
        while run.code is None and time.monotonic() - sent < what.again_s:
            time.sleep(0.005)
        if run.code is None:
            _send(run, what)
            sent = time.monotonic()
    done = run.wait(60)
    took_s = time.monotonic() - sent
    left = run.processes()
    assert not left, f"{what}: these processes are left:\n{command_lines(left)}\n{done.output}"
    assert not _NOISE.search(done.output), f"{what}: it printed:\n{done.output}"
    assert done.code == 128 + what.number, f"{what}: exit code {done.code}\n{done.output}"
    # Spark's own directories are Java's matter: it removes them unless it is killed.
    found = [path.name for path in temporary.glob("headrace-*")]
    assert not found, f"{what}: these temporary directories are left: {found}"
    return Interrupted(done.code, took_s, done.output, ended_before=False)


def _send(run: Run, what: Interruption) -> None:
    try:
        if what.group:
            os.killpg(run.pid, what.number)
        else:
            os.kill(run.pid, what.number)
    except ProcessLookupError:
        return


def _await_handlers(run: Run) -> None:
    """Wait for the program's first line: the kernel shows that SIGTERM is caught."""
    wait_until(lambda: run.code is not None or _catches(run.pid, signal.SIGTERM), _START_S, 0.001)


def _catches(pid: int, number: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)
