"""The driver's connection with limits on a server's messages. A violation of the protocol is a definite error.

Invariant: a server, hostile or broken, cannot make this process hold more than a frame of `FRAME_BYTES` for a connection, unpack a frame to
more than that, or build rows that take more than `RESULT_BYTES` of an answer. Its messages that cannot be decoded close the connection.
After a connection is closed, its received frames are dropped: all connections of the process share one thread.

The driver finds where the rows of a page begin and leaves their bytes as the server sent them (`RawPage`). Its own parser decodes a page
only when the page is iterated, so one session serves both raw bytes and Python values.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cassandra.cluster import Cluster
from cassandra.connection import ConnectionShutdown, ProtocolError, _ConnectionIOBuffer
from cassandra.protocol import COMPRESSED_FLAG, ProtocolHandler, ResultMessage, _ProtocolHandler

FRAME_BYTES: Final = 256 << 20
"""Maximum size of a frame in the protocol."""
RESULT_BYTES: Final = 512 << 20
"""Maximum memory for the rows of one answer, as Python objects."""
COLUMNS: Final = 65_535
BROKEN: Final = "the server does not keep to CQL's protocol"
"""Prefixes of errors that a retry cannot fix. The driver passes on an error's text and not its type."""
violations: Final[dict[tuple[str, int], str]] = {}
"""The last protocol violation of each server, by address."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, struct.error)
"""Errors that the driver raises for unexpected messages."""
_ROW_BYTES, _VALUE_BYTES = 120, 60


def check_rows(rows: int, columns: int, left: int) -> None:
    """Raise `ProtocolError` for a number of rows that `left` bytes cannot hold, or that takes too much memory."""
    if rows < 0 or columns > COLUMNS or rows * max(columns, 1) * 4 > left:
        raise violation(f"it announced {rows} rows of {columns} columns in {left} bytes")
    if rows * (_ROW_BYTES + _VALUE_BYTES * columns) > RESULT_BYTES:
        raise violation(f"its {rows} rows of {columns} columns take more than {RESULT_BYTES >> 20} MiB")


def violation(what: str) -> ProtocolError:
    return ProtocolError(f"{BROKEN}: {what}")


class BoundedCqlConnection(Cluster.connection_class):  # type: ignore[misc]
    """A connection to an untrusted server."""

    def _connect_socket(self) -> None:
        # Nothing has been received yet.
        self._io_buffer = _BoundedReceiveBuffer(self)
        super()._connect_socket()

    def handle_read(self, *args: Any, **options: Any) -> None:
        try:
            super().handle_read(*args, **options)
        except Exception as error:  # noqa: BLE001 (the driver has no other place where it would be reported)
            self.defunct(error)

    def defunct(self, exc: BaseException) -> Any:
        """Close the connection. The driver then reconnects, and may report only the result of that."""
        # The driver also handles the notice of a closed connection as an answer, and fails in the same way.
        closed = isinstance(exc, OSError) or ConnectionShutdown.__name__ in str(exc)
        if isinstance(exc, (ProtocolError, *_UNREADABLE)) and not closed:
            message = str(exc) if BROKEN in str(exc) else str(violation(f"{type(exc).__name__}: {str(exc)[:200]}"))
            violations[self.endpoint.address, self.endpoint.port] = message
            exc = ProtocolError(message)
        return super().defunct(exc)

    def check_open(self) -> None:
        """Raise if the connection was closed. The driver checks this only before it receives, and decodes for minutes what a flood left."""
        if self.is_closed:
            raise ConnectionShutdown("the connection was closed")

    def _read_frame_header(self) -> int:
        self.check_open()
        position = int(super()._read_frame_header())
        if self._current_frame is not None and self._current_frame.end_pos > FRAME_BYTES:
            raise violation(f"it announced a frame of {self._current_frame.end_pos} bytes")
        return position

    def send_msg(self, msg: Any, request_id: int, cb: Any, *args: Any, **options: Any) -> Any:
        """Send a message whose answer is decoded with limits."""
        if len(args) > 1:
            args = (args[0], _checked(args[1]), *args[2:])
        else:
            options["decoder"] = _checked(options.get("decoder", ProtocolHandler.decode_message))
        return super().send_msg(msg, request_id, cb, *args, **options)


class _BoundedReceiveBuffer(_ConnectionIOBuffer):  # type: ignore[misc]
    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._io_buffer = _BoundedBytes(self._connection)

    def reset_io_buffer(self) -> None:
        rest = self._io_buffer.read()
        self._io_buffer = _BoundedBytes(self._connection)
        self._io_buffer.write(rest)


class _BoundedBytes(io.BytesIO):
    """Received bytes before decoding. The driver receives as long as bytes are available, and only then decodes."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: Any) -> int:
        self._connection.check_open()
        if self.tell() + len(data) > FRAME_BYTES + (1 << 20):
            raise violation(f"it sent more than {FRAME_BYTES >> 20} MiB at once")
        return super().write(data)


def _checked(decode: Callable[..., Any]) -> Callable[..., Any]:
    def decoded(version: int, features: Any, types: Any, stream: int, flags: int, opcode: int, body: bytes, *others: Any) -> Any:
        if flags & COMPRESSED_FLAG and int.from_bytes(body[:4], "big") > FRAME_BYTES:
            raise violation("it sent a frame that decompresses to more than the protocol allows")
        try:
            return decode(version, features, types, stream, flags, opcode, body, *others)
        except ProtocolError:
            raise
        except Exception as error:
            raise violation(f"its answer cannot be read ({type(error).__name__}: {str(error)[:200]})") from error

    return decoded


class _DecodeErrorFilter(logging.Filter):
    """Suppresses the driver's own log of an answer that it cannot decode, with all its bytes: the error is raised as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Error decoding response from Cassandra")


logging.getLogger("cassandra.connection").addFilter(_DecodeErrorFilter())


class RawPage:
    """The rows of one answer: `count` times, for each column, four bytes of length and a value."""

    def __init__(self, names: Sequence[str], body: bytes, start: int, count: int, again: tuple[Any, ...]) -> None:
        self.names = tuple(names)
        self.body = body
        self.start = start
        """Where the first row begins in `body`."""
        self.count = count
        self._again = again

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.decoded())

    def decoded(self) -> list[tuple[Any, ...]]:
        """The rows by the driver's own decoder."""
        kind, first, *others = self._again
        message = ProtocolHandler.message_types_by_opcode[ResultMessage.opcode](kind)
        message.recv_results_rows(io.BytesIO(self.body[first:]), *others)
        found: list[tuple[Any, ...]] = message.parsed_rows
        return found


class _RawResult(ResultMessage):  # type: ignore[misc]
    def recv_results_rows(self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, encryption: Any) -> None:
        first = f.tell()
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        count = int.from_bytes(f.read(4), "big", signed=True)
        check_rows(count, len(columns), len(f.getvalue()) - f.tell())
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        again = (self.kind, first, protocol_version, user_type_map, result_metadata, encryption)
        self.parsed_rows = RawPage(self.column_names, f.getvalue(), f.tell(), count, again)


class RawPageHandler(_ProtocolHandler):  # type: ignore[misc]
    """A session's protocol handler: answers with rows carry `RawPage`s."""

    message_types_by_opcode = {**_ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _RawResult}  # noqa: RUF012 (the driver's own form)


@dataclass(frozen=True, slots=True)
class WholeResult:
    """Prevents the driver from iterating over a page."""

    page: RawPage


def read_whole_page(_names: Sequence[str], rows: RawPage) -> WholeResult:
    """A row factory that returns the page unchanged."""
    return WholeResult(rows)
