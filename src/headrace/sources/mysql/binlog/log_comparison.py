"""The identity of a binary log at a position, and its comparison with a server's log: proof that a log is the one that was read before.

A file name, an offset and a GTID set do not identify a log. A server that was reset, or restored from a backup, uses all three again for
other transactions. Bytes of committed transactions never change while their file exists, so a position carries a digest of the last
transaction before it and the creation time of its file. Both are compared before a log is read on; the server sends the bytes that the
identity covers.

Invariant: a log that passes is, up to the position, byte for byte the log that was read before. The check uses one short replication
connection, writes nothing and takes no lock.

The bytes of a transaction differ from server to server. For another server a position carries what replication preserves: the GTID of the
last transaction, the time of its original commit, and on MariaDB, which logs whole seconds, a digest of its first rows.

The identity takes no part in the order of positions. A position that version 0.9 saved has none; the first batch gives it one.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pymysql.connections import Connection

from headrace.errors import DefiniteError, HeadraceError
from headrace.sources.mysql.binlog.replication_client import NewFile, NewFormat, ReplicationStream
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, MAGIC, created_at
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.group_addresses import IndexedLogFile
from headrace.sources.mysql.server.connection import READ_AGAIN, LogUnavailable, MySQLAddress, connect, log_status, query
from headrace.sources.mysql.server.position import BinlogPosition, LoggedTransaction, LogIdentity, file_number

log = logging.getLogger("headrace.mysql")

KEEP_LOGS: Final = f"keep binary logs longer (binlog_expire_logs_seconds); {READ_AGAIN}"
NEW_LOG: Final = (
    "the server was reset (RESET MASTER, RESET BINARY LOGS AND GTIDS), restored from a backup, or lost the end of its log in a crash "
    f"(sync_binlog = 1 prevents that); {READ_AGAIN}"
)
_MOST_BYTES: Final = 64 << 10
"""The most bytes that a digest covers. For a larger transaction, it covers the beginning."""
_MOST_ROW_BYTES: Final = 64
"""Servers may cut the rows of a statement into events of different sizes, but none into events smaller than this."""
_IN_USE_AT: Final = 17
_ROW_EVENTS: Final = (event_types.WRITE_ROWS_EVENT_V1, event_types.UPDATE_ROWS_EVENT_V1, event_types.DELETE_ROWS_EVENT_V1)
_HEAD_EVENTS: Final = (event_types.FORMAT_DESCRIPTION_EVENT, event_types.PREVIOUS_GTIDS_EVENT, event_types.MARIADB_GTID_LIST_EVENT)
_ORIGINAL_FOLLOWS: Final = 1 << 55
_HEAD_BYTES: Final = 64 << 10
_LOOK_AT_LOG_END_S: Final = 5.0
"""How often an idle stream is compared with the end of the server's log."""
_CHECK_IDLE_LOG_S: Final = 60.0
"""How often the log of an idle stream is compared even though its end has not moved."""


class LogReplaced(DefiniteError):
    """The log at the source is not the one that was read before."""


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


def identify(
    file: IndexedLogFile, groups: npt.NDArray[np.int64], offset: int, before: LogIdentity | None, last: LoggedTransaction | None
) -> LogIdentity | None:
    """Return the identity at an offset of a file, after these groups of it.

    `before`: the identity at an earlier position of the same file, if there is one. `last`: the transaction before these groups.
    """
    ends = np.flatnonzero(groups[:, scan.KIND] != scan.FILE_END)
    if len(ends):
        start, end = groups[ends[-1], [scan.START, scan.END]].tolist()
    elif before is not None:
        return replace(before, transaction=last)
    elif file.start == len(MAGIC):
        start, end = len(MAGIC), offset
    else:
        # The bytes before the position are not available. The creation time of the file still distinguishes two logs.
        start = end = offset
    if not file.created:
        return None
    data = _read(file.path, start, min(end, start + _MOST_BYTES))
    return LogIdentity(file.created, start, start + len(data), digest_of(data, start), last)


def digest_of(data: bytes, start: int) -> str:
    if start == len(MAGIC) and len(data) > _IN_USE_AT:
        # A server sets an in-use flag in the first event of the file that it writes, and clears it later.
        data = data[:_IN_USE_AT] + bytes([data[_IN_USE_AT] & 0xFE]) + data[_IN_USE_AT + 1 :]
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def describe_transaction(file: IndexedLogFile, group: npt.NDArray[np.int64], gtid: str) -> LoggedTransaction:
    start, end = group[[scan.START, scan.END]].tolist()
    committed_us, second, mariadb = 0, 0, ":" not in gtid
    for event in _events(_read(file.path, start, min(end, start + _MOST_BYTES))):
        kind = event[4]
        if kind == event_types.GTID_EVENT:
            committed_us = _original_commit(event[HEADER_SIZE:])
        elif kind in (event_types.QUERY_EVENT, event_types.TABLE_MAP_EVENT):
            second = int.from_bytes(event[:4], "little")
        elif mariadb and kind in _ROW_EVENTS:
            tail = CHECKSUM_SIZE if file.checksum else 0
            return LoggedTransaction(gtid, committed_us, second, _first_rows(event[HEADER_SIZE + 8 : len(event) - tail]))
        if kind == event_types.TABLE_MAP_EVENT and not mariadb:
            break
    return LoggedTransaction(gtid, committed_us, second)


def head_size(data: bytes) -> int:
    """Return the size of the events at the beginning of a file that describe the file itself, without the magic number."""
    size = 0
    for event in _events(data):
        if event[4] not in _HEAD_EVENTS:
            break
        size += len(event)
    return size


def _original_commit(body: bytes) -> int:
    """Return the original commit time in a GTID event; 0 if the server is too old to log it."""
    if len(body) < 49:
        return 0
    immediate = int.from_bytes(body[42:49], "little")
    if not immediate & _ORIGINAL_FOLLOWS:
        return immediate
    return int.from_bytes(body[49:56], "little") if len(body) >= 56 else 0


def _first_rows(body: bytes) -> str:
    """Return the number of columns and the digest of the first rows, from the part of a row event after table id and flags."""
    width = body[0] if body and body[0] < 251 else int.from_bytes(body[1:3], "little")
    return f"{width}:{hashlib.blake2b(body[:_MOST_ROW_BYTES], digest_size=8).hexdigest()}"


def _events(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + HEADER_SIZE <= len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < HEADER_SIZE or at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def _read(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)
