"""The HTTP handler of one client connection."""

from __future__ import annotations

import http.client
import io
import logging
import socket
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final, cast
from urllib.parse import urlsplit

from headrace.dashboard import health, metrics, routes
from headrace.dashboard.responses import HttpError, Response, error_response
from headrace.dashboard.site import ConnectionTracker, Site
from headrace.embedded.http.http_connection import TimedSocket

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 256 << 10
MAX_HEAD_BYTES: Final = 64 << 10
_MAX_REQUEST_LINE: Final = (64 << 10) + 1
_MAX_DISCARDED: Final = 4 << 20
_LINGER_S: Final = 1.0
_RESERVED_S: Final = 2.0
_SINGLE_HEADERS: Final = ("Content-Length", "Transfer-Encoding", "Host", "Origin", "Authorization")
"""Headers that may occur once: with two, a proxy and this server could read different requests."""
_SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
}
"""Sent with every response."""


class _BoundedHead(io.BufferedReader):
    """Reads the lines of a request head up to a total size; the standard library only limits single lines.

    It also detects lines that the standard library accepts and other servers read differently: those that do not end in CR LF, contain
    a control character, or continue the line before.
    """

    left = 0
    malformed = False

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.left -= len(line)
        if self.left < 0:
            raise http.client.LineTooLong("request's head")
        text = line[:-2]
        self.malformed |= not line.endswith(b"\r\n") or b"\r" in text or b"\x00" in text or line[:1] in (b" ", b"\t")
        return line


class DashboardHandler(BaseHTTPRequestHandler):
    """Reads requests, checks access, and sends responses."""

    protocol_version = "HTTP/1.1"
    timeout = 30.0
    """Timeout of a single read or write, in seconds."""
    disable_nagle_algorithm = True
    site: Site
    """Set by the subclass that the server creates."""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._raw = TimedSocket(self.connection)
        self.rfile = self._head = _BoundedHead(self._raw)

    def handle_one_request(self) -> None:
        self._head.left, self._head.malformed = _MAX_REQUEST_LINE + MAX_HEAD_BYTES, False
        self._listener.set_waiting(self.connection, True)
        self._reserved = self._listener.is_reserved(self.connection)
        self._raw.deadline = time.monotonic() + (_RESERVED_S if self._reserved else self.timeout)
        super().handle_one_request()

    @property
    def _listener(self) -> ConnectionTracker:
        return cast("ConnectionTracker", self.server)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self._head.malformed or any(len(self.headers.get_all(name, ())) > 1 for name in _SINGLE_HEADERS):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return True

    def version_string(self) -> str:
        return "headrace"

    def log_message(self, format: str, *args: object) -> None:
        # A request line may contain anything, so it is logged at debug level only.
        log.debug("%s %s", self.address_string(), format % args)

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _unsupported_method(self) -> None:
        self.close_connection = True
        self._handle()

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _unsupported_method

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send errors of the standard library (a malformed request) as JSON, without the content of the request."""
        status = HTTPStatus(code)
        self.close_connection = True
        # After an unreadable request line the standard library assumes HTTP/0.9, whose responses have no head.
        self.request_version = self.protocol_version
        self._send(error_response(HttpError(status, status.phrase, remedy="send a well-formed request of HTTP/1.1")))
        self._discard_input()

    def _discard_input(self) -> None:
        """Read pending input for a moment: closing a socket with unread bytes would cut off the response."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_S)
            taken = 0
            while taken < _MAX_DISCARDED and (piece := self.connection.recv(1 << 16)):
                taken += len(piece)

    def _handle(self) -> None:
        path = urlsplit(self.path).path
        try:
            # The body is read first: closing a connection with unread bytes loses the response.
            body = self._body() if self.command == "POST" else b""
            self._raw.deadline = None
            self.connection.settimeout(self.timeout)
            self._listener.set_waiting(self.connection, False)
            if self._reserved:
                self.close_connection = True
                if path != "/health":
                    raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are at work", headers={"Retry-After": "5"})
            self.site.auth.check_host(self.headers.get("Host", ""))
            if self.command == "POST":
                self._send(self._post(path, body))
            elif self.command not in ("GET", "HEAD"):
                raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not known here", headers={"Allow": "GET, HEAD, POST"})
            elif path == routes.STREAM and self.command == "GET":
                self._stream()
            else:
                self._close_if_body()
                self._send(self._get(path))
        except HttpError as error:
            self._send(error_response(error))
            if self.close_connection:
                self._discard_input()
        except OSError:
            raise
        except Exception:
            # The client gets a short message; the server logs the traceback.
            self.close_connection = True
            self._send(error_response(HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed inside", remedy="see the process's log")))
            raise

    def _get(self, path: str) -> Response:
        control = self.site.control
        if path.startswith(routes.PREFIX):
            return routes.get(control, path)
        if path == "/metrics":
            return Response(HTTPStatus.OK, metrics.render(control.status()), metrics.CONTENT_TYPE)
        if path == "/health":
            return health.health()
        if path == "/ready":
            return health.ready(control.status())
        asset = self.site.assets().get(path)
        if asset is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is nothing here", place=path, remedy="the page is at /")
        cached = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if asset.etag in [tag.strip() for tag in self.headers.get("If-None-Match", "").split(",")]:
            return Response(HTTPStatus.NOT_MODIFIED, b"", asset.content_type, cached)
        return Response(HTTPStatus.OK, asset.content, asset.content_type, cached)

    def _post(self, path: str, body: bytes) -> Response:
        self.site.auth.check_origin(self.headers)
        self.site.auth.check_token(self.headers)
        return routes.post(self.site.control, path, body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise HttpError(HTTPStatus.LENGTH_REQUIRED, "a body needs its length", place="Content-Length", remedy="send Content-Length")
        if len(length) > 18 or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MAX_BODY_BYTES} bytes", place="Content-Length")
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            raise ConnectionResetError("the client went away within its request")
        return body

    def _close_if_body(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True

    def _send(self, answer: Response) -> None:
        self.send_response(answer.status)
        for name, value in {"Cache-Control": "no-store", **_SECURITY_HEADERS, **answer.headers}.items():
            self.send_header(name, value)
        if answer.status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _stream(self) -> None:
        """Send the status as server-sent events, once a second, until the client or the process ends."""
        self.close_connection = True
        with self.site.events.subscribe() as beats:
            self.send_response(HTTPStatus.OK)
            for name, value in {"Cache-Control": "no-store", **_SECURITY_HEADERS, "X-Accel-Buffering": "no"}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"retry: 2000\n\n")
            began = time.monotonic()
            for event in beats:
                self.wfile.write(event)
            log.debug("a stream ended after %.0f s", time.monotonic() - began)
