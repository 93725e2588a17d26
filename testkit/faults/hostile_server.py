"""A server on loopback that attacks its clients, for fault injection: each accepted connection is one call of the attack."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Attack = Callable[[socket.socket], None]


@contextlib.contextmanager
def hostile_port(attack: Attack) -> Iterator[int]:
    """The port of a server that does this to every client; it ends with the `with` block."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                connection.settimeout(60)
                attack(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join(5)
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data


@contextlib.contextmanager
def bounded(most_mib: int, most_s: float = 60.0) -> Iterator[None]:
    """Fail if the block takes more time, or adds more memory to this process."""
    Path("/proc/self/clear_refs").write_text("5")
    begin, before = time.monotonic(), _peak_mib()
    yield
    assert time.monotonic() - begin < most_s
    assert _peak_mib() - before < most_mib


def _peak_mib() -> int:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) >> 10
