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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pymysql

from headrace.errors import DefiniteError, TransientError
from headrace.sources.mysql import framing
from headrace.sources.mysql.connection import (
    ACCESS_DENIED,
    MySQLAddress,
    connect,
    is_mariadb,
    missing_privilege,
    server_errors,
    translate_error,
)
from headrace.sources.mysql.events import (
    CHECKSUM_SIZE,
    FORMAT_DESCRIPTION_EVENT,
    HEADER_SIZE,
    HEARTBEAT_EVENT,
    HEARTBEAT_EVENT_V2,
    ROTATE_EVENT,
    parse_format_description,
    parse_rotate,
)
from headrace.sources.mysql.position import BinlogPosition

_REGISTER_SLAVE, _BINLOG_DUMP = 0x15, 0x12
_NON_BLOCKING, _WITH_ANNOTATIONS = 1, 2
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
    """Events from here on end in a checksum, or do not."""

    checksum: bool


Piece = npt.NDArray[np.uint8] | NewFile | NewFormat | None
"""Bytes of the current file (a view, valid until the next piece), news about the file, or None: the server is idle."""


class ReplicationStream:
    """One connection that follows the log from a position on."""

    def __init__(self, address: MySQLAddress, position: BinlogPosition, *, blocking: bool = True, identity: str = "") -> None:
        self._address = address
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
            # Wakes the thread that waits for bytes: closing alone would not.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._connection._force_close()

    def pieces(self) -> Iterator[Piece]:
        """Pieces as they arrive; ends when the server has no more (only if not blocking)."""
        state = self._state
        while True:
            state[framing.OUT] = 0
            status = framing.deframe(self._raw, self._filled, self._events, state)
            if state[framing.OUT]:
                yield self._events[: state[framing.OUT]]
                continue
            if status == framing.MORE:
                self._receive()
            elif status == framing.OUT_FULL:
                self._events = np.empty(2 * len(self._events), dtype=np.uint8)
            elif status == framing.BAD_SEQUENCE:
                raise TransientError("the replication stream is out of step", place=str(self._address))
            else:
                payload = self._take_packet()
                if status == framing.SERVER_STATUS and self._is_end(payload):
                    return
                if status == framing.ARTIFICIAL:
                    yield self._news(payload)

    def _check_identity(self, identity: str) -> None:
        """A name may lead to another server after a failover; our file and offset mean something else there."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT @@global.{'server_id' if is_mariadb(self._connection) else 'server_uuid'}")
            found = str(cursor.fetchone()[0])
        if found != identity:
            raise DefiniteError(
                f"another server answers at the source's address: {found} instead of {identity}",
                place=str(self._address),
                hint="start Headrace again with the same state: it goes on there by GTID, if that server has what is needed",
            )

    def _request(self, position: BinlogPosition, blocking: bool) -> None:
        if position.offset >= 1 << 32:
            raise DefiniteError(
                f"cannot start reading at {position}: the protocol's positions end at 4 GiB",
                hint="start over: remove the state directory and the target tables",
            )
        server_id = random.SystemRandom().randrange(1 << 30, 1 << 32)
        with self._connection.cursor() as cursor:
            for side in ("master", "source"):
                cursor.execute(f"SET @{side}_binlog_checksum = @@global.binlog_checksum")
                cursor.execute(f"SET @{side}_heartbeat_period = {_HEARTBEAT_S * 10**9}")
            cursor.execute("SET @mariadb_slave_capability = 4")
            cursor.execute("SELECT @@global.binlog_checksum")
            # Decides how the first, artificial rotation ends; from then on each file's format description does.
            self._checksum = cursor.fetchone()[0] == "CRC32"
        host = f"headrace-{os.getpid()}".encode()
        register = struct.pack("<I", server_id) + bytes([len(host)]) + host + b"\0\0" + struct.pack("<HII", 0, 0, 0)
        self._connection._execute_command(_REGISTER_SLAVE, register)
        self._connection._read_packet()
        flags = 0 if blocking else _NON_BLOCKING
        if is_mariadb(self._connection):
            # Else MariaDB leaves events out, and the mirror would have gaps.
            flags |= _WITH_ANNOTATIONS
        self._connection._execute_command(_BINLOG_DUMP, struct.pack("<IHI", position.offset, flags, server_id) + position.file.encode())

    def _receive(self) -> None:
        """Take in what has arrived; heartbeats come often enough that silence is a fault."""
        at = int(self._state[framing.IN])
        if at:
            self._raw[: self._filled - at] = self._raw[at : self._filled].copy()
            self._filled -= at
            self._state[framing.IN] = 0
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
        at = int(self._state[framing.IN])
        size = int.from_bytes(self._raw[at : at + 3].tobytes(), "little")
        self._state[framing.IN] = at + 4 + size
        self._state[framing.SEQUENCE] += 1
        return self._raw[at + 4 : at + 4 + size].tobytes()

    def _is_end(self, payload: bytes) -> bool:
        if payload[:1] == b"\xfe" and len(payload) < 9:
            return True
        if payload[:1] == b"\xff":
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
            return None
        if kind == ROTATE_EVENT:
            name, offset = parse_rotate(body[:-CHECKSUM_SIZE] if self._checksum else body, place)
            return NewFile(name, offset)
        if kind == FORMAT_DESCRIPTION_EVENT:
            self._checksum = parse_format_description(body, place).checksum
            return NewFormat(self._checksum)
        return None
