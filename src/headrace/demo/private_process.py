"""A private server process with its own directory and ports on 127.0.0.1.

It ends with the process that started it, also when that process is killed. Its directory remains: `kill` followed by `start` is a crash and
a recovery. A subclass defines the server with `_prepare`, `_command` and `_answers`.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from headrace.errors import DefiniteError, TransientError

# Below the range the kernel hands to outgoing connections: a stopped server's port is not taken (or self-connected) by its own clients.
PORT_RANGE = (12000, 32000)


class PrivateProcess:
    """One server process with its own directory. Not thread-safe."""

    log_name: ClassVar[str] = "server.log"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 90.0
    stop_timeout_s: ClassVar[float] = 60.0
    poll_s: ClassVar[float] = 0.03

    def __init__(self, title: str, directory: Path) -> None:
        self.title = title
        """Its name in messages."""
        self.directory = directory.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._refusal = ""
        """Why the last connection attempt failed, if known."""

    @property
    def log_file(self) -> Path:
        """What the process writes to its standard output and error."""
        return self.directory / self.log_name

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> Self:
        """Start the server, on the data it had if it ran before, and return once it serves clients."""
        if self.pid is not None:
            return self
        self._forget()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal must not stop the server before this process.
                start_new_session=True,
                **self._popen_options(),
            )
        self._reaper = _spawn_reaper(self._process.pid)
        try:
            self._await(self._answers, "serve clients")
            self._complete()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Shut the server down."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(self.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                message = f"{self.title} did not stop within {self.stop_timeout_s:.0f} s and was killed"
                raise TransientError(message, place=str(self.log_file)) from None
        self._forget()

    def kill(self) -> None:
        """End the server as a crash would: SIGKILL, no shutdown."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def remove(self) -> None:
        """Kill the server and delete its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Prepare the directory; called before every start."""

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _popen_options(self) -> dict[str, Any]:
        """Return more options for `Popen`, such as a user or an environment."""
        return {}

    def _answers(self) -> bool:
        """Return whether it serves clients; if not, `_refusal` may have the reason."""
        raise NotImplementedError

    def _complete(self) -> None:
        """Run once the server serves clients."""

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition of the running server; raise with the end of its log if it exits or takes too long."""
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while not holds():
            if self._process.poll() is not None:
                message = f"{self.title} ended with code {self._process.returncode}; its log ends with:\n{self._log_tail()}"
                raise DefiniteError(message, place=str(self.log_file), hint="correct what the log complains about")
            if time.monotonic() > deadline:
                why = f" ({self._refusal})" if self._refusal else ""
                message = f"{self.title} did not {what} within {self.start_timeout_s:.0f} s{why}; its log ends with:\n{self._log_tail()}"
                raise TransientError(message, place=str(self.log_file))
            time.sleep(self.poll_s)

    def _log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:]) if self.log_file.exists() else "(no log)"

    def _forget(self) -> None:
        """Drop ended processes; stop the reaper."""
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            if self._reaper.stdin is not None:
                self._reaper.stdin.close()
        self._process = self._reaper = None


def find_free_port() -> int:
    """Return a free TCP port of 127.0.0.1."""
    chooser = random.SystemRandom()
    for _ in range(200):
        port = chooser.randrange(*PORT_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise TransientError("no free port found", place=f"127.0.0.1:{PORT_RANGE[0]}-{PORT_RANGE[1]}")


def _spawn_reaper(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that kills `pid` when this process ends: its standard input then ends.

    The kernel's parent-death signal is not used: it fires when the starting *thread* ends, and a test may restart a server from a thread.
    """
    script = 'read -r _; kill -KILL "$1"'
    return subprocess.Popen(["/bin/sh", "-c", script, "headrace-reaper", str(pid)], stdin=subprocess.PIPE, start_new_session=True)
