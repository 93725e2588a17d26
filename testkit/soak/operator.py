"""Keeps the pipes running: restarts ended processes, as systemd does, and resumes failed pipes, as a person would.

Every action is recorded; a pipe that needs a person is a finding.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.pipelines.pipeline import Run

RESTART_S = 2.0
"""As RestartSec=2 of a systemd unit."""
DRIVER, JAVA, EMBEDDED, FORKER, SOURCE, DAEMON, WORKER = "driver", "JVM", "embedded ClickHouse", "forker", "source", "daemon", "worker"
_KINDS = (
    ("shell", "/bin/sh"),
    (EMBEDDED, "headrace.embedded"),
    (JAVA, "org.apache.spark"),
    (SOURCE, "streaming_source_runner"),
    (WORKER, "headrace.spark.runtime.worker_daemon"),
    (WORKER, "pyspark.daemon"),
)
_FIRST_OF = {WORKER: DAEMON, SOURCE: FORKER}
"""A forked process differs from the one that forked it only by its parent."""


@dataclass(slots=True)
class Unit:
    """One command that is kept running."""

    name: str
    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    run: Run | None = None
    ended_at: float = 0.0
    started_at: float = 0.0

    def start(self) -> None:
        self.run, self.started_at = Run(self.arguments, self.log, dict(self.environment)), time.monotonic()


@dataclass(slots=True)
class Operator:
    """Keeps units running."""

    units: Sequence[Unit]
    say: Callable[[str], None]
    control: Path | None = None
    """`control.json` of `headrace run`: the address of its control API."""
    starts: int = 0
    exits: Counter[str] = field(default_factory=Counter)
    """By unit and exit code."""
    resumed: list[str] = field(default_factory=list)
    _failed_since: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        for unit in self.units:
            unit.start()

    def tend(self) -> None:
        """Restart ended units; called about once a second."""
        now = time.monotonic()
        for unit in self.units:
            run = unit.run
            if run is None or run.code is None:
                continue
            if not unit.ended_at:
                unit.ended_at = now
                self.exits[f"{unit.name} {_exit(run.code)}"] += 1
                self.say(f"{unit.name} ended: {_exit(run.code)}; its log ends with: {_last_line(unit.log)}")
            elif now - unit.ended_at >= RESTART_S:
                unit.ended_at = 0.0
                self.starts += 1
                unit.start()
        self._help_failed(now)

    def _help_failed(self, now: float) -> None:
        """Resume a pipe that has been failed for half a minute, as a person would."""
        failed = {str(pipe["name"]): pipe for pipe in self.status() if pipe["stage"] == "failed"}
        self._failed_since = {name: self._failed_since.get(name, now) for name in failed}
        for name, since in list(self._failed_since.items()):
            if now - since > 30:
                self.resumed.append(f"{name}: {(failed[name].get('error') or {}).get('message', 'no error reported')}")
                self.say(f"resume {self.resumed[-1]}")
                self._post(f"pipes/{name}/resume")
                self._failed_since[name] = now

    def status(self) -> list[dict[str, Any]]:
        """Return the status of the pipes of `headrace run`; empty while it does not answer."""
        found = self._ask("status")
        return list(found["pipes"]) if found else []

    def _ask(self, what: str, body: bytes | None = None) -> Any:
        if self.control is None or not self.control.exists():
            return None
        try:
            known = json.loads(self.control.read_text())
            headers = {"Authorization": f"Bearer {known['token']}", "Content-Type": "application/json"}
            request = urllib.request.Request(f"{known['url'].rstrip('/')}/api/{what}", data=body, headers=headers)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except (OSError, ValueError, KeyError, urllib.error.URLError):
            return None

    def _post(self, what: str) -> None:
        self._ask(what, b"{}")

    def processes(self) -> dict[int, str]:
        """Return all running processes of the units, by kind."""
        return {pid: kind for unit in self.units if unit.run is not None for pid, kind in processes_of(unit.run).items()}

    def stop(self, timeout_s: float = 120.0) -> list[str]:
        """End everything in order; return the problems."""
        wrong = []
        for unit in self.units:
            run = unit.run
            if run is None:
                continue
            if run.code is None:
                os.kill(run.pid, signal.SIGTERM)
            try:
                done = run.wait(timeout_s)
            except AssertionError as error:
                wrong.append(f"{unit.name} did not end when it was asked to: {str(error)[-300:]}")
                continue
            if done.code not in (0, 128 + signal.SIGTERM):
                wrong.append(f"{unit.name} ended with code {done.code} when it was asked to end: {_last_line(unit.log)}")
            deadline = time.monotonic() + 20
            while (left := run.processes()) and time.monotonic() < deadline:
                time.sleep(0.2)
            if left:
                wrong.append(f"{unit.name} left processes behind: {sorted(map(_kind, left))}")
                run.kill()
        return wrong

    def kill(self) -> None:
        for unit in self.units:
            if unit.run is not None:
                unit.run.kill()


def processes_of(run: Run) -> dict[int, str]:
    """Return the running processes of a run, by kind."""
    found = {pid: DRIVER if pid == run.pid else _kind(pid) for pid in run.processes()}
    return {pid: _FIRST_OF[kind] if _is_first(pid, kind, found) else kind for pid, kind in found.items()}


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _kind(pid: int) -> str:
    line = _command_line(pid)
    return next((kind for kind, words in _KINDS if words in line), "other")


def _is_first(pid: int, kind: str, found: Mapping[int, str]) -> bool:
    """Whether a process forks others. (A source that was not forked has no such parent either, but has another name.)"""
    if kind == SOURCE and "headrace.spark.runtime.fork_server" not in _command_line(pid):
        return False
    return kind in _FIRST_OF and found.get(_parent(pid)) != kind


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines()[-40:] if line.strip()]
    said = [line for line in lines if line.startswith(("headrace:", "  remedy:"))]
    return " | ".join((said or lines)[-3:])[:600]
