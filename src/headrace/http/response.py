"""HTTP/1.1 responses, written to a socket.

A response has a length if it is known; otherwise it is chunked, or ends with the connection. A chunked response that fails midway ends
without its last chunk, so no client takes it for complete.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO, Final

from headrace.http.request import PIECE

_ONE_LINE: Final = str.maketrans("\r\n", "  ")


@dataclass(slots=True)
class ResponseWriter:
    """Writes one response; headers are sent with the first bytes of the body, or at the end."""

    sock: socket.socket
    method: str
    keep_alive: bool
    common: Mapping[str, str] = field(default_factory=dict)
    started: bool = False
    refused: bool = False
    """The client is not authenticated: it gets a response and short timeouts."""
    before_end: Callable[[], None] | None = None
    """Called before the end of a response of known length or in chunks is sent. After that end, the client may send its next request."""

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._prepare_end()
        length = {} if status == HTTPStatus.NOT_MODIFIED else {"Content-Length": str(len(body))}
        head = self._head(status, {**headers, **length})
        self.started = True
        self.sock.sendall(head if self.method == "HEAD" else head + body)

    def send_file(self, status: int, headers: Mapping[str, str], body: BinaryIO, size: int) -> None:
        self._prepare_end()
        head = self._head(status, {**headers, "Content-Length": str(size)})
        self.started = True
        self.sock.sendall(head)
        if self.method != "HEAD":
            while piece := body.read(PIECE):
                self.sock.sendall(piece)

    def send_stream(self, status: int, headers: Mapping[str, str], pieces: Iterable[bytes]) -> None:
        """Send pieces as they come; the end of the connection ends the response."""
        self.keep_alive = False
        self.started = True
        self.sock.sendall(self._head(status, headers))
        for piece in pieces:
            self.sock.sendall(piece)

    def begin_chunks(self, status: int, headers: Mapping[str, str]) -> None:
        """Start a response of unknown length."""
        self.started = True
        self.sock.sendall(self._head(status, {**headers, "Transfer-Encoding": "chunked"}))

    def write_chunk(self, piece: bytes) -> None:
        if piece and self.method != "HEAD":
            # Three parts in one call: no copy, and one system call for small pieces.
            _send_all(self.sock, [b"%x\r\n" % len(piece), piece, b"\r\n"])

    def end_chunks(self) -> None:
        self._prepare_end()
        if self.method != "HEAD":
            self.sock.sendall(b"0\r\n\r\n")

    def _prepare_end(self) -> None:
        if self.before_end is not None:
            self.before_end()

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines.append("Connection: keep-alive" if self.keep_alive else "Connection: close")
        lines += [f"{name}: {value.translate(_ONE_LINE)}" for name, value in {**self.common, **headers}.items()]
        return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n"


def _send_all(sock: socket.socket, parts: list[bytes]) -> None:
    sent = sock.sendmsg(parts)
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
            continue
        sock.sendall(memoryview(part)[sent:])
        sent = 0
