"""A replicating process's line to the process that keeps it running.

One socket, both ways: the replicating process says that it has begun, or why it ends; when the other end closes, its keeper is gone,
however that came, and it ends in order, as after a signal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.errors import HeadraceError, TransientError


class Lifeline:
    """This process's end of the line; without one (`fd` below 0), everything is said to nobody."""

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = None
        if fd >= 0:
            # Neither Spark nor the embedded server may hold the line: it must close with this process.
            os.set_inheritable(fd, False)
            self._socket = socket.socket(fileno=fd)
            threading.Thread(target=_end_with, args=(self._socket,), name="headrace-lifeline", daemon=True).start()

    def begun(self) -> None:
        self._say({"begun": True})

    def failed(self, error: HeadraceError) -> None:
        transient = isinstance(error, TransientError)
        self._say({"failed": error.message, "place": error.place, "hint": error.hint, "transient": transient})

    def _say(self, message: dict[str, object]) -> None:
        if self._socket is not None:
            # A keeper that is gone hears nothing; this process is about to end then.
            with suppress(OSError):
                self._socket.sendall(json.dumps(message).encode() + b"\n")


@contextmanager
def held_line(fd: int) -> Iterator[Lifeline]:
    """The line, which hears of the error that ends the block."""
    line = Lifeline(fd)
    try:
        yield line
    except HeadraceError as error:
        line.failed(error)
        raise


def _end_with(line: socket.socket) -> None:
    with suppress(OSError):
        while line.recv(64):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
