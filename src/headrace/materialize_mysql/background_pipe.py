"""Starts, inspects and stops pipes that run in the background.

A pipe's directory has everything needed to start it again: plan, settings, secret (readable by its owner only), state and log. Invariant:
at most one keeper runs a directory (by its lock), and after `stop` no process of the pipe runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.materialize_mysql import keeper
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.settings.settings_file import PlainSettings
from headrace.settings.toml_text import to_toml

SETTINGS: Final = "settings.toml"
# -P: a module in the working directory must not shadow one of Headrace's.
PYTHON: Final = (sys.executable, "-P", "-m")
REPLICATE: Final = "replicate"
"""The command that a pipe runs; the source's address follows it."""
_PACKAGES: Final = Path(__file__).resolve().parents[2]
_BEGIN_S: Final = 180.0
_KEEPER_S: Final = 30.0
_END_S: Final = 120.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class BackgroundPipe:
    directory: Path

    @property
    def is_running(self) -> bool:
        """Whether a keeper, or a replicating process that lost its keeper, runs on the directory."""
        return self._keeper_pid() is not None or (self.directory.exists() and StateDirectory(self.directory, make=False).is_owned)

    @property
    def status(self) -> dict[str, Any]:
        """The keeper's last status; empty if there is none."""
        file = self.directory / keeper.STATUS
        try:
            content: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            return {}
        return content

    @property
    def log(self) -> Path:
        return self.directory / keeper.LOG

    def secrets(self) -> dict[str, str]:
        """Return the passwords that the pipe was started with."""
        file = self.directory / keeper.SECRET
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def source(self) -> str:
        """Return the source's address that the stored passwords belong to; empty if the pipe has no plan."""
        file = self.directory / keeper.PLAN
        command: list[str] = json.loads(file.read_text())["command"] if file.exists() else []
        return command[command.index(REPLICATE) + 1] if REPLICATE in command else ""

    def write(self, command: Sequence[str], settings: PlainSettings, secrets: Mapping[str, str], retry_ms: int) -> None:
        """Store what the pipe runs with: the command (without state and settings), and the secret environment variables."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write_file(keeper.SECRET, json.dumps(dict(secrets)))
        if not (self.directory / SETTINGS).exists():
            # The user may have edited the stored settings.
            self._write_file(SETTINGS, to_toml(settings))
        whole = [*command, "--state", str(self.directory), "--settings", str(self.directory / SETTINGS)]
        self._write_file(keeper.PLAN, json.dumps({"command": whole, "retry_ms": retry_ms}))

    def start(self, hidden: tuple[str, ...]) -> None:
        """Start the keeper, which outlives this process. `hidden` are variables that it must not inherit."""
        self._await_exit(_END_S)
        (self.directory / keeper.STATUS).unlink(missing_ok=True)
        found = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
        environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"PYTHONPATH": found}
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            subprocess.run(
                [*PYTHON, keeper.__name__, str(self.directory)],
                check=True,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def restart(self, hidden: tuple[str, ...]) -> None:
        """Start the keeper with the stored command, which this installation of Headrace runs."""
        try:
            plan = json.loads((self.directory / keeper.PLAN).read_text())
        except FileNotFoundError as error:
            raise DefiniteError(
                "the pipe has no plan: its statement was interrupted",
                place=str(self.directory),
                hint="give CREATE DATABASE IF NOT EXISTS … with all arguments, or DROP DATABASE",
            ) from error
        plan["command"][: len(PYTHON)] = PYTHON
        self._write_file(keeper.PLAN, json.dumps(plan))
        self.start(hidden)

    def await_started(self, *, even_without_source: bool) -> None:
        """Wait until the pipe runs; raise its error if it fails. A transient failure counts too, unless the source may be away."""
        deadline = time.monotonic() + _BEGIN_S
        while True:
            status, running = self.status, self._keeper_pid() is not None
            state = status.get("state", "")
            if state == keeper.RUNNING or (state == keeper.WAITING and even_without_source):
                return
            if state in (keeper.FAILED, keeper.WAITING):
                raise _failure(status)
            if state == keeper.STOPPED or (state and not running):
                raise DefiniteError("the pipe ended before it had begun", place=str(self.directory), hint=f"see {self.log}")
            if not state and not running and time.monotonic() > deadline - _BEGIN_S + _KEEPER_S:
                raise DefiniteError("the pipe's keeper did not start", place=str(self.directory), hint=f"see {self.log}")
            if time.monotonic() > deadline:
                raise TransientError("the pipe has not begun in time", place=str(self.directory), hint=f"see {self.log}")
            time.sleep(_POLL_S)

    def request_stop(self) -> None:
        """Send the keeper the signal to stop, and do not wait."""
        pid = self._keeper_pid()
        if pid is not None:
            _send(pid, signal.SIGTERM)

    def owns_server(self, root: Path) -> bool:
        """Whether the pipe started the embedded server of a directory, which then ends with it."""
        serving = read_serving_process(root)
        return serving is not None and serving.pid > 0 and _parent_of(serving.pid) in self._replicating_pids()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the keeper and the pipe. They are killed after the block, or continue if it fails."""
        pids = [pid for pid in (self._keeper_pid(), *self._replicating_pids()) if pid]
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        try:
            yield
        except BaseException:
            for pid in reversed(pids):
                _send(pid, signal.SIGCONT)
            raise
        for pid in pids:
            _send(pid, signal.SIGKILL)

    def _replicating_pids(self) -> tuple[int, ...]:
        pid = int(self.status.get("pid", 0))
        return (pid,) if pid and self._keeper_pid() is not None else ()

    def stop(self) -> None:
        """Stop the keeper and the pipe, by force if needed, and wait until they have ended."""
        pid = self._keeper_pid()
        if pid is not None:
            _send(pid, signal.SIGTERM)
            deadline = time.monotonic() + _END_S
            while self._keeper_pid() == pid and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if self._keeper_pid() == pid:
                # The replicating process and its children end with their keeper.
                _send(pid, signal.SIGKILL)
        self._await_exit(_END_S)

    def remove(self) -> None:
        """Remove the directory, and its parents that are empty then."""
        shutil.rmtree(self.directory, ignore_errors=False)
        for around in self.directory.parents[:3]:
            if any(around.iterdir()):
                break
            around.rmdir()
            if around.name == "headrace":
                break

    def _write_file(self, name: str, text: str) -> None:
        new = self.directory / f"{name}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.directory / name)

    def _keeper_pid(self) -> int | None:
        """Return the process that holds the keeper's lock."""
        try:
            file = (self.directory / keeper.LOCK).open("r")
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = file.read().strip()
                return int(text) if text else 0
        return None

    def _await_exit(self, wait_s: float) -> None:
        """Wait until the last process of an earlier run has ended."""
        if self.directory.exists():
            StateDirectory(self.directory, make=False).acquire(wait_s).release()


def _failure(status: Mapping[str, Any]) -> HeadraceError:
    kind = TransientError if status["transient"] else DefiniteError
    return kind(status["failed"], place=status["place"], hint=status["hint"])


def _parent_of(pid: int) -> int:
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    # The second field is the program's name, in parentheses, and may contain anything.
    return int(content.rpartition(")")[2].split()[1])


def _send(pid: int, number: int) -> None:
    if pid:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
