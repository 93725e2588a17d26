"""The driver's HTTP client with limits on the memory and time of responses.

Invariant: a hostile or broken server cannot make this process hold more than `ANSWER_BYTES` of one response, decompress data that it did
not request compressed, follow a redirect, or wait for a body that arrives a byte at a time. Connecting takes at most `CONNECTING_S`. After
the connection's timeout a body must arrive at `LEAST_BYTES_PER_S`. Headers may arrive slowly: the server reports query progress in them.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from clickhouse_connect.driver.ctypes import RespBuffCls
from clickhouse_connect.driver.httpclient import HttpClient
from clickhouse_connect.driver.query import TzSource
from clickhouse_connect.driver.transform import NativeTransform
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

ANSWER_BYTES: Final = (1 << 30) + (64 << 20)
"""Of one response body: one row may have 1 GiB. Streamed rows have no limit, because they are not held in memory."""
ERROR_BYTES: Final = 16 << 20
"""Of an error text, which may quote a whole statement."""
HEAD_BYTES: Final = 16 << 20
"""Of all headers of a response, which may contain thousands of progress reports."""
NATIVE_BYTES: Final = 64 << 20
"""Of a result that becomes Python values: system tables and counts, also for thousands of tables."""
NATIVE_ROWS: Final = 2 << 20
"""Of such a result, together with the columns of its blocks."""
CONNECTING_S: Final = 60.0
LEAST_BYTES_PER_S: Final = 64 << 10
_MOST_PARENTHESES: Final = 500
_CODINGS: Final = ("", "identity", "lz4")
"""The content encodings that the client requests."""


class InvalidResponse(HTTPError):
    """The server sent a response that no ClickHouse server sends."""


class ResponseTooLarge(HTTPError):
    """The response exceeds the client's limits; the statement may have requested that much."""


class _Limits(threading.local):
    """Limits of the responses that a thread waits for."""

    deadline: float | None = None
    body_bytes: int | None = None


_limits = _Limits()


@contextmanager
def connection_limits() -> Iterator[None]:
    """Within this context all responses must be small and arrive within `CONNECTING_S`."""
    _limits.deadline, _limits.body_bytes = time.monotonic() + CONNECTING_S, NATIVE_BYTES
    try:
        yield
    finally:
        _limits.deadline, _limits.body_bytes = None, None


@contextmanager
def unlimited_body() -> Iterator[None]:
    """Responses that start within this context may have any length."""
    _limits.body_bytes = 1 << 62
    try:
        yield
    finally:
        _limits.body_bytes = None


class BoundedClient(HttpClient):
    """A client that does not trust the server."""

    def _init_common_settings(self, tz_source: TzSource) -> None:
        # The driver sends its first queries in this method.
        self.http.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        self._transform = _BoundedTransform()
        super()._init_common_settings(tz_source)


class _BoundedTransform(NativeTransform):
    @staticmethod
    def parse_response(source: Any, context: Any = None) -> Any:
        return NativeTransform.parse_response(_BoundedBuffer(_Counted(source)), context)  # type: ignore[no-untyped-call]


class _Counted:
    """The plain bytes of a result, counted, for the driver's buffer."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.exception_tag = source.exception_tag
        self.gen = self._pieces()
        self.close = source.close

    def _pieces(self) -> Iterator[bytes]:
        left = NATIVE_BYTES
        for piece in self._source.gen:
            left -= len(piece)
            if left < 0:
                raise ResponseTooLarge(f"a result of more than {NATIVE_BYTES >> 20} MiB where a small one is expected")
            yield piece


class _BoundedBuffer(RespBuffCls):
    """The driver's parser with checks of lengths and counts."""

    left = NATIVE_ROWS

    def read_leb128(self) -> int:
        """Read a number of columns or rows, which take memory even if their values take no bytes."""
        number = self._length()
        # Empty blocks count too: there may be millions of them.
        self.left -= max(number, 1)
        if self.left < 0:
            raise ResponseTooLarge(f"{number} columns or rows in a block, of which a client takes {NATIVE_ROWS} in all")
        return number

    def read_leb128_str(self) -> str:
        """Read the name of a column or of its type."""
        text = str(self.read_bytes(self._length()), "utf-8")
        if text.count("(") > _MOST_PARENTHESES:
            raise InvalidResponse("it sent a type of too many types")
        return text

    def read_str_col(self, num_rows: int, encoding: str | None, nullable: bool = False, null_obj: Any = None) -> list[Any]:
        null_map = self.read_bytes(num_rows) if nullable else None
        column: list[Any] = []
        for row in range(num_rows):
            value = self.read_bytes(self._length())
            column.append(null_obj if null_map and null_map[row] else _text(value, encoding))
        return column

    def read_bytes_col(self, sz: int, num_rows: int) -> Any:
        return super().read_bytes_col(self._width(sz), num_rows)

    def read_fixed_str_col(self, sz: int, num_rows: int, encoding: str) -> Any:
        return super().read_fixed_str_col(self._width(sz), num_rows, encoding)

    def read_bytes(self, sz: int) -> Any:
        if sz > NATIVE_BYTES:
            raise ResponseTooLarge(f"a value of {sz} bytes where a small result is expected")
        return super().read_bytes(sz)

    def _length(self) -> int:
        number = 0
        for shift in range(0, 64, 7):
            byte = self.read_byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise InvalidResponse("it sent a number without an end")

    def _width(self, size: int) -> int:
        if size <= 0:
            raise InvalidResponse("it sent values of no width")
        return size


def _text(value: Any, encoding: str | None) -> Any:
    if not encoding:
        return value
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        return value.hex()


class _BoundedSocket(io.RawIOBase):
    """Counts the bytes of one response."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb", buffering=0)
        self._timeout_s = sock.gettimeout()
        self._what, self._limit = "headers", HEAD_BYTES
        self._received, self._waited_s = 0, 0.0

    def expect_body(self, limit: int) -> None:
        self._what, self._limit = "a body", limit
        self._received, self._waited_s = 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        begin = time.monotonic()
        count = self._file.readinto(buffer) or 0
        now = time.monotonic()
        self._received += count
        self._waited_s += now - begin
        self._check(now)
        return count

    def _check(self, now: float) -> None:
        if self._received > self._limit:
            raise ResponseTooLarge(f"{self._what} of more than {self._limit >> 20} MiB")
        if _limits.deadline is not None and now > _limits.deadline:
            raise InvalidResponse(f"it did not answer within {CONNECTING_S:g} s")
        slow = self._timeout_s is not None and self._waited_s > self._timeout_s + self._received / LEAST_BYTES_PER_S
        if slow and self._what != "headers":
            raise InvalidResponse(f"its answer came at less than {LEAST_BYTES_PER_S >> 10} KiB/s and did not end in {self._timeout_s:g} s")

    def close(self) -> None:
        self._file.close()
        super().close()


class _BoundedResponse(http.client.HTTPResponse):
    """A response with bounded headers and body."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self._socket, self._limit = _BoundedSocket(sock), HEAD_BYTES
        self.fp = io.BufferedReader(self._socket)

    def begin(self) -> None:
        super().begin()
        self._limit = ERROR_BYTES if self.status >= 400 else _limits.body_bytes or ANSWER_BYTES
        self._socket.expect_body(self._limit)
        if 300 <= self.status < 400:
            raise InvalidResponse(f"it sends the client to another address (HTTP {self.status})")
        coding = self.headers.get("Content-Encoding", "").strip().lower()
        if coding not in _CODINGS:
            raise InvalidResponse(f"it compressed its answer ({coding[:20]}), which was not requested")
        self._check_length(self.length)

    def _safe_read(self, amt: int) -> bytes:
        # http.client allocates the memory before the bytes arrive.
        self._check_length(amt)
        return super()._safe_read(amt)  # type: ignore[misc, no-any-return]

    def _check_length(self, length: int | None) -> None:
        if length is not None and length > self._limit:
            raise ResponseTooLarge(f"a body of {length} bytes, of which a client takes {self._limit >> 20} MiB")


class _Connection(HTTPConnection):
    response_class = _BoundedResponse


class _SecureConnection(HTTPSConnection):
    response_class = _BoundedResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


PARSED_BYTES: Final = 512 << 20
"""Of rows as Python values."""
_ROW_BYTES, _VALUE_BYTES = 120, 60
_BATCHES: Final = ("record batch", "dictionary")
_HEADER, _DATA, _LENGTH, _BUFFERS, _COMPRESSION = 2, 1, 0, 2, 3
"""Field numbers of Arrow's messages, dictionaries and record batches."""


def json_rows(raw: bytes, text: str | None = None) -> list[list[Any]]:
    """Parse rows of a format with one JSON array per line; `text` is the response if it was decoded leniently."""
    needed = len(raw) + _ROW_BYTES * raw.count(b"\n") + _VALUE_BYTES * raw.count(b",")
    if needed > PARSED_BYTES:
        raise ResponseTooLarge(f"its rows take more than {PARSED_BYTES >> 20} MiB of memory")
    rows = [json.loads(line) for line in (raw.decode() if text is None else text).split("\n") if line]
    if not all(isinstance(row, list) for row in rows):
        raise InvalidResponse("its rows are not arrays of JSON")
    return rows


def arrow_table(raw: bytes, width: int) -> pa.Table:
    """Parse an ArrowStream response with `width` columns, with strings as bytes."""
    try:
        _check_claims(raw)
        table = pa.ipc.open_stream(raw).read_all()
    except OSError as error:
        # Arrow raises OSError for a truncated or invalid stream.
        raise InvalidResponse(f"its columns cannot be read ({error})") from error
    # Arrow does not check offsets when it reads values.
    table.validate(full=True)
    if table.num_columns != width:
        raise InvalidResponse(f"it sent {table.num_columns} columns where {width} were requested")
    return table


def _check_claims(raw: bytes) -> None:
    needed = 0
    for message in pa.ipc.MessageReader.open_stream(raw):
        if message.type in _BATCHES:
            needed += _unpacked_bytes(message)
            if needed > ANSWER_BYTES:
                raise ResponseTooLarge(f"its columns take more than {ANSWER_BYTES >> 20} MiB of memory")


def _unpacked_bytes(message: Any) -> int:
    """Return the decompressed size of a batch's buffers; Arrow allocates what they claim."""
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")
    batch = _table(metadata, _uint32(metadata, 0), _HEADER)
    if batch is not None and message.type == "dictionary":
        batch = _table(metadata, batch, _DATA)
    if batch is None:
        raise InvalidResponse("its columns cannot be read")
    spans = list(_buffers(metadata, batch))
    if any(offset < 0 or length < 0 or offset + length > len(body) for offset, length in spans):
        raise InvalidResponse("its columns are longer than the answer")
    if _field(metadata, batch, _COMPRESSION) is None:
        sizes = [length for _, length in spans]
    else:
        # Each buffer starts with its decompressed length, or with -1 if it is not compressed.
        claims = [(struct.unpack_from("<q", body, offset)[0] if length >= 8 else 0, length) for offset, length in spans]
        sizes = [length if plain == -1 else plain for plain, length in claims]
    if any(size < 0 for size in sizes):
        raise InvalidResponse("its columns claim a negative length")
    place = _field(metadata, batch, _LENGTH)
    rows = struct.unpack_from("<q", metadata, place)[0] if place is not None else 0
    # A row takes at least one bit.
    return max(sum(sizes), rows // 8)


def _buffers(metadata: memoryview, batch: int) -> Iterator[tuple[int, int]]:
    place = _field(metadata, batch, _BUFFERS)
    if place is None:
        return
    first = place + _uint32(metadata, place)
    for index in range(_uint32(metadata, first)):
        yield struct.unpack_from("<qq", metadata, first + 4 + 16 * index)


def _field(data: memoryview, table: int, index: int) -> int | None:
    """Return the offset of a field of a FlatBuffers table; None for its default."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * index >= struct.unpack_from("<H", data, layout)[0]:
        return None
    offset = struct.unpack_from("<H", data, layout + 4 + 2 * index)[0]
    return table + offset if offset else None


def _table(data: memoryview, table: int, index: int) -> int | None:
    place = _field(data, table, index)
    return None if place is None else place + _uint32(data, place)


def _uint32(data: memoryview, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])
