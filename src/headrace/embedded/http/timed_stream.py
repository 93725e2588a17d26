"""A socket's bytes with a time by which they must have come: a client that sends a byte now and then does not hold a thread for ever."""

from __future__ import annotations

import socket
import time


class TimedSocket(socket.SocketIO):
    """The raw side of a buffered reader. While `deadline` (monotonic) is set, reading ends then, however often bytes come."""

    deadline: float | None = None

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "r")
        self._timed = sock

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the client takes too long to send its request")
            self._timed.settimeout(left)
        return super().readinto(buffer)
