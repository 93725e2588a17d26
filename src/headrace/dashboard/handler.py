"""One client's connection: requests in, answers out, one after the other."""

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
from headrace.dashboard.responses import Answer, Refused, refusal
from headrace.dashboard.site import ConnectionTracker, Site
from headrace.embedded.http.timed_stream import TimedSocket

log = logging.getLogger(__name__)

MOST_BODY: Final = 256 << 10
MOST_HEAD: Final = 64 << 10
_MOST_FIRST_LINE: Final = (64 << 10) + 1
_MOST_DISCARDED: Final = 4 << 20
_LINGER_S: Final = 1.0
_RESERVED_S: Final = 2.0
_ONCE: Final = ("Content-Length", "Transfer-Encoding", "Host", "Origin", "Authorization")
"""Headers of which two would let two readers of a request understand different things."""
_GUARDED: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
}
"""Sent with every answer."""


class _BoundedHead(io.BufferedReader):
    """Reads lines of a request's head, up to so many bytes of all together: the standard library's limits are on single lines.

    It also tells lines that the standard library takes and others read in another way: those that do not end in CR LF, have a control
    character inside, or go on with the line before.
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


class Handler(BaseHTTPRequestHandler):
    """Reads requests, has them checked and answered."""

    protocol_version = "HTTP/1.1"
    timeout = 30.0
    """How long a client may take to send the next piece, or to take one."""
    disable_nagle_algorithm = True
    site: Site
    """Set by the server's own kind of handler."""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._raw = TimedSocket(self.connection)
        self.rfile = self._head = _BoundedHead(self._raw)

    def handle_one_request(self) -> None:
        self._head.left, self._head.malformed = _MOST_FIRST_LINE + MOST_HEAD, False
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
        if self._head.malformed or any(len(self.headers.get_all(name, ())) > 1 for name in _ONCE):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return True

    def version_string(self) -> str:
        return "headrace"

    def log_message(self, format: str, *args: object) -> None:
        # The first line of a request may hold anything; it is for those who look closely only.
        log.debug("%s %s", self.address_string(), format % args)

    def do_GET(self) -> None:
        self._exchange()

    def do_HEAD(self) -> None:
        self._exchange()

    def do_POST(self) -> None:
        self._exchange()

    def _other_method(self) -> None:
        self.close_connection = True
        self._exchange()

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _other_method

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What the standard library refuses (a request that is none), in our form; what was sent is not repeated."""
        status = HTTPStatus(code)
        self.close_connection = True
        # Of a first line that cannot be read, it takes the oldest version, whose answers have no head.
        self.request_version = self.protocol_version
        self._send(refusal(Refused(status, status.phrase, remedy="send a well-formed request of HTTP/1.1")))
        self._take_the_rest()

    def _take_the_rest(self) -> None:
        """Closing on unread bytes would cut off the answer: what is on its way is taken, for a moment."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_S)
            taken = 0
            while taken < _MOST_DISCARDED and (piece := self.connection.recv(1 << 16)):
                taken += len(piece)

    def _exchange(self) -> None:
        path = urlsplit(self.path).path
        try:
            # What was sent is taken first: a connection that is closed on unread bytes loses its answer.
            body = self._body() if self.command == "POST" else b""
            self._raw.deadline = None
            self.connection.settimeout(self.timeout)
            self._listener.set_waiting(self.connection, False)
            if self._reserved:
                self.close_connection = True
                if path != "/health":
                    raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are at work", headers={"Retry-After": "5"})
            self.site.gate.check_host(self.headers.get("Host", ""))
            if self.command == "POST":
                self._send(self._post(path, body))
            elif self.command not in ("GET", "HEAD"):
                raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not known here", headers={"Allow": "GET, HEAD, POST"})
            elif path == routes.STREAM and self.command == "GET":
                self._stream()
            else:
                self._check_bodyless()
                self._send(self._get(path))
        except Refused as error:
            self._send(refusal(error))
            if self.close_connection:
                self._take_the_rest()
        except OSError:
            raise
        except Exception:
            # Told to the client in brief here, and to the log in full by the server.
            self.close_connection = True
            self._send(refusal(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed inside", remedy="see the process's log")))
            raise

    def _get(self, path: str) -> Answer:
        control = self.site.control
        if path.startswith(routes.PREFIX):
            return routes.get(control, path)
        if path == "/metrics":
            return Answer(HTTPStatus.OK, metrics.render(control.status()).encode(), metrics.CONTENT_TYPE)
        if path == "/health":
            return health.health()
        if path == "/ready":
            return health.ready(control.status())
        asset = self.site.assets().get(path)
        if asset is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here", place=path, remedy="the page is at /")
        cached = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if asset.etag in [tag.strip() for tag in self.headers.get("If-None-Match", "").split(",")]:
            return Answer(HTTPStatus.NOT_MODIFIED, b"", asset.content_type, cached)
        return Answer(HTTPStatus.OK, asset.content, asset.content_type, cached)

    def _post(self, path: str, body: bytes) -> Answer:
        self.site.gate.check_origin(self.headers)
        self.site.gate.check_token(self.headers)
        return routes.post(self.site.control, path, body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a body needs its length", place="Content-Length", remedy="send Content-Length")
        if len(length) > 18 or int(length) > MOST_BODY:
            self.close_connection = True
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MOST_BODY} bytes", place="Content-Length")
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            raise ConnectionResetError("the client went away within its request")
        return body

    def _check_bodyless(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"Cache-Control": "no-store", **_GUARDED, **answer.headers}.items():
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
        """Server-sent events: the status, every second, until the client or the process ends."""
        self.close_connection = True
        with self.site.pulse.listening() as beats:
            self.send_response(HTTPStatus.OK)
            for name, value in {"Cache-Control": "no-store", **_GUARDED, "X-Accel-Buffering": "no"}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"retry: 2000\n\n")
            began = time.monotonic()
            for event in beats:
                self.wfile.write(event)
            log.debug("a stream ended after %.0f s", time.monotonic() - began)
