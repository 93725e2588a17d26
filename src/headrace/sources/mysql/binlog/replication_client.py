"""The replication connection: a server's raw log events, as a replica gets them.

Yields pieces of log exactly as they lie in the server's files. Whatever goes wrong on the wire is transient (the caller reconnects at the
last whole transaction); what the server says about the log itself is definite.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pymysql

from headrace.errors import DefiniteError, TransientError
from headrace.sources.mysql.events.event_types import (
    CHECKSUM_SIZE,
    FORMAT_DESCRIPTION_EVENT,
    HEADER_SIZE,
    HEARTBEAT_EVENT,
    HEARTBEAT_EVENT_V2,
    MAGIC,
    ROTATE_EVENT,
    parse_format_description,
    parse_rotate,
)
from headrace.sources.mysql.kernels import packets
from headrace.sources.mysql.server.bounded_connection import LARGEST_ROW_BYTES
from headrace.sources.mysql.server.connection import (
    ACCESS_DENIED,
    MISSING_PRIVILEGE,
    MySQLAddress,
    connect,
    is_mariadb,
    missing_privilege,
    server_errors,
    translate_error,
)
from headrace.sources.mysql.server.log_identity import created_at
from headrace.sources.mysql.server.position import BinlogPosition

_REGISTER_SLAVE, _BINLOG_DUMP, _BINLOG_DUMP_GTID = 0x15, 0x12, 0x1E
_NON_BLOCKING, _WITH_ANNOTATIONS = 1, 2
_PLAIN_POSITIONS: Final = 1 << 32
_SERVER_IDS: Final = range(1 << 30, 1 << 32)
_SYNTAX_ERROR: Final = 1064
_HEARTBEAT_S: Final = 2
_SILENCE_S: Final = 30
_BUFFER_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class NewFile:
    """The server goes on with this file at this offset."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class NewFormat:
    """The format description of the current file, which lies before the requested position."""

    checksum: bool
    """Whether events end in a checksum."""
    created: int
    """When the file was created, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The server has sent all of its log, and has had nothing to send since."""


HEARTBEAT: Final = Heartbeat()

Piece = npt.NDArray[np.uint8] | NewFile | NewFormat | Heartbeat | None
"""Bytes of the current file (a view, valid until the next piece), news about the file, a heartbeat, or None: nothing of interest."""


class AnotherServer(DefiniteError):
    """Not the server whose log was read so far."""


class ReplicationStream:
    """One connection that follows the log from a position on."""

    def __init__(self, address: MySQLAddress, position: BinlogPosition, *, blocking: bool = True, identity: str = "") -> None:
        self._address = address
        self.clock_skew_us = 0
        """By how much the server's clock is ahead of this machine's."""
        self._format_comes = self._file_begins = False
        self._checksum = False
        """Whether the next artificial rotation ends in a checksum: as the events of the file before it do."""
        self._connection: Any = connect(address, read_timeout_s=_SILENCE_S)
        # Our own reference: the driver forgets its socket when another thread closes the connection.
        self._socket: socket.socket = cast(Any, self._connection)._sock
        with server_errors(address):
            try:
                if identity:
                    self._check_identity(identity)
                self._request(position, blocking)
            except DefiniteError:
                self.close()
                raise
            except pymysql.err.OperationalError as error:
                self.close()
                # The server let us in a moment ago; now it means that we may not be a replica.
                if error.args[0] in ACCESS_DENIED:
                    raise missing_privilege("it may not read the binary log (REPLICATION SLAVE)", address) from error
                raise
        self._raw = np.empty(_BUFFER_BYTES, dtype=np.uint8)
        self._filled = 0
        self._events = np.empty(_BUFFER_BYTES, dtype=np.uint8)
        self._state = np.array([0, 0, 0, 1], dtype=np.int64)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes the thread that waits for bytes: closing alone would not. Not the method of an encrypted socket, which would drop the
            # cipher first and let that thread read what is left as plain bytes.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._connection._force_close()

    def pieces(self) -> Iterator[Piece]:
        """Pieces as they arrive; ends when the server has no more (only if not blocking)."""
        state = self._state
        while True:
            state[packets.OUT] = 0
            status = packets.deframe(self._raw, self._filled, self._events, state)
            if state[packets.OUT]:
                yield from self._follow_format(self._events[: state[packets.OUT]])
                continue
            if status == packets.MORE:
                self._receive()
            elif status == packets.OUT_FULL:
                self._events = np.empty(2 * len(self._events), dtype=np.uint8)
            elif status == packets.BAD_SEQUENCE:
                raise TransientError("the replication stream is out of step", place=str(self._address))
            else:
                payload = self._take_packet()
                if status == packets.SERVER_STATUS and self._is_end(payload):
                    return
                if status == packets.ARTIFICIAL:
                    yield self._news(payload)

    def _check_identity(self, identity: str) -> None:
        """A name may lead to another server after a failover; our file and offset mean something else there."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT @@global.{'server_id' if is_mariadb(self._connection) else 'server_uuid'}")
            found = str(cursor.fetchone()[0])
        if found != identity:
            raise AnotherServer(
                f"another server answers at the source's address: {found} instead of {identity}",
                place=str(self._address),
                hint="start Headrace again with the same state: it goes on there by GTID, if that server has what is needed",
            )

    def _request(self, position: BinlogPosition, blocking: bool) -> None:
        mariadb = is_mariadb(self._connection)
        with self._connection.cursor() as cursor:
            # Asked once: the setting may change at any moment, and the server ends the first, artificial rotation as it is told to here.
            cursor.execute("SELECT @@global.binlog_checksum")
            algorithm = str(cursor.fetchone()[0])
            self._checksum = algorithm == "CRC32"
            for side in ("master", "source"):
                cursor.execute(f"SET @{side}_binlog_checksum = %s", (algorithm,))
                cursor.execute(f"SET @{side}_heartbeat_period = {_HEARTBEAT_S * 10**9}")
            # MySQL ends an older dump of the same uuid, and takes those without one for the same.
            name = uuid.uuid4()
            cursor.execute(f"SET @mariadb_slave_capability = 4, @slave_uuid = '{name}', @replica_uuid = '{name}'")
            asked_us = time.time_ns() // 1000
            cursor.execute("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")
            # The server looked at its clock about halfway between the question and the answer.
            self.clock_skew_us = int(cursor.fetchone()[0]) - (asked_us + time.time_ns() // 1000) // 2
            server_id = choose_server_id(_taken_server_ids(cursor, mariadb))
            wide = position.offset >= _PLAIN_POSITIONS and not mariadb and _has_gtids(cursor)
            if position.offset >= _PLAIN_POSITIONS and not wide:
                position = self._next_file(cursor, position)
        host = f"headrace-{os.getpid()}".encode()
        register = struct.pack("<I", server_id) + bytes([len(host)]) + host + b"\0\0" + struct.pack("<HII", 0, 0, 0)
        self._connection._execute_command(_REGISTER_SLAVE, register)
        self._connection._read_packet()
        flags = 0 if blocking else _NON_BLOCKING
        if wide:
            self._format_comes = position.offset > len(MAGIC)
            self._connection._execute_command(_BINLOG_DUMP_GTID, wide_dump_request(position, server_id, flags))
            return
        if mariadb:
            # Else MariaDB leaves events out, and the mirror would have gaps.
            flags |= _WITH_ANNOTATIONS
        self._connection._execute_command(_BINLOG_DUMP, struct.pack("<IHI", position.offset, flags, server_id) + position.file.encode())

    def _next_file(self, cursor: Any, position: BinlogPosition) -> BinlogPosition:
        """Where the log goes on after a position that the request cannot hold: files end after the transaction that made them so large."""
        cursor.execute("SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (position.file, position.offset))
        found = cursor.fetchone()
        if found is None:
            raise TransientError(f"waiting for the log file after {position}", place=str(self._address))
        if str(found[2]) != "Rotate":
            raise DefiniteError(
                f"cannot start reading at {position}: without MySQL's GTIDs the protocol's positions end at 4 GiB",
                place=str(self._address),
                hint="turn GTIDs on (gtid_mode = ON), or start over: remove the state directory and the target tables",
            )
        return BinlogPosition(str(found[5]).partition(";")[0], len(MAGIC), epoch=position.epoch)

    def _follow_format(self, piece: npt.NDArray[np.uint8]) -> Iterator[Piece]:
        """Note the format description that a file begins with: a server may change its checksum algorithm at any rotation.

        A wide request is answered with the file's format as it lies at its beginning, not where we are: that one is news, not log.
        """
        if (self._file_begins or self._format_comes) and piece[4] == FORMAT_DESCRIPTION_EVENT:
            size = int.from_bytes(piece[9:13].tobytes(), "little")
            if not HEADER_SIZE <= size <= len(piece):
                raise TransientError("the replication stream cannot be read", place=str(self._address))
            news = self._news(b"\0" + piece[:size].tobytes())
            if self._format_comes:
                yield news
                piece = piece[size:]
        self._file_begins = self._format_comes = False
        if len(piece):
            yield piece

    def _receive(self) -> None:
        """Take in what has arrived; heartbeats come often enough that silence is a fault."""
        at = int(self._state[packets.IN])
        if at:
            self._raw[: self._filled - at] = self._raw[at : self._filled].copy()
            self._filled -= at
            self._state[packets.IN] = 0
        if self._filled > LARGEST_ROW_BYTES:
            raise DefiniteError(
                "an event of the log is longer than any server sends",
                place=str(self._address),
                hint="check host and port of the source's address: this is no answer of a MySQL or MariaDB server",
            )
        if len(self._raw) - self._filled < _BUFFER_BYTES // 4:
            self._raw = np.concatenate((self._raw[: self._filled], np.empty(len(self._raw), dtype=np.uint8)))
        try:
            received = self._socket.recv_into(self._raw.data[self._filled :])
        except OSError as error:
            raise TransientError(f"the replication connection broke: {error}", place=str(self._address)) from error
        if not received:
            raise TransientError("the source closed the replication connection", place=str(self._address))
        self._filled += received

    def _take_packet(self) -> bytes:
        at = int(self._state[packets.IN])
        size = int.from_bytes(self._raw[at : at + 3].tobytes(), "little")
        self._state[packets.IN] = at + 4 + size
        self._state[packets.SEQUENCE] += 1
        return self._raw[at + 4 : at + 4 + size].tobytes()

    def _is_end(self, payload: bytes) -> bool:
        if payload[:1] == b"\xfe" and len(payload) < 9:
            return True
        if payload[:1] == b"\xff" and len(payload) >= 3:
            try:
                pymysql.err.raise_mysql_exception(payload)
            except pymysql.err.MySQLError as error:
                raise translate_error(error, self._address) from error
        raise TransientError("the replication stream cannot be read", place=str(self._address))

    def _news(self, payload: bytes) -> Piece:
        """What a packet that is not part of the file says."""
        kind = payload[5]
        body = payload[1 + HEADER_SIZE :]
        place = str(self._address)
        if kind in (HEARTBEAT_EVENT, HEARTBEAT_EVENT_V2):
            return HEARTBEAT
        if kind == ROTATE_EVENT:
            name, offset = parse_rotate(body[:-CHECKSUM_SIZE] if self._checksum else body, place)
            self._file_begins = offset == len(MAGIC)
            return NewFile(name, offset)
        if kind == FORMAT_DESCRIPTION_EVENT:
            self._checksum = parse_format_description(body, place).checksum
            return NewFormat(self._checksum, created_at(payload[1:]))
        return None


def choose_server_id(taken: Collection[int]) -> int:
    """An id for us that no replica the server knows of has. One that comes later with the same ends one of us, and we choose anew."""
    chooser = random.SystemRandom()
    while (chosen := chooser.choice(_SERVER_IDS)) in taken:
        pass
    return chosen


def _taken_server_ids(cursor: Any, mariadb: bool) -> set[int]:
    cursor.execute("SELECT @@global.server_id")
    taken = {int(cursor.fetchone()[0])}
    try:
        cursor.execute("SHOW SLAVE HOSTS" if mariadb else "SHOW REPLICAS")
    except pymysql.err.MySQLError as error:
        # MariaDB shows them to administrators only, old MySQL by the other name: then chance alone keeps us apart.
        if error.args[0] not in (*MISSING_PRIVILEGE, _SYNTAX_ERROR):
            raise
        return taken
    return taken | {int(row[0]) for row in cursor.fetchall()}


def _has_gtids(cursor: Any) -> bool:
    """MySQL answers the wide request only then."""
    cursor.execute("SELECT @@global.gtid_mode")
    return str(cursor.fetchone()[0]).upper() == "ON"


def wide_dump_request(position: BinlogPosition, server_id: int, flags: int) -> bytes:
    """MySQL's newer request: positions of 64 bits, and a set of GTIDs to leave out, which is empty here."""
    file, nothing = position.file.encode(), struct.pack("<Q", 0)
    head = struct.pack("<HII", flags, server_id, len(file)) + file
    return head + struct.pack("<QI", position.offset, len(nothing)) + nothing
