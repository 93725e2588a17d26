"""A replicating process's line to the process that keeps it running.

One socket, both ways: the replicating process says that it has begun, or why it ends; when the other end closes, its keeper is gone,
however that came, and it ends in order, as after a signal. So it does when its sink is gone for good: started anew, it finds another.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.errors import HeadraceError, TransientError

_WATCH_S = 2.0
_GRACE_S = 30.0


class KeeperLink:
    """This process's end of the line; without one (`fd` below 0), everything is said to nobody."""

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = None
        self.is_in_vain: Callable[[], bool] = lambda: False
        """Asked now and then: whether it is no use to go on, and better to be started anew."""
        if fd >= 0:
            # Neither Spark nor the embedded server may hold the line: it must close with this process.
            os.set_inheritable(fd, False)
            self._socket = socket.socket(fileno=fd)
            threading.Thread(target=self._watch, args=(self._socket,), name="headrace-lifeline", daemon=True).start()

    def begun(self) -> None:
        self._say({"begun": True})

    def failed(self, error: HeadraceError) -> None:
        transient = isinstance(error, TransientError)
        self._say({"failed": error.message, "place": error.place, "hint": error.hint, "transient": transient})

    def _watch(self, line: socket.socket) -> None:
        """End this process in order when its keeper is gone, or when its work is in vain."""
        with suppress(OSError):
            while not self.is_in_vain():
                if select.select([line], [], [], _WATCH_S)[0] and not line.recv(64):
                    break
        os.kill(os.getpid(), signal.SIGTERM)
        # Whoever waits for a peer that is gone may not hear the first signal in time; the second ends at once, which the state survives.
        time.sleep(_GRACE_S)
        os.kill(os.getpid(), signal.SIGTERM)

    def _say(self, message: dict[str, object]) -> None:
        if self._socket is not None:
            # A keeper that is gone hears nothing; this process is about to end then.
            with suppress(OSError):
                self._socket.sendall(json.dumps(message).encode() + b"\n")


@contextmanager
def open_keeper_link(fd: int) -> Iterator[KeeperLink]:
    """The line, which hears of the error that ends the block."""
    line = KeeperLink(fd)
    try:
        yield line
    except HeadraceError as error:
        line.failed(error)
        raise
