"""`python -m headrace.materialize_mysql.bridge DIR FD`: runs requests of the embedded server of a directory.

The server starts it before it confines itself. Each request comes as a socket over the control socket FD, and gets a process
(`bridged_request`), which reads the request from that socket and writes the answer to it. When the control socket closes, the server has
ended: the bridge ends the running requests. If the server has reported that it hosts the pipes of the directory, the bridge stops them; a
server that did not get the directory has not. It imports the standard library only, because every embedded server has one.

Invariant: one bridge at a time starts and stops the hosted pipes of a directory, by a lock. The bridge of a server that was killed holds it
until the pipes have stopped. Without the lock, the next server would find pipes that still run, and would not resume them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

HOSTING: Final = b"h"
"""The message of a server that hosts the pipes and serves the directory; it can bring the request that resumes them."""
LOCK: Final = "headrace-host.lock"
REQUEST: Final = "headrace.materialize_mysql.bridged_request"
_END_S: Final = 5.0
_TURN_S: Final = 20.0
_STOP_RETRIES_S: Final = (0.5, 1.0, 2.0, 4.0, 0.0)


class Bridge:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._hosts = False
        self._has_turn = threading.Event()
        self._ended = False

    def serve(self, control: socket.socket) -> None:
        """Run requests until the server closes its end."""
        while True:
            try:
                received, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except ConnectionError:
                return
            if not received:
                return
            requests = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            if received == HOSTING:
                self._hosts = True
                threading.Thread(target=self._host, args=(requests,), daemon=True).start()
            else:
                self._start_requests(requests)

    def end(self) -> None:
        """End the requests of a server that has ended, and stop the pipes that it hosted. Each request can be repeated."""
        with self._lock:
            self._ended = True
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Another bridge that keeps the lock hosts the pipes.
        if self._hosts and self._has_turn.wait(_TURN_S) and Path(self._directory, "headrace", "pipes").is_dir():
            self._stop_pipes()

    def _host(self, requests: list[socket.socket]) -> None:
        """Wait until the bridge of an earlier server has stopped its pipes, then start the requests. The lock ends with this process."""
        fd = os.open(Path(self._directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._has_turn.set()
        self._start_requests(requests)

    def _stop_pipes(self) -> None:
        for wait_s in _STOP_RETRIES_S:
            try:
                self._start("--stop").wait()
                return
            except OSError as error:
                print(f"the process that stops the pipes cannot start: {error}", file=sys.stderr, flush=True)
                time.sleep(wait_s)

    def _start_requests(self, requests: list[socket.socket]) -> None:
        with self._lock:
            self._running = [process for process in self._running if process.poll() is None]
            for request in requests:
                with request:
                    if self._ended:
                        continue
                    try:
                        self._running.append(self._start(stdin=request.fileno(), stdout=request.fileno()))
                    except OSError as error:
                        # The closed socket ends this request only. The hosted pipes still need the bridge.
                        print(f"the process of a request cannot start: {error}", file=sys.stderr, flush=True)

    def _start(self, *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        # -P: a module in the working directory must not shadow one of Headrace's.
        return subprocess.Popen([sys.executable, "-P", "-m", REQUEST, self._directory, *arguments], stdin=stdin, stdout=stdout)


def main() -> int:
    directory, fd = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(fd, False)
    bridge = Bridge(directory)
    with contextlib.closing(socket.socket(fileno=fd)) as control:
        bridge.serve(control)
    bridge.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
