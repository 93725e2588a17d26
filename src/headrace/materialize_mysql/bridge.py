"""`python -m headrace.materialize_mysql.bridge DIR FD`: runs requests of the embedded server of a directory.

The server starts it before it confines itself. Each request comes as a socket over the control socket FD, and gets a process
(`bridged_request`), which reads the request from that socket and writes the answer to it. When the control socket closes, the server has
ended: the bridge ends the running requests. If the server has reported that it hosts the pipes of the directory, the bridge stops them; a
server that did not get the directory has not. It imports the standard library only, because every embedded server has one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

HOSTING: Final = b"h"
"""The message of a server that hosts the pipes and serves the directory; every other message brings a request."""
REQUEST: Final = "headrace.materialize_mysql.bridged_request"
_END_S: Final = 5.0


class Bridge:
    """The requests of one server."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._hosts = False

    def serve(self, control: socket.socket) -> None:
        """Run requests until the server closes its end."""
        while True:
            try:
                received, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except ConnectionError:
                return
            if not received:
                return
            self._hosts = self._hosts or received == HOSTING
            self._running = [process for process in self._running if process.poll() is None]
            for descriptor in descriptors:
                with socket.socket(fileno=descriptor) as request:
                    self._running.append(self.start(stdin=request.fileno(), stdout=request.fileno()))

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        # -P: a module in the working directory must not shadow one of Headrace's.
        return subprocess.Popen([sys.executable, "-P", "-m", REQUEST, self._directory, *arguments], stdin=stdin, stdout=stdout)

    def end(self) -> None:
        """End the requests of a server that has ended, and stop the pipes that it hosted. Each request can be repeated."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._hosts and Path(self._directory, "headrace", "pipes").is_dir():
            self.start("--stop").wait()


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
