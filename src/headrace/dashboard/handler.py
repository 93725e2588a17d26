"""Handles one HTTP request: checks access, then serves the page, metrics, health checks, the control API and the live status."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from headrace.dashboard import metrics, routes
from headrace.dashboard.auth import RequestAuth
from headrace.dashboard.event_stream import EventStream
from headrace.dashboard.responses import Response, error_response
from headrace.dashboard.static_files import Asset
from headrace.http.request import MAX_LENGTH_DIGITS, BadRequest, Body, HttpError, Request, RequestStream
from headrace.http.response import ResponseWriter
from headrace.service.control import Control

MAX_BODY_BYTES: Final = 256 << 10
_COMMON_HEADERS: Final = {
    "Server": "headrace",
    "Cache-Control": "no-store",
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


@dataclass(frozen=True, slots=True)
class DashboardHandler:
    """Handles requests; shared by all connections."""

    control: Control
    auth: RequestAuth
    events: EventStream
    assets: Callable[[], Mapping[str, Asset]]
    liveness_paths: frozenset[str] = frozenset({"/health"})

    def receive(self, request: Request, stream: RequestStream) -> None:
        """Read the whole body of a POST: closing a connection with unread bytes would lose the response."""
        if request.method != "POST":
            return
        length = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit()):
            raise HttpError(HTTPStatus.LENGTH_REQUIRED, "a body needs its length", place="Content-Length", remedy="send Content-Length")
        if len(length) > MAX_LENGTH_DIGITS or int(length) > MAX_BODY_BYTES:
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MAX_BODY_BYTES} bytes", place="Content-Length")
        request.body = Body(stream, int(length), expects_continue=request.expects_continue)
        request.content = b"".join(iter(lambda: request.body.read(MAX_BODY_BYTES), b""))

    def answer(self, request: Request, response: ResponseWriter) -> None:
        try:
            self._answer(request, response)
        except (HttpError, OSError):
            raise
        except Exception:
            # The client gets a short message; the server logs the traceback.
            response.keep_alive = False
            self.send_error(HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "an internal error", remedy="see the process's log"), response)
            raise

    def send_error(self, error: HttpError, response: ResponseWriter) -> None:
        if isinstance(error, BadRequest):
            # The message may repeat parts of the request.
            error = HttpError(error.status, HTTPStatus(error.status).phrase, remedy="send a well-formed request of HTTP/1.1")
        _send(error_response(error), response)

    def _answer(self, request: Request, response: ResponseWriter) -> None:
        headers, path = request.headers, _path(request)
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if request.method != "POST" and (has_body or request.method not in ("GET", "HEAD")):
            # The body is not read. It must not become the next request, whatever the response is.
            response.keep_alive = False
        self.auth.check_host(headers.get("host", ""))
        if request.method == "POST":
            self.auth.check_origin(headers)
            self.auth.check_token(headers)
            _send(routes.post(self.control, path, request.content), response)
            return
        if request.method not in ("GET", "HEAD"):
            message = f"{request.method} is not known here"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers={"Allow": "GET, HEAD, POST"})
        if path == routes.STREAM and request.method == "GET":
            self._stream(response)
        else:
            _send(self._get(path, headers), response)

    def _get(self, path: str, headers: Mapping[str, str]) -> Response:
        if path.startswith(routes.PREFIX):
            return routes.get(self.control, path)
        if path == "/metrics":
            return Response(HTTPStatus.OK, metrics.render(self.control.status()), metrics.CONTENT_TYPE)
        if path == "/health":
            return routes.health()
        if path == "/ready":
            return routes.ready(self.control.status())
        asset = self.assets().get(path)
        if asset is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is nothing here", place=path, remedy="the page is at /")
        cached = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if asset.etag in [tag.strip() for tag in headers.get("if-none-match", "").split(",")]:
            return Response(HTTPStatus.NOT_MODIFIED, b"", "", cached)
        return Response(HTTPStatus.OK, asset.content, asset.content_type, cached)

    def _stream(self, response: ResponseWriter) -> None:
        """Send the status as server-sent events, once a second, until the client or the process ends."""
        with self.events.subscribe() as events:
            response.common = _common_headers()
            headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
            response.send_stream(HTTPStatus.OK, headers, _with_retry(events))


def _path(request: Request) -> str:
    """Return the requested path; clients may send a whole URL, or repeat the first slash."""
    try:
        return urlsplit(re.sub("^//+", "/", request.path)).path
    except ValueError:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "malformed URL") from None


def _with_retry(events: Iterator[bytes]) -> Iterator[bytes]:
    yield b"retry: 2000\n\n"
    yield from events


def _common_headers() -> Mapping[str, str]:
    return {**_COMMON_HEADERS, "Date": formatdate(usegmt=True)}


def _send(answer: Response, response: ResponseWriter) -> None:
    response.common = _common_headers()
    kind = {"Content-Type": answer.content_type} if answer.content_type else {}
    response.send(answer.status, {**answer.headers, **kind}, answer.body)
