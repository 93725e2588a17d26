"""Handles one HTTP request: checks access, then serves the page, metrics, health checks, the control API and the live status.

Invariant: only files found in the package's `assets` folder are served, by their whole names; a path from a request is never opened.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final
from urllib.parse import urlsplit

import orjson

from headrace.dashboard import editor_routes, metrics, routes, telemetry_routes
from headrace.dashboard.auth import RequestAuth
from headrace.dashboard.routes import Response, error_response
from headrace.editor import Editor
from headrace.http.request import MAX_LENGTH_DIGITS, BadRequest, Body, HttpError, Request, RequestStream
from headrace.http.response import ResponseWriter
from headrace.service.status import Control

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".yml": "application/yaml; charset=utf-8",
}
FOLDER: Final = "assets"
FOR_OTHER_TOOLS: Final = ("grafana.json", "prometheus-rules.yml")
"""A dashboard for Grafana, and alerts for Prometheus."""


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    content_type: str
    etag: str


def load_assets() -> Mapping[str, Asset]:
    """Return all files by URL path: `/app.js`, `/` for the page itself, and the files for other tools."""
    package = files("headrace.dashboard")
    found = {f"/{name}": _asset(name, file.read_bytes()) for name, file in _walk(package / FOLDER, "")}
    found |= {f"/{name}": _asset(name, (package / name).read_bytes()) for name in FOR_OTHER_TOOLS}
    return {**found, **({"/": found["/index.html"]} if "/index.html" in found else {})}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif _suffix(name) in _TYPES:
            yield name, entry


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, _TYPES[_suffix(name)], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


PERIOD_S: Final = 1.0
MAX_LISTENERS: Final = 64
END: Final = b"event: end\ndata: {}\n\n"
"""Tells listeners that the process ends; they may reconnect later."""


class EventStream:
    """Builds events while there are listeners. Thread-safe. A slow listener misses events and does not delay others."""

    def __init__(self, control: Control) -> None:
        self._control = control
        # Two locks: a listener that joins or leaves does not wait for a slow status.
        self._listeners_lock, self._event_lock = threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._listeners = 0
        self._event, self._event_time = b"", -PERIOD_S

    @contextmanager
    def subscribe(self) -> Iterator[Iterator[bytes]]:
        with self._listeners_lock:
            if self._listeners >= MAX_LISTENERS:
                remedy = "close pages that are not in use"
                raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients listen", remedy=remedy, headers={"Retry-After": "10"})
            self._listeners += 1
        try:
            yield self._events()
        finally:
            with self._listeners_lock:
                self._listeners -= 1

    def close(self) -> None:
        """End the streams of all listeners."""
        self._ended.set()

    def _events(self) -> Iterator[bytes]:
        while not self._ended.is_set():
            started = time.monotonic()
            yield self._latest_event()
            self._ended.wait(max(0.0, PERIOD_S - (time.monotonic() - started)))
        yield END

    def _latest_event(self) -> bytes:
        with self._event_lock:
            # Listeners share an event that is less than half a period old; no thread is needed to build it.
            if time.monotonic() - self._event_time >= PERIOD_S / 2:
                self._event = b"event: status\ndata: " + orjson.dumps(self._control.status()) + b"\n\n"
                self._event_time = time.monotonic()
            return self._event


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
    editor: Editor | None = None
    """Edits the pipe file of the process, if it has one."""
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
            edits = path.startswith(f"{editor_routes.PREFIX}/")
            _send(
                (editor_routes.post(self.editor, path, request.content) if edits else routes.post(self.control, path, request.content)),
                response,
            )
            return
        if request.method not in ("GET", "HEAD"):
            message = f"{request.method} is not known here"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers={"Allow": "GET, HEAD, POST"})
        if path == routes.STREAM and request.method == "GET":
            self._stream(response)
        else:
            _send(self._get(path, request, headers), response)

    def _get(self, path: str, request: Request, headers: Mapping[str, str]) -> Response:
        if path in telemetry_routes.ROUTES:
            return telemetry_routes.get(self.control, path, request.query)
        if path == editor_routes.PREFIX or path.startswith(f"{editor_routes.PREFIX}/"):
            return editor_routes.get(self.editor, path)
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
            response.send_stream(HTTPStatus.OK, headers, itertools.chain((b"retry: 2000\n\n",), events))


def _path(request: Request) -> str:
    """Return the requested path; clients may send a whole URL, or repeat the first slash."""
    try:
        return urlsplit(re.sub("^//+", "/", request.path)).path
    except ValueError:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "malformed URL") from None


def _common_headers() -> Mapping[str, str]:
    return {**_COMMON_HEADERS, "Date": formatdate(usegmt=True)}


def _send(answer: Response, response: ResponseWriter) -> None:
    response.common = _common_headers()
    kind = {"Content-Type": answer.content_type} if answer.content_type else {}
    response.send(answer.status, {**answer.headers, **kind}, answer.body)
