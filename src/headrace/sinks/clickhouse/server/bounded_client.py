"""The driver's HTTP client with limits on the memory and time of responses.

Invariant: a hostile or broken server cannot make this process hold more than `ANSWER_BYTES` of one response, decompress data that it did
not request compressed, follow a redirect, or wait for a body that arrives a byte at a time. Connecting takes at most `CONNECTING_S`. After
the connection's timeout a body must arrive at `LEAST_BYTES_PER_S`. Headers may arrive slowly: the server reports query progress in them.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

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
