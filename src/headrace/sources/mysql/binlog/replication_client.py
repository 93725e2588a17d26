"""The replication connection: a server's raw log events, as a replica receives them.

It yields pieces of the log exactly as they lie in the server's files. A connection failure is transient: the caller reconnects at the last
whole transaction. An error that the server reports about the log itself is definite.
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
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.event_types import CHECKSUM_SIZE, HEADER_SIZE, MAGIC, created_at, parse_format_description, parse_rotate
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
from headrace.sources.mysql.server.position import BinlogPosition

_REGISTER_SLAVE, _BINLOG_DUMP, _BINLOG_DUMP_GTID = 0x15, 0x12, 0x1E
_NON_BLOCKING, _WITH_ANNOTATIONS = 1, 2
_PLAIN_POSITIONS: Final = 1 << 32
_SERVER_IDS: Final = range(1 << 30, 1 << 32)
_SYNTAX_ERROR: Final = 1064
_HEARTBEAT_S: Final = 2
_SILENCE_S: Final = 30
_BUFFER_BYTES: Final = 4 << 20
_GATHER_S: Final = 0.02
_FEW_BYTES: Final = 8 << 10
"""After so few bytes, the stream receives again when `_GATHER_S` has passed: a piece costs as much as many small transactions. A stream
that is behind does not wait: a full record of TLS has twice as many bytes.
"""


@dataclass(frozen=True, slots=True)
class NewFile:
    """The server continues with this file at this offset."""

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
    """The server has sent all of its log, and has been idle since."""


HEARTBEAT: Final = Heartbeat()

Piece = npt.NDArray[np.uint8] | NewFile | NewFormat | Heartbeat | None
"""Bytes of the current file (a view, valid until the next piece), a change of file or format, a heartbeat, or None for anything else."""


class ReplicationStream:
    """One connection that reads the log from a position on."""

    def __init__(self, address: MySQLAddress, position: BinlogPosition, *, blocking: bool = True, identity: str = "") -> None:
        self.address = address
        self.clock_skew_us = 0
        """How far the server's clock is ahead of this machine's."""
        self._format_comes = self._file_begins = False
        self._checksum = False
        """Whether the next artificial rotation ends in a checksum, as the events of the preceding file do."""
        self._connection: Any = connect(address, read_timeout_s=_SILENCE_S, identity=identity)
        # Keep a reference: the driver forgets its socket when another thread closes the connection.
        self._socket: socket.socket = cast(Any, self._connection)._sock
        with server_errors(address):
            try:
                self._request(position, blocking)
            except DefiniteError:
                self.close()
                raise
            except pymysql.err.OperationalError as error:
                self.close()
                # The login succeeded, so this error means that the account lacks the replication privilege.
                if error.args[0] in ACCESS_DENIED:
                    raise missing_privilege("it may not read the binary log (REPLICATION SLAVE)", address) from error
                raise
        self._raw = np.empty(_BUFFER_BYTES, dtype=np.uint8)
        self._filled = 0
        self._events = np.empty(_BUFFER_BYTES, dtype=np.uint8)
        self._state = np.array([0, 0, 0, 1], dtype=np.int64)
        self._blocking, self._next_receipt_s = blocking, 0.0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes the thread that waits for bytes, which closing alone would not. The method of an encrypted socket would drop the cipher
            # first, and that thread would read the remaining bytes as plain text.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._connection._force_close()

    def drain(self) -> None:
        """Receive and discard the log to its end (only if not blocking); raise the server's refusal. Loads no kernels."""
        with server_errors(self.address):
            while not self._connection._read_packet().is_eof_packet():
                pass

    def pieces(self) -> Iterator[Piece]:
        """Yield pieces as they arrive; end when the server has no more (only if not blocking)."""
        # Commands that only try a request do not load the kernels.
        from headrace.sources.mysql.kernels import packets

        state = self._state
        while True:
            state[packets.OUT] = 0
            status = packets.deframe(self._raw, self._filled, self._events, state)
            if state[packets.OUT]:
                yield from self._take_format(self._events[: state[packets.OUT]])
                continue
            if status == packets.MORE:
                self._receive()
            elif status == packets.OUT_FULL:
                self._events = np.empty(2 * len(self._events), dtype=np.uint8)
            elif status == packets.BAD_SEQUENCE:
                raise TransientError("the replication stream is out of step", place=str(self.address))
            else:
                payload = self._take_packet()
                if status == packets.SERVER_STATUS and self._is_end(payload):
                    return
                if status == packets.ARTIFICIAL:
                    yield self._parse_control(payload)

    def _request(self, position: BinlogPosition, blocking: bool) -> None:
        mariadb = is_mariadb(self._connection)
        with self._connection.cursor() as cursor:
            # Query it once: the setting may change at any time, and the server uses the value set here for the first, artificial rotation.
            cursor.execute("SELECT @@global.binlog_checksum")
            algorithm = str(cursor.fetchone()[0])
            self._checksum = algorithm == "CRC32"
            for side in ("master", "source"):
                cursor.execute(f"SET @{side}_binlog_checksum = %s", (algorithm,))
                cursor.execute(f"SET @{side}_heartbeat_period = {_HEARTBEAT_S * 10**9}")
            # MySQL ends an older dump of the same uuid, and treats all dumps without a uuid as the same.
            name = uuid.uuid4()
            cursor.execute(f"SET @mariadb_slave_capability = 4, @slave_uuid = '{name}', @replica_uuid = '{name}'")
            asked_us = time.time_ns() // 1000
            cursor.execute("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")
            # The server read its clock about halfway between request and response.
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
            # Without the flag MariaDB omits events, and the copy would have gaps.
            flags |= _WITH_ANNOTATIONS
        self._connection._execute_command(_BINLOG_DUMP, struct.pack("<IHI", position.offset, flags, server_id) + position.file.encode())

    def _next_file(self, cursor: Any, position: BinlogPosition) -> BinlogPosition:
        """Return the start of the next file, for a position that the request cannot hold: a file ends after the transaction that made it so
        large.
        """
        cursor.execute("SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (position.file, position.offset))
        found = cursor.fetchone()
        if found is None:
            raise TransientError(f"waiting for the log file after {position}", place=str(self.address))
        if str(found[2]) != "Rotate":
            raise DefiniteError(
                f"cannot start reading at {position}: without MySQL's GTIDs the protocol's positions end at 4 GiB",
                place=str(self.address),
                hint="turn GTIDs on (gtid_mode = ON), or start over: remove the state directory and the target tables",
            )
        return BinlogPosition(str(found[5]).partition(";")[0], len(MAGIC), epoch=position.epoch)

    def _take_format(self, piece: npt.NDArray[np.uint8]) -> Iterator[Piece]:
        """Record the format description at the beginning of a file: a server may change its checksum algorithm at any rotation.

        A wide request is answered with the format from the beginning of the file. It is reported as `NewFormat` and is not part of the log
        at the requested position.
        """
        if (self._file_begins or self._format_comes) and piece[4] == event_types.FORMAT_DESCRIPTION_EVENT:
            size = int.from_bytes(piece[9:13].tobytes(), "little")
            if not HEADER_SIZE <= size <= len(piece):
                raise TransientError("the replication stream cannot be read", place=str(self.address))
            news = self._parse_control(b"\0" + piece[:size].tobytes())
            if self._format_comes:
                yield news
                piece = piece[size:]
        self._file_begins = self._format_comes = False
        if len(piece):
            yield piece

    def _receive(self) -> None:
        """Receive bytes. Heartbeats come often enough that a timeout is a fault."""
        from headrace.sources.mysql.kernels import packets

        at = int(self._state[packets.IN])
        if at:
            self._raw[: self._filled - at] = self._raw[at : self._filled].copy()
            self._filled -= at
            self._state[packets.IN] = 0
        if self._filled > LARGEST_ROW_BYTES:
            raise DefiniteError(
                "an event of the log is longer than any server sends",
                place=str(self.address),
                hint="check host and port of the source's address: the answer is not from a MySQL or MariaDB server",
            )
        if len(self._raw) - self._filled < _BUFFER_BYTES // 4:
            self._raw = np.concatenate((self._raw[: self._filled], np.empty(len(self._raw), dtype=np.uint8)))
        if (early_s := self._next_receipt_s - time.monotonic()) > 0:
            time.sleep(early_s)
        try:
            received = self._socket.recv_into(self._raw.data[self._filled :])
        except OSError as error:
            raise TransientError(f"the replication connection broke: {error}", place=str(self.address)) from error
        if not received:
            raise TransientError("the source closed the replication connection", place=str(self.address))
        self._filled += received
        self._next_receipt_s = time.monotonic() + _GATHER_S if self._blocking and received < _FEW_BYTES else 0.0

    def _take_packet(self) -> bytes:
        from headrace.sources.mysql.kernels import packets

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
                raise translate_error(error, self.address) from error
        raise TransientError("the replication stream cannot be read", place=str(self.address))

    def _parse_control(self, payload: bytes) -> Piece:
        """Parse a packet that is not part of the file."""
        kind = payload[5]
        body = payload[1 + HEADER_SIZE :]
        place = str(self.address)
        if kind in (event_types.HEARTBEAT_EVENT, event_types.HEARTBEAT_EVENT_V2):
            return HEARTBEAT
        if kind == event_types.ROTATE_EVENT:
            name, offset = parse_rotate(body[:-CHECKSUM_SIZE] if self._checksum else body, place)
            self._file_begins = offset == len(MAGIC)
            return NewFile(name, offset)
        if kind == event_types.FORMAT_DESCRIPTION_EVENT:
            self._checksum = parse_format_description(body, place).checksum
            return NewFormat(self._checksum, created_at(payload[1:]))
        return None


def choose_server_id(taken: Collection[int]) -> int:
    """Return a server id that no known replica uses. If a replica with the same id connects later, the server ends one of the two
    connections, and a new id is chosen.
    """
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
        # MariaDB lists replicas to administrators only, and old MySQL has another statement. Then the id is only random.
        if error.args[0] not in (*MISSING_PRIVILEGE, _SYNTAX_ERROR):
            raise
        return taken
    return taken | {int(row[0]) for row in cursor.fetchall()}


def _has_gtids(cursor: Any) -> bool:
    """MySQL supports the wide request only with GTIDs."""
    cursor.execute("SELECT @@global.gtid_mode")
    return str(cursor.fetchone()[0]).upper() == "ON"


def wide_dump_request(position: BinlogPosition, server_id: int, flags: int) -> bytes:
    """Return MySQL's newer dump request: 64-bit positions, and a set of GTIDs to skip, which is empty here."""
    file, nothing = position.file.encode(), struct.pack("<Q", 0)
    head = struct.pack("<HII", flags, server_id, len(file)) + file
    return head + struct.pack("<QI", position.offset, len(nothing)) + nothing
