"""The identity of a binary log at a position: proof that a log is the one that was read before.

A file name, an offset and a GTID set do not identify a log. A server that was reset, or restored from a backup, uses all three again for
other transactions. Bytes of committed transactions never change while their file exists, so a position carries a digest of the last
transaction before it and the creation time of its file. Both are compared before a log is read on (`log_comparison`).

The bytes of a transaction differ from server to server. For another server a position carries what replication preserves: the GTID of the
last transaction, the time of its original commit, and on MariaDB, which logs whole seconds, a digest of its first rows.

The identity takes no part in the order of positions. A position that version 0.9 saved has none; the first batch gives it one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.sources.mysql.events.event_types import (
    CHECKSUM_SIZE,
    DELETE_ROWS_EVENT_V1,
    FORMAT_DESCRIPTION_EVENT,
    GTID_EVENT,
    HEADER_SIZE,
    MAGIC,
    MARIADB_GTID_LIST_EVENT,
    PREVIOUS_GTIDS_EVENT,
    QUERY_EVENT,
    TABLE_MAP_EVENT,
    UPDATE_ROWS_EVENT_V1,
    WRITE_ROWS_EVENT_V1,
)

READ_AGAIN: Final = "to read every table again, run `headrace resync --new-log --state DIR`, then start the pipe again"
NEW_LOG: Final = (
    "the server was reset (RESET MASTER, RESET BINARY LOGS AND GTIDS), restored from a backup, or lost the end of its log in a crash "
    f"(sync_binlog = 1 prevents that); {READ_AGAIN}"
)
_MOST_BYTES: Final = 64 << 10
"""The most bytes that a digest covers. For a larger transaction, it covers the beginning."""
_MOST_ROW_BYTES: Final = 64
"""Servers may cut the rows of a statement into events of different sizes, but none into events smaller than this."""
_IN_USE_AT: Final = 17
_ROW_EVENTS: Final = (WRITE_ROWS_EVENT_V1, UPDATE_ROWS_EVENT_V1, DELETE_ROWS_EVENT_V1)
_HEAD_EVENTS: Final = (FORMAT_DESCRIPTION_EVENT, PREVIOUS_GTIDS_EVENT, MARIADB_GTID_LIST_EVENT)
_ORIGINAL_FOLLOWS: Final = 1 << 55


class LogReplaced(DefiniteError):
    """The log at the source is not the one that was read before."""


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """A transaction as every server that has replicated it logs it."""

    gtid: str
    committed_us: int = 0
    """When the original server committed it, in microseconds; 0 if the log does not say (MariaDB, MySQL before 8)."""
    second: int = 0
    """The second in which its first statement with rows, or its only statement, began; 0 if its events are compressed."""
    rows: str = ""
    """MariaDB: number of columns and digest of the first rows; empty if they are compressed, or if there are none."""

    def contradicts(self, other: LoggedTransaction) -> bool:
        """Whether the other one cannot be this transaction, although it has the same GTID."""
        if self.committed_us and other.committed_us:
            return self.committed_us != other.committed_us
        if self.second and other.second and self.second != other.second:
            return True
        width, _, digest = self.rows.partition(":")
        other_width, _, other_digest = other.rows.partition(":")
        # A replica may have more columns. Then the bytes of its rows may differ.
        return width == other_width and digest != other_digest


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Identifies the log file of a position, up to the position."""

    created: int
    """Seconds since 1970 in the header of the file's format description event."""
    start: int
    end: int
    digest: str
    """Of the bytes [start, end) of the file."""
    transaction: LoggedTransaction | None = None
    """The last transaction with a GTID before the position."""

    def to_json(self) -> list[Any]:
        last = self.transaction
        named = [] if last is None else list(astuple(last))
        return [self.created, self.start, self.end, self.digest, *named]

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        created, start, end, digest, *named = raw
        return cls(int(created), int(start), int(end), str(digest), LoggedTransaction(*named) if named else None)


class IdentifiedFile(Protocol):
    """A log file, or a relay's copy of one."""

    @property
    def path(self) -> Path: ...

    @property
    def start(self) -> int: ...

    @property
    def created(self) -> int: ...

    @property
    def checksum(self) -> bool: ...


def identify(
    file: IdentifiedFile, groups: npt.NDArray[np.int64], offset: int, before: LogIdentity | None, last: LoggedTransaction | None
) -> LogIdentity | None:
    """Return the identity at an offset of a file, after these groups of it.

    `before`: the identity at an earlier position of the same file, if there is one. `last`: the transaction before these groups.
    """
    # Imported only if there are groups: addresses use this module, and the scanner's kernels load slowly.
    from headrace.sources.mysql.kernels import scan

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
    """Return the digest of log bytes that lie at `start` of their file."""
    if start == len(MAGIC) and len(data) > _IN_USE_AT:
        # A server sets an in-use flag in the first event of the file that it writes, and clears it later.
        data = data[:_IN_USE_AT] + bytes([data[_IN_USE_AT] & 0xFE]) + data[_IN_USE_AT + 1 :]
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def created_at(event: bytes) -> int:
    """Return the creation time of a file from its format description event."""
    return int.from_bytes(event[:4], "little")


def describe_transaction(file: IdentifiedFile, group: npt.NDArray[np.int64], gtid: str) -> LoggedTransaction:
    """Return the transaction of a group of a log file."""
    from headrace.sources.mysql.kernels import scan

    start, end = group[[scan.START, scan.END]].tolist()
    committed_us, second, mariadb = 0, 0, ":" not in gtid
    for event in _events(_read(file.path, start, min(end, start + _MOST_BYTES))):
        kind = event[4]
        if kind == GTID_EVENT:
            committed_us = _original_commit(event[HEADER_SIZE:])
        elif kind in (QUERY_EVENT, TABLE_MAP_EVENT):
            second = int.from_bytes(event[:4], "little")
        elif mariadb and kind in _ROW_EVENTS:
            tail = CHECKSUM_SIZE if file.checksum else 0
            return LoggedTransaction(gtid, committed_us, second, _first_rows(event[HEADER_SIZE + 8 : len(event) - tail]))
        if kind == TABLE_MAP_EVENT and not mariadb:
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
    """Yield the whole events at the beginning of log bytes."""
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
