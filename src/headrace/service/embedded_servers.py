"""Embedded ClickHouse servers shared by the pipes of a process; each runs as long as the process.

If a pipe started its own server, the end of that pipe would stop the server for the others.
"""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.embedded.process import EmbeddedServer
from headrace.sinks.clickhouse.connector import EMBEDDED_CLICKHOUSE, embedded_path


class EmbeddedServers:
    """Starts servers on first use and restarts servers that died. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Path, EmbeddedServer] = {}
        self._closed = False

    def ensure(self, sink: str) -> None:
        """Start the server of an embedded sink if it does not run; do nothing for other sinks."""
        if not EMBEDDED_CLICKHOUSE.is_address(sink):
            return
        path = embedded_path(sink).resolve()
        with self._lock:
            if self._closed or read_serving_process(path) is not None:
                return
            dead = self._servers.pop(path, None)
            if dead is not None:
                dead.stop()
            self._servers[path] = EmbeddedServer.connect_or_start(path, hosts_pipes=True)

    def is_down(self, sink: str) -> bool:
        """Return whether the sink's embedded server has exited."""
        return EMBEDDED_CLICKHOUSE.is_address(sink) and read_serving_process(embedded_path(sink).resolve()) is None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for server in self._servers.values():
                server.stop()
            self._servers.clear()

    def __enter__(self) -> EmbeddedServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
