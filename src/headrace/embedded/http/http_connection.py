"""HTTP/1.1 over a socket, independent of ClickHouse.

A request's body is read on demand and in pieces, so an insert of any size needs constant memory. A response has a length if it is known,
and is chunked otherwise. A response that fails midway ends without its last chunk, so no client takes it for complete.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO, Final, Protocol

PIECE: Final = 1 << 20
_MAX_LINE: Final = 1 << 20
"""Of the request line, whose URL may contain a query; as in ClickHouse."""
_MAX_HEADERS: Final = 200
_MAX_HEAD_BYTES: Final = 64 << 10
_MAX_CHUNK_LINE: Final = 4096
_MAX_DIGITS: Final = 18
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ONCE: Final = frozenset(
    {"content-length", "transfer-encoding", "host", "authorization", "x-clickhouse-user", "x-clickhouse-key", "origin"}
)
"""Headers that must not be repeated, because two readers could interpret the request differently."""
_MAX_DRAIN: Final = 64 << 20
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE"})


class BadRequest(Exception):
    """The bytes are not a valid request; the connection must be closed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


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


class Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty only at the end."""


class LineReader(Readable, Protocol):
    def readline(self, limit: int, /) -> bytes: ...


class Body:
    """A request's body, framed by length or chunks, or absent."""

    def __init__(self, stream: LineReader, length: int | None, chunked: bool) -> None:
        self._stream = stream
        self._chunked = chunked
        self._left = 0 if chunked else length or 0
        self._ended = not chunked and not self._left
        self._sock: socket.socket | None = None

    def expect_continue(self, sock: socket.socket) -> None:
        """Send `100 Continue` when the body is first read, because the client waits for it."""
        self._sock = sock

    @property
    def ended(self) -> bool:
        return self._ended

    def read(self, size: int) -> bytes:
        if self._ended:
            return b""
        if self._sock is not None:
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._sock = None
        if self._chunked and not self._left:
            self._next_chunk()
            if self._ended:
                return b""
        piece = self._stream.read(min(size, self._left))
        if not piece:
            raise ConnectionError("the client closed the connection in the middle of a request body")
        self._left -= len(piece)
        if self._chunked and not self._left:
            self._expect_line(b"")
        self._ended = not self._chunked and not self._left
        return piece

    def drain(self, limit: int = _MAX_DRAIN) -> bool:
        """Read the rest, so that the client reads the response; False if it is too much and the connection must close."""
        if self._sock is not None:
            return False
        read = 0
        while not self._ended and read < limit:
            read += len(self.read(PIECE))
        return self._ended

    def _next_chunk(self) -> None:
        size = _CHUNK.fullmatch(_read_line(self._stream, _MAX_CHUNK_LINE, 400))
        if size is None:
            raise BadRequest(400, "malformed chunk size")
        self._left = int(size[1], 16)
        if not self._left:
            # Trailers are parsed like headers and ignored.
            _read_headers(self._stream)
            self._ended = True

    def _expect_line(self, expected: bytes) -> None:
        if _read_line(self._stream, _MAX_CHUNK_LINE, 400) != expected:
            raise BadRequest(400, "malformed chunk end")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: Body
    keep_alive: bool


def read_request(stream: LineReader, sock: socket.socket) -> Request:
    """Read the next request on a connection with at least one byte."""
    line = _read_line(stream, _MAX_LINE)
    try:
        method, target, version = line.decode("ascii").split(" ")
    except ValueError:
        raise BadRequest(400, "malformed request line") from None
    if method not in _METHODS or version not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(501 if version.startswith("HTTP/") else 400, f"unsupported request {method!r} {version!r}")
    headers = _read_headers(stream)
    body = _frame_body(stream, headers, version)
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadRequest(400, "a request of HTTP/1.1 names its host")
    if headers.get("expect", "").lower() == "100-continue":
        body.expect_continue(sock)
    path, _, query = target.partition("?")
    tokens = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keep_alive = "keep-alive" in tokens if version == "HTTP/1.0" else "close" not in tokens
    return Request(method, path, query, headers, body, keep_alive)


def _frame_body(stream: LineReader, headers: Mapping[str, str], version: str) -> Body:
    coding = headers.get("transfer-encoding", "").lower()
    if coding not in ("", "identity", "chunked"):
        raise BadRequest(501, f"unsupported transfer coding {coding!r}")
    length = headers.get("content-length")
    if coding and (length is not None or version == "HTTP/1.0"):
        raise BadRequest(400, "a transfer coding beside a content length, or in HTTP/1.0")
    if length is not None and not (length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS):
        raise BadRequest(400, "malformed content length")
    return Body(stream, None if length is None else int(length), coding == "chunked")


def _read_headers(stream: LineReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    count, left = 0, _MAX_HEAD_BYTES
    while line := _read_line(stream, left, 431):
        count, left = count + 1, left - len(line) - 2
        if count > _MAX_HEADERS or left <= 0:
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


def _read_line(stream: LineReader, limit: int, too_long: int = 414) -> bytes:
    """Read the next line, which must end in CR LF and contain neither."""
    line = stream.readline(limit)
    if not line.endswith(b"\n"):
        raise BadRequest(too_long if len(line) == limit else 400, "request line or header too long or cut off")
    text = line[:-2]
    if not line.endswith(b"\r\n") or b"\r" in text or b"\x00" in text:
        raise BadRequest(400, "a line does not end in CR LF, or has a control character inside")
    return text


@dataclass(slots=True)
class ResponseWriter:
    """Writes one response; headers are sent with the first bytes of the body, or at the end."""

    sock: socket.socket
    method: str
    keep_alive: bool
    common: Mapping[str, str] = field(default_factory=dict)
    started: bool = False
    finished: bool = False
    refused: bool = False
    """The client is not authenticated: it gets a response and short timeouts."""
    _chunked: bool = False

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole response."""
        head = self._head(status, {**headers, "Content-Length": str(len(body))})
        self.started = self.finished = True
        self.sock.sendall(head if self.method == "HEAD" else head + body)

    def send_file(self, status: int, headers: Mapping[str, str], body: BinaryIO, size: int) -> None:
        head = self._head(status, {**headers, "Content-Length": str(size)})
        self.started = True
        self.sock.sendall(head)
        if self.method != "HEAD":
            while piece := body.read(PIECE):
                self.sock.sendall(piece)
        self.finished = True

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Start a response of unknown length."""
        self._chunked = True
        self.started = True
        self.sock.sendall(self._head(status, {**headers, "Transfer-Encoding": "chunked"}))

    def write(self, piece: bytes) -> None:
        if piece and self.method != "HEAD":
            # Three parts in one call: no copy, and one system call for small pieces.
            _send_all(self.sock, [b"%x\r\n" % len(piece), piece, b"\r\n"])

    def end(self) -> None:
        if self.method != "HEAD":
            self.sock.sendall(b"0\r\n\r\n")
        self.finished = True

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {_reason(status)}"]
        lines.append("Connection: keep-alive" if self.keep_alive else "Connection: close")
        lines += [f"{name}: {_one_line(value)}" for name, value in {**self.common, **headers}.items()]
        return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n"


def _reason(status: int) -> str:
    return HTTPStatus(status).phrase


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")


def _send_all(sock: socket.socket, parts: list[bytes]) -> None:
    sent = sock.sendmsg(parts)
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
            continue
        sock.sendall(memoryview(part)[sent:])
        sent = 0
