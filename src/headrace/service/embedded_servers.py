"""Embedded ClickHouse servers that several pipes of a process fill: each directory is served for as long as the process lives.

A pipe that opened one for itself would take it away from the others when it ends.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from headrace.embedded.engine.directory_lock import read_holder
from headrace.embedded.process import EmbeddedServer

SCHEME: Final = "chdb:"


class Warehouses:
    """Started with the first need, again when they have died. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Path, EmbeddedServer] = {}
        self._closed = False

    def ensure(self, sink: str) -> None:
        """See to it that an embedded sink is served; does nothing for others."""
        if not sink.startswith(SCHEME):
            return
        path = Path(sink.removeprefix(SCHEME)).resolve()
        with self._lock:
            if self._closed or read_holder(path) is not None:
                return
            dead = self._servers.pop(path, None)
            if dead is not None:
                dead.stop()
            self._servers[path] = EmbeddedServer.connect_or_start(path)

    def is_lost(self, sink: str) -> bool:
        """Whether an embedded sink is served by nobody now."""
        return sink.startswith(SCHEME) and read_holder(Path(sink.removeprefix(SCHEME)).resolve()) is None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for server in self._servers.values():
                server.stop()
            self._servers.clear()

    def __enter__(self) -> Warehouses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
