"""A server on loopback that attacks its clients, for fault injection: each accepted connection is one call of the attack."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

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
