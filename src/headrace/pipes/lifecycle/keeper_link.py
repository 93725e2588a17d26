"""The link from a replicating process to its keeper, the process that restarts it.

One socket, both ways. The replicating process reports that it has started, or why it ends. When the keeper closes its end, or when the
sink's embedded server is lost, the process stops in order; the keeper starts it again with a new server.
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
