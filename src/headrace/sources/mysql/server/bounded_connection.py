"""The driver's connection with limits on memory and time. An answer that breaks the protocol is a definite error.

Invariant: a hostile or broken server cannot make a command read a local file, send a password in the clear, hold more than `RESULT_BYTES`
for one result, or wait much longer than the address's timeouts. A handshake ends within `connect-timeout`, a result within `read-timeout`
of its first packet. Table rows and log events bypass the driver (`table_scan`, `replication_client`); only handshakes, catalog queries,
statuses and keys use this connection.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR
from pymysql.protocol import MysqlPacket

if TYPE_CHECKING:
    _Connection = Connection[Any]
else:
    _Connection = Connection

PACKET_BYTES: Final = 64 << 20
"""Limit of one packet. The longest legitimate packets are GTID sets and table definitions."""
RESULT_BYTES: Final = 512 << 20
"""Limit of one result, counted as Python holds it."""
LARGEST_ROW_BYTES: Final = (1 << 30) + (64 << 20)
"""Limit of a row or an event: `max_allowed_packet` is at most 1 GiB, plus a margin."""
_HANDSHAKE_BYTES: Final = 1 << 20
_ROW_BYTES: Final = 120
_VALUE_BYTES: Final = 60
_COLUMNS: Final = 4096
"""The most columns that a result of either server has."""
_FULL_PACKET: Final = 0xFFFFFF
_OK, _LOCAL_INFILE, _ERROR = 0x00, 0xFB, 0xFF
_INTEGER_BYTES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_CLEAR: Final = (b"mysql_clear_password", b"dialog", b"mysql_old_password")
_BROKEN: Final = (RuntimeError, AssertionError, LookupError, ValueError, TypeError, AttributeError, OverflowError, struct.error)
"""The exceptions that the driver raises for a malformed answer."""


class ProtocolError(pymysql.err.MySQLError):
    """The server sent data that the protocol does not allow, or more than the limits allow."""


class BoundedConnection(_Connection):
    _connecting = False
    _is_first = False
    _columns = 0
    _budget = _HANDSHAKE_BYTES
    _deadline: float | None = None
    _next_seq_id: int
    _rfile: Any
    _read_timeout: float
    _result: Any
    _secure: bool
    _force_close: Any

    def connect(self, sock: Any = None) -> None:
        self._connecting, self._deadline, self._budget = True, time.monotonic() + self._read_timeout, _HANDSHAKE_BYTES
        with _protocol_errors():
            super().connect(sock)
        self._connecting = False

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        super()._execute_command(command, sql)  # type: ignore[misc]
        self._is_first, self._columns = True, 0
        if not self._connecting:
            # The first packet may take as long as the query takes.
            self._deadline, self._budget = None, RESULT_BYTES

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        with _protocol_errors():
            found = super()._read_query_result(unbuffered)  # type: ignore[misc]
            if self._result.has_next:
                raise self._refused("it sent two results for one statement")
            return found

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        if plugin_name in _CLEAR and not self._secure:
            raise self._refused(f"it requires the password in plain text ({plugin_name.decode()}), which needs an encrypted connection")
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        parts: list[bytes] = []
        size, limit = 0, min(PACKET_BYTES, self._budget)
        while True:
            header = self._read_bytes(4)
            length = int.from_bytes(header[:3], "little")
            self._check_number(header[3])
            size += length
            if size > limit:
                raise self._refused(f"it sent more than {limit >> 20 or 1} MiB, which is more than a client accepts")
            parts.append(self._read_bytes(length))
            if length < _FULL_PACKET:
                break
        payload = b"".join(parts)
        if self._is_first:
            self._check_first(payload)
        self._budget -= size + _ROW_BYTES + _VALUE_BYTES * self._columns
        if self._deadline is None:
            self._deadline = time.monotonic() + self._read_timeout
        with _protocol_errors():
            packet = packet_type(payload, self.encoding)
            if packet.is_error_packet():
                packet.raise_for_error()
            return packet

    def _check_number(self, number: int) -> None:
        if number != self._next_seq_id:
            if number == 0:
                # A server that shuts down sends its last packet without a sequence number.
                self._force_close()
                raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
            raise self._refused(f"packet {number} came where packet {self._next_seq_id} was due")
        self._next_seq_id = (number + 1) % 256

    def _check_first(self, payload: bytes) -> None:
        """Check the first packet of an answer, which holds the number of columns."""
        self._is_first = False
        kind = payload[0] if payload else _ERROR
        if kind == _LOCAL_INFILE:
            raise self._refused("it requests a file of this machine (LOCAL INFILE), which is never sent")
        if kind in (_OK, _ERROR):
            return
        self._columns = int.from_bytes(payload[1 : 1 + _INTEGER_BYTES[kind]], "little") if kind in _INTEGER_BYTES else kind
        if self._columns > _COLUMNS:
            raise self._refused(f"it announced a result of {self._columns} columns")

    def _read_bytes(self, num_bytes: int) -> bytes:
        """Read piece by piece, so that a server that sends single bytes cannot extend the deadline."""
        parts: list[bytes] = []
        left = num_bytes
        while left:
            try:
                part = self._rfile.read1(left)
            except OSError as error:
                self._force_close()
                raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})") from error
            if not part:
                self._force_close()
                raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
            parts.append(part)
            left -= len(part)
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise self._refused(f"its answer did not end within {self._read_timeout:g} s of its beginning")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _refused(self, what: str) -> ProtocolError:
        self._force_close()
        return ProtocolError(0, what)


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """Convert the driver's exceptions for malformed answers to `ProtocolError`."""
    try:
        yield
    except _BROKEN as error:
        raise ProtocolError(0, f"its answer cannot be read ({type(error).__name__}: {error})") from error
    except (pymysql.err.InternalError, pymysql.err.OperationalError) as error:
        if error.args and not isinstance(error.args[0], int):
            raise ProtocolError(0, str(error.args[0])) from error
        raise
