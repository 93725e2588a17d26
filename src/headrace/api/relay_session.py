"""Where a feed starts and stops, and a temporary relay of the server's log for as long as the feed reads it."""

from __future__ import annotations

import json
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from headrace import shutdown
from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.sources.base import Offset
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.preflight.required import ServerIdentity, check_position
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.source import MySQLSource
from headrace.sources.mysql.split_reader import BinlogPlanner, PlannedSplit
from headrace.sources.mysql.start_position import FORMS, resolve_start


@dataclass(frozen=True, slots=True)
class FeedStart:
    """A start: the beginning of a batch, and which part of the batch was already returned."""

    position: BinlogPosition
    until: Offset | None = None
    """The end of the batch that was in progress; None if none was."""
    seen: dict[str, int] = field(default_factory=dict)
    tables: tuple[TableSchema, ...] = ()
    """The known table schemas at this position."""


def is_position(start: str | dict[str, Any]) -> bool:
    """Whether this is a stored position, not a keyword or a position in the log."""
    return not isinstance(start, str) or start.lstrip().startswith("{")


def resolve_place(connection: Connection[Any], address: MySQLAddress, start: str | dict[str, Any]) -> FeedStart:
    """Resolve any start that `resolve_start` accepts, or a stored position as a mapping or JSON text."""
    raw = _parse(start)
    if isinstance(raw, str):
        return FeedStart(resolve_start(connection, address, raw))
    position, partly = _position(raw), raw.get("partly") or {}
    check_position(connection, address, position)
    tables = tuple(TableSchema.from_json(table) for table in raw.get("tables", ()))
    return FeedStart(position, partly.get("until"), dict(partly.get("seen", {})), tables)


def resolve_stop(connection: Connection[Any], address: MySQLAddress, stop: str | dict[str, Any] | None) -> BinlogPosition | None:
    """Resolve `end` (of the log now), `FILE:OFFSET` (may lie in the future), or a position; None means never."""
    if stop is None:
        return None
    raw = _parse(stop)
    if raw == "end":
        return log_end(connection, address, 0)
    if isinstance(raw, dict):
        return _position(raw)
    file, _, offset = raw.rpartition(":")
    if not file or not offset.isdigit():
        raise DefiniteError(f"{raw!r} is not a place to stop at", hint='write "end", FILE:OFFSET, or a position that was handed out before')
    return BinlogPosition(file, int(offset))


def _parse(place: str | dict[str, Any]) -> str | dict[str, Any]:
    if not isinstance(place, str) or not is_position(place):
        return place
    try:
        raw: dict[str, Any] = json.loads(place)
    except ValueError as error:
        raise _unreadable(place) from error
    return raw


def _position(raw: dict[str, Any]) -> BinlogPosition:
    try:
        return BinlogPosition.from_json(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(json.dumps(raw)) from error


def _unreadable(text: str) -> DefiniteError:
    return DefiniteError(f"{text!r} is not a place in a log", hint=f"{FORMS}, or give a position that was handed out before")


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
