"""A temporary relay of a server's log, for as long as a feed reads it."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path

from headrace import shutdown
from headrace.sources.base import Offset
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.preflight.required import ServerIdentity
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import MySQLSource
from headrace.sources.mysql.split_reader import BinlogPlanner
from headrace.sources.mysql.splits import PlannedSplit


class RelaySession:
    """Plans batches of a log, up to `stop` if it is set. The relay directory is removed on `close`, garbage collection or process exit."""

    def __init__(
        self, address: MySQLAddress, server: ServerIdentity, start: BinlogPosition, relay_bytes: int, limits: BatchLimits, parent: str = ""
    ) -> None:
        directory = tempfile.TemporaryDirectory(prefix="headrace-", dir=parent or None, ignore_cleanup_errors=True)
        shutdown.remove_on_exit(directory.name)
        source = MySQLSource(address, start, Path(directory.name), relay_bytes, limits, server.mariadb, server.identity)
        self._planner = source.planner()
        self.stop: BinlogPosition | None = None
        self.close = weakref.finalize(self, _free, self._planner, directory)

    def plan(self, start: Offset) -> Offset | None:
        """Return the end of the next batch; `start` if no events came for a while; None if no batch is left before the stop."""
        begin, stop = BinlogPosition.from_json(start), self.stop
        if stop is not None and begin >= stop:
            return None
        end = self._planner.plan(start, None if stop is None else stop.to_json())
        if BinlogPosition.from_json(end) > begin:
            return end
        # A stop inside a transaction is reached when that transaction has been received.
        return None if stop is not None and self._planner.has_reached(stop.to_json()) else start

    def splits(self, start: Offset, end: Offset) -> list[PlannedSplit]:
        return self._planner.splits(start, end)

    def commit(self, end: Offset) -> None:
        self._planner.commit(end)


def _free(planner: BinlogPlanner, directory: tempfile.TemporaryDirectory[str]) -> None:
    planner.stop()
    directory.cleanup()
    shutdown.keep_on_exit(directory.name)
