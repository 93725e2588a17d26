"""Compares a server's log with the identity of a position. The server sends the bytes that the identity covers.

Invariant: a log that passes is, up to the position, byte for byte the log that was read before. The check uses one short replication
connection, writes nothing and takes no lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from pymysql.connections import Connection

from headrace.errors import DefiniteError, HeadraceError
from headrace.sources.mysql.binlog.replication_client import NewFile, NewFormat, ReplicationStream
from headrace.sources.mysql.events.event_types import MAGIC
from headrace.sources.mysql.server.connection import LogUnavailable, MySQLAddress, connect, log_status, query
from headrace.sources.mysql.server.log_identity import NEW_LOG, READ_AGAIN, LogIdentity, LogReplaced, created_at, digest_of, head_size
from headrace.sources.mysql.server.position import BinlogPosition, file_number

log = logging.getLogger("headrace.mysql")

KEEP_LOGS: Final = f"keep binary logs longer (binlog_expire_logs_seconds); {READ_AGAIN}"
_HEAD_BYTES: Final = 64 << 10
_LOOK_AT_LOG_END_S: Final = 5.0
"""How often an idle stream is compared with the end of the server's log."""
_CHECK_IDLE_LOG_S: Final = 60.0
"""How often the log of an idle stream is compared even though its end has not moved."""


class LogPurged(DefiniteError):
    """The server has removed the log file of a position; whether the log is the same is unknown."""


def check_log(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition, *, server: str = "") -> None:
    """Raise `LogReplaced` if the server's log is not the position's, `LogPurged` if the position's file is gone.

    `server`: the expected server identity, if known. A position without an identity passes if the log is long enough.
    """
    sizes = {str(row[0]): int(row[1]) for row in query(connection, address, "SHOW BINARY LOGS")}
    if position.file not in sizes:
        raise _missing_file(position, list(sizes), address)
    if position.offset > sizes[position.file]:
        raise log_replaced(position, f"{position.file} ends at {sizes[position.file]}, before the pipe's position", address)
    if position.identity is not None:
        _check_bytes(address, position, position.identity, server)


class LogWatch:
    """Compares the log of a server repeatedly while a relay reads it."""

    def __init__(self, address: MySQLAddress, server: str) -> None:
        self._address, self._server = address, server
        self._look_at = self._check_at = 0.0

    def check(self, known: BinlogPosition | None) -> None:
        """Raise if the server's log is no longer the log of the newest known position."""
        if known is not None and known.identity is not None:
            with closing(connect(self._address)) as connection:
                check_log(connection, self._address, known, server=self._server)
        self._check_at = time.monotonic() + _CHECK_IDLE_LOG_S

    def check_while_idle(self, known: Callable[[], BinlogPosition | None], reached: int) -> None:
        """Check the log of an idle stream: after a reset, a server may keep the stream open and send nothing on it.

        `reached`: the offset in its file up to which the stream has delivered the log.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_AT_LOG_END_S
        with closing(connect(self._address)) as connection:
            moved = log_status(connection, self._address)[1] != reached
        if moved or now >= self._check_at:
            self.check(known())

    def explain(self, error: DefiniteError, known: BinlogPosition | None) -> DefiniteError:
        """Return an error of the stream, or the replaced log that caused it."""
        try:
            self.check(known)
        except LogReplaced as replaced:
            replaced.__cause__ = error
            return replaced
        except HeadraceError as other:
            log.debug("the log cannot be compared: %s", other.message)
        return error


def identify_head(address: MySQLAddress, file: str) -> LogIdentity:
    """Return the identity of a log file by the events that describe the file itself."""
    created, data = read_log(address, file, len(MAGIC), len(MAGIC) + _HEAD_BYTES)
    head = data[: head_size(data)]
    return LogIdentity(created, len(MAGIC), len(MAGIC) + len(head), digest_of(head, len(MAGIC)))


def read_log(address: MySQLAddress, file: str, start: int, end: int, *, server: str = "") -> tuple[int, bytes]:
    """Return the creation time of a log file and its bytes [start, end), fewer if it is shorter. `start` is the start of an event."""
    created, found = 0, bytearray()
    with closing(ReplicationStream(address, BinlogPosition(file, start), blocking=False, identity=server)) as stream:
        for piece in stream.pieces():
            if isinstance(piece, NewFile) and piece.name != file:
                break
            if isinstance(piece, NewFormat):
                created = piece.created
            elif isinstance(piece, np.ndarray):
                found += piece[: end - start - len(found)].tobytes()
            if len(found) == end - start and (created or found):
                break
    if start == len(MAGIC):
        created = created_at(bytes(found))
    return created, bytes(found)


def _check_bytes(address: MySQLAddress, position: BinlogPosition, identity: LogIdentity, server: str) -> None:
    try:
        created, found = read_log(address, position.file, identity.start, identity.end, server=server)
    except LogUnavailable as error:
        # The server cannot send this range if its log has no event at this offset.
        raise log_replaced(position, f"no event begins at {position.file}:{identity.start}", address) from error
    if created != identity.created:
        raise log_replaced(position, f"{position.file} was created at {_time(created)}, not at {_time(identity.created)}", address)
    if len(found) < identity.end - identity.start or digest_of(found, identity.start) != identity.digest:
        raise log_replaced(position, f"{position.file} has other bytes from {identity.start} to {identity.end}", address)


def _missing_file(position: BinlogPosition, names: list[str], address: MySQLAddress) -> DefiniteError:
    newest = max(names, key=file_number) if names else ""
    if newest.rpartition(".")[0] == position.file.rpartition(".")[0] and file_number(newest) < file_number(position.file):
        return log_replaced(position, f"its newest file is {newest}", address)
    oldest = min(names, key=file_number) if names else "none"
    return LogPurged(
        f"the source no longer has binary log {position.file}, where replication must go on; its oldest is {oldest}",
        place=str(address),
        hint=KEEP_LOGS,
    )


def log_replaced(position: BinlogPosition, difference: str, address: MySQLAddress) -> LogReplaced:
    return LogReplaced(
        f"the source's binary log is not the one that was read up to {position}: {difference}", place=str(address), hint=NEW_LOG
    )


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
