"""`python -m headrace.materialize_mysql.keeper DIR`: the process that keeps the pipe of a directory running.

It starts `headrace replicate`, receives its messages, and restarts it after a transient error or a crash; a definite error ends it, because
a retry cannot help. Invariant: while the directory's lock file is locked, its keeper runs, and `status.json` has the pipe's status. The
replicating process ends with its keeper. Passwords come from the file `secret`, which only its owner can read, and go to the replicating
process through its environment; they appear in no argument and no log.

`KeeperLink` is the other end of their link: one socket, both ways. The replicating process reports that it has started, or why it ends.
When the keeper closes its end, or when the sink's embedded server is lost, the process stops in order; the keeper starts it again with a
new server.
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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headrace.errors import HeadraceError, TransientError

_WATCH_S = 2.0
_GRACE_S = 30.0

PLAN, SECRET, STATUS, LOCK, LOG = "keeper.json", "secret", "status.json", "keeper.lock", "pipe.log"
STARTING, RUNNING, WAITING, FAILED, STOPPED = "starting", "running", "waiting", "failed", "stopped"
_MOST_WAIT_S: Final = 60.0
_LONG_RUN_S: Final = 60.0
_LOG_BYTES: Final = 16 << 20


class KeeperLink:
    """Socket to the keeper process; a no-op when fd < 0."""

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = None
        self.is_in_vain: Callable[[], bool] = lambda: False
        """Polled regularly: whether the process should stop and be started again."""
        if fd >= 0:
            # Spark and the embedded server must not inherit the socket: it must close with this process.
            os.set_inheritable(fd, False)
            self._socket = socket.socket(fileno=fd)
            threading.Thread(target=self._watch, args=(self._socket,), name="headrace-lifeline", daemon=True).start()

    def begun(self) -> None:
        self._send({"begun": True})

    def failed(self, error: HeadraceError) -> None:
        transient = isinstance(error, TransientError)
        self._send({"failed": error.message, "place": error.place, "hint": error.hint, "transient": transient})

    def _watch(self, line: socket.socket) -> None:
        """Stop this process when the keeper has exited, or when its sink is lost."""
        with suppress(OSError):
            while not self.is_in_vain():
                if select.select([line], [], [], _WATCH_S)[0] and not line.recv(64):
                    break
        os.kill(os.getpid(), signal.SIGTERM)
        # A process that waits for an unavailable server may not handle the first signal in time. The second ends it at once, which is safe.
        time.sleep(_GRACE_S)
        os.kill(os.getpid(), signal.SIGTERM)

    def _send(self, message: dict[str, object]) -> None:
        if self._socket is not None:
            # The keeper has exited, so this process is about to stop.
            with suppress(OSError):
                self._socket.sendall(json.dumps(message).encode() + b"\n")


@contextmanager
def open_keeper_link(fd: int) -> Iterator[KeeperLink]:
    """Open the link; it reports an error that ends the block."""
    line = KeeperLink(fd)
    try:
        yield line
    except HeadraceError as error:
        line.failed(error)
        raise


class Keeper:
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
        ended = f"the pipe ended without a message (code {code})"
        return failure or {"failed": ended, "place": "", "hint": f"see {LOG}", "transient": True}

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
