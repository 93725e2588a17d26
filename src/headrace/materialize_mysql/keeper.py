"""`python -m headrace.materialize_mysql.keeper DIR`: the process that keeps the pipe of a directory running.

It starts `headrace replicate`, receives its messages, and restarts it after a transient error or a crash; a definite error ends it, because
a retry cannot help. Invariant: while the directory's lock file is locked, its keeper runs, and `status.json` has the pipe's status. The
replicating process ends with its keeper. Passwords come from the file `secret`, which only its owner can read, and go to the replicating
process through its environment; they appear in no argument and no log.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

PLAN, SECRET, STATUS, LOCK, LOG = "keeper.json", "secret", "status.json", "keeper.lock", "pipe.log"
STARTING, RUNNING, WAITING, FAILED, STOPPED = "starting", "running", "waiting", "failed", "stopped"
_MOST_WAIT_S: Final = 60.0
_LONG_RUN_S: Final = 60.0
_LOG_BYTES: Final = 16 << 20


class Keeper:
    """Keeps one pipe running."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        plan = json.loads((directory / PLAN).read_text())
        self._command: list[str] = plan["command"]
        self._retry_s: float = plan["retry_ms"] / 1000
        self._stopping = False
        # A signal handler may interrupt code that holds an event's lock, so it writes to a pipe instead.
        self._woken, self._wake = os.pipe()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        failures = 0
        while not self._stopping:
            began = time.monotonic()
            failure = self._run_once()
            if self._stopping:
                break
            if not failure["transient"] or self._retry_s < 0:
                self._write_status(FAILED, **failure)
                return 2
            failures = 0 if time.monotonic() - began > _LONG_RUN_S else failures + 1
            wait_s = min(max(self._retry_s, _MOST_WAIT_S), max(self._retry_s, 0.1) * 2 ** min(failures, 10))
            self._write_status(WAITING, **failure, wait_s=wait_s)
            select.select([self._woken], [], [], wait_s)
        self._write_status(STOPPED)
        return 0

    def _run_once(self) -> dict[str, Any]:
        """Run the pipe to its end; return why it ended."""
        self._write_status(STARTING)
        self._shorten_log()
        receiver, sender = socket.socketpair()
        with receiver:
            with sender:
                self._child = subprocess.Popen(
                    [*self._command, "--keeper-fd", str(sender.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(sender.fileno(),),
                    env={**os.environ, **json.loads((self._directory / SECRET).read_text())},
                )
            if self._stopping:
                # The signal arrived before the child was started.
                self._child.terminate()
            failure = self._receive_messages(receiver)
        code = self._child.wait()
        return failure or {"failed": f"the pipe ended without a word (code {code})", "place": "", "hint": f"see {LOG}", "transient": True}

    def _receive_messages(self, line: socket.socket) -> dict[str, Any] | None:
        """Receive the child's messages until it closes the socket; return its failure."""
        failure, rest = None, b""
        while True:
            try:
                piece = line.recv(4096)
            except ConnectionResetError:
                return failure
            if not piece:
                return failure
            *whole, rest = (rest + piece).split(b"\n")
            for message in map(json.loads, whole):
                if "begun" in message:
                    self._write_status(RUNNING)
                else:
                    failure = message

    def _write_status(self, state: str, **more: Any) -> None:
        pid = self._child.pid if self._child is not None and state in (STARTING, RUNNING) else 0
        content = {"state": state, "since": time.time(), "pid": pid, **more}
        new = self._directory / f"{STATUS}.new"
        new.write_text(json.dumps(content))
        new.replace(self._directory / STATUS)

    def _shorten_log(self) -> None:
        """Limit the log of a pipe that restarts again and again."""
        file = self._directory / LOG
        if file.exists() and file.stat().st_size > _LOG_BYTES:
            tail = file.read_bytes()[-_LOG_BYTES // 4 :]
            # Written in place, because standard output is this file.
            with file.open("r+b") as log:
                log.write(tail)
                log.truncate()

    def _on_signal(self, *_: object) -> None:
        self._stopping = True
        os.write(self._wake, b"!")
        if self._child is not None and self._child.returncode is None:
            self._child.terminate()


def main() -> int:
    """Leave the caller's session, take the lock, keep the pipe running."""
    directory = Path(sys.argv[1])
    if os.fork():
        # The caller waits only for this process; the keeper becomes an orphan.
        os._exit(0)
    os.setsid()
    # Never closed: the kernel releases the lock when this process ends.
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("another process keeps this pipe", file=sys.stderr)
        return 3
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return Keeper(directory).run()


if __name__ == "__main__":
    sys.exit(main())
