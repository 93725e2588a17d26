"""HTTP/1.1 requests, read from a socket.

A body is read on demand and in pieces, so an upload of any size needs constant memory. A request that two readers could interpret
differently (repeated lengths, folded lines, lines that end in LF alone) is rejected.
"""

from __future__ import annotations

import io
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

PIECE: Final = 1 << 20
_MAX_CHUNK_LINE: Final = 4096
MAX_LENGTH_DIGITS: Final = 18
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ONCE: Final = frozenset(
    {"content-length", "transfer-encoding", "host", "authorization", "x-clickhouse-user", "x-clickhouse-key", "origin"}
)
"""Headers that must not be repeated, because two readers could interpret the request differently."""
_MAX_DRAIN: Final = 64 << 20
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE"})


class HttpError(Exception):
    """A request that is rejected: HTTP status, message and remedy."""

    def __init__(self, status: int, message: str, *, place: str = "", remedy: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.place, self.remedy = status, message, place, remedy
        self.headers = dict(headers or {})


class BadRequest(HttpError):
    """The bytes are not a valid request; the connection must be closed."""


class TimedSocket(socket.SocketIO):
    """The raw side of a buffered reader. While `deadline` (monotonic) is set, reading ends then, even if bytes keep arriving slowly."""

    deadline: float | None = None

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "r")
        self._timed = sock

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the client takes too long to send its request")
            self._timed.settimeout(left)
        return super().readinto(buffer)

    def send_continue(self) -> None:
        self._timed.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


RequestStream: TypeAlias = "io.BufferedReader[TimedSocket]"


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Limits of a request's first line and of its headers."""

    line_bytes: int = 1 << 20
    """A URL may contain a query; as in ClickHouse."""
    headers: int = 200
    header_bytes: int = 64 << 10


class Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty only at the end."""


class Body:
    """A request's body, framed by length or chunks, or absent."""

    def __init__(self, stream: RequestStream, length: int = 0, *, chunked: bool = False, expects_continue: bool = False) -> None:
        """`expects_continue`: the client waits for `100 Continue`, which is sent when the body is first read."""
        self._stream = stream
        self._chunked = chunked
        self._left = length
        self.ended = not chunked and not length
        self._expects_continue = expects_continue

    def read(self, size: int) -> bytes:
        if self.ended:
            return b""
        if self._expects_continue:
            self._stream.raw.send_continue()
            self._expects_continue = False
        if self._chunked and not self._left:
            self._next_chunk()
            if self.ended:
                return b""
        piece = self._stream.read(min(size, self._left))
        if not piece:
            raise ConnectionError("the client closed the connection in the middle of a request body")
        self._left -= len(piece)
        if self._chunked and not self._left and _read_line(self._stream, _MAX_CHUNK_LINE, 400):
            raise BadRequest(400, "malformed chunk end")
        self.ended = not self._chunked and not self._left
        return piece

    def drain(self, limit: int = _MAX_DRAIN) -> bool:
        """Read the rest, so that the client reads the response; False if it is too much and the connection must close."""
        if self._expects_continue:
            return False
        read = 0
        while not self.ended and read < limit:
            read += len(self.read(PIECE))
        return self.ended

    def _next_chunk(self) -> None:
        size = _CHUNK.fullmatch(_read_line(self._stream, _MAX_CHUNK_LINE, 400))
        if size is None:
            raise BadRequest(400, "malformed chunk size")
        self._left = int(size[1], 16)
        if not self._left:
            # Trailers are parsed like headers and ignored.
            _read_headers(self._stream, HeadLimits())
            self.ended = True


@dataclass(slots=True)
class Request:
    method: str
    path: str
    query: str
    version: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: Body
    content: bytes = b""
    """The body, if the handler read it whole."""

    @property
    def keep_alive(self) -> bool:
        tokens = {word.strip().lower() for word in self.headers.get("connection", "").split(",")}
        return "keep-alive" in tokens if self.version == "HTTP/1.0" else "close" not in tokens

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


def read_head(stream: RequestStream, limits: HeadLimits) -> Request:
    """Read the first line and the headers of the next request, on a connection with at least one byte."""
    line = _read_line(stream, limits.line_bytes)
    try:
        method, target, version = line.decode("ascii").split(" ")
    except ValueError:
        raise BadRequest(400, "malformed request line") from None
    if method not in _METHODS or version not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(501 if version.startswith("HTTP/") else 400, f"unsupported request {method!r} {version!r}")
    path, _, query = target.partition("?")
    return Request(method, path, query, version, _read_headers(stream, limits), Body(stream))


def frame_body(stream: RequestStream, request: Request) -> Body:
    """Return the request's body, by its length or in chunks."""
    coding = request.headers.get("transfer-encoding", "").lower()
    if coding not in ("", "identity", "chunked"):
        raise BadRequest(501, f"unsupported transfer coding {coding!r}")
    length = request.headers.get("content-length")
    if coding and (length is not None or request.version == "HTTP/1.0"):
        raise BadRequest(400, "a transfer coding together with a content length, or in HTTP/1.0")
    if length is not None and not (length.isascii() and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS):
        raise BadRequest(400, "malformed content length")
    return Body(stream, int(length or 0), chunked=coding == "chunked", expects_continue=request.expects_continue)


def _read_headers(stream: RequestStream, limits: HeadLimits) -> dict[str, str]:
    headers: dict[str, str] = {}
    count, left = 0, limits.header_bytes
    while line := _read_line(stream, left, 431):
        count, left = count + 1, left - len(line) - 2
        if count > limits.headers or left <= 0:
            raise BadRequest(431, "too many headers, or too long ones")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not _NAME.fullmatch(name):
            # Obsolete line folding (a leading space) is malformed too.
            raise BadRequest(400, "malformed header")
        key = name.lower()
        if key in headers and key in _ONCE:
            raise BadRequest(400, f"repeated header {name}")
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return headers


def _read_line(stream: RequestStream, limit: int, too_long: int = 414) -> bytes:
    """Read the next line, which must end in CR LF and contain neither."""
    line = stream.readline(limit)
    if not line.endswith(b"\n"):
        raise BadRequest(too_long if len(line) == limit else 400, "request line or header too long or cut off")
    text = line[:-2]
    if not line.endswith(b"\r\n") or b"\r" in text or b"\x00" in text:
        raise BadRequest(400, "a line does not end in CR LF, or has a control character inside")
    return text
