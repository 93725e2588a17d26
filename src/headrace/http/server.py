"""The socket server: a thread per connection, limits on connections and time, and an orderly stop.

When there are too many connections, the one that has waited longest for its client is closed. When all are busy, a few reserved connections
may still request the handler's liveness paths. So slow clients neither keep others out nor make the process look dead.

A stop is orderly: no new connections, idle ones are closed, running requests get a grace period. There is no TLS: a proxy in front of the
server brings its own certificate.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from headrace.http.request import BadRequest, HeadLimits, HttpError, Request, RequestStream, TimedSocket, read_head
from headrace.http.response import ResponseWriter

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_RESERVED_S: Final = 2.0
_REFUSED_S: Final = 5.0
_REFUSED_DRAIN: Final = 1 << 20
_LINGER_S: Final = 1.0
"""How long the client may send nothing; on a reserved connection, how long it may take altogether."""
_LINGER_TOTAL_S: Final = 5.0
_LINGER_BYTES: Final = 4 << 20
_READ_BUFFER: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections: int
    reserved: int
    """Connections beyond the limit, for liveness checks."""
    idle_s: float
    """How long a connection may wait for the first byte of a request."""
    receive_s: float
    """How long a client may take to send what a handler reads in `receive`."""
    io_s: float
    """Timeout of a single read or write after that."""
    grace_s: float
    """How long running requests may take to finish after a stop."""
    hurry_s: float
    """How long each may take to end after its connection is closed."""
    head: HeadLimits
    busy_response: bytes = b""
    """Sent to a connection that finds no reserved one."""


class RequestHandler(Protocol):
    """Handles the requests of all connections of a server."""

    @property
    def liveness_paths(self) -> frozenset[str]: ...

    def receive(self, request: Request, stream: RequestStream) -> None:
        """Frame the body of a request, or read it; an `HttpError` closes the connection."""

    def answer(self, request: Request, response: ResponseWriter) -> None:
        """Send the response; an `HttpError` is sent by `send_error`."""

    def send_error(self, error: HttpError, response: ResponseWriter) -> None: ...


class StopEvent:
    """Ends `HttpServer.run`; a signal handler may set it."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"x")

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)


def listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class HttpServer:
    def __init__(
        self, listener: socket.socket, handler: RequestHandler, limits: HttpLimits, cancel: Callable[[], None] = lambda: None
    ) -> None:
        """`cancel` is called after a stop, if requests still run when their grace period is over."""
        self.limits = limits
        self.handler = handler
        self._listener = listener
        self._cancel = cancel
        self._connections: set[_ClientConnection] = set()
        self._lock = threading.Lock()

    def run(self, stop: StopEvent) -> None:
        """Serve until `stop` is set; return when all connections have ended."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(stop.reader, select.POLLIN)
        while not any(fd == stop.reader for fd, _ in poller.poll()):
            self._accept()
        self._listener.close()
        self._drain()

    def forget(self, connection: _ClientConnection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors, or the client has gone: neither may end the server.
            log.warning("cannot accept a connection: %s", error)
            time.sleep(0.1)
            return
        with self._lock:
            reserved = not self._has_room(self.limits.connections, reserved=False)
            if reserved and not self._has_room(self.limits.reserved, reserved=True):
                log.warning("all %d connections are busy; a new one is closed", len(self._connections))
                with sock, contextlib.suppress(OSError):
                    sock.setblocking(False)
                    sock.sendall(self.limits.busy_response)
                return
            connection = _ClientConnection(sock, self, reserved=reserved)
            self._connections.add(connection)
        try:
            connection.thread.start()
        except RuntimeError as error:
            # Out of threads: that must not end the server.
            log.warning("cannot serve a connection: %s", error)
            self.forget(connection)
            sock.close()

    def _has_room(self, limit: int, *, reserved: bool) -> bool:
        """Return whether there is room for a connection of this kind; close the one that has waited longest for its client, if need be.

        A connection makes room for its own kind only: otherwise idle reserved ones would turn into further ordinary ones.
        """
        alike = [connection for connection in self._connections if connection.reserved is reserved]
        if len(alike) < limit:
            return True
        waiting = [connection for connection in alike if connection.waiting_since is not None]
        if waiting:
            slowest = min(waiting, key=lambda connection: connection.waiting_since or 0.0)
            self._connections.discard(slowest)
            slowest.stop(hurry=True)
        return bool(waiting)

    def _drain(self) -> None:
        deadline = time.monotonic() + self.limits.grace_s
        for hurry in (False, True):
            with self._lock:
                connections = list(self._connections)
            for connection in connections:
                connection.stop(hurry)
            if hurry and connections:
                self._cancel()
            for connection in connections:
                connection.thread.join(max(0.0, deadline - time.monotonic()) if not hurry else self.limits.hurry_s)


class _ClientConnection:
    """One client's connection and its thread."""

    def __init__(self, sock: socket.socket, server: HttpServer, *, reserved: bool) -> None:
        """`reserved`: beyond the limit; only liveness checks are answered."""
        self.waiting_since: float | None = time.monotonic()
        """Since when the client has not sent a complete request; None while a request is handled."""
        self.reserved = reserved
        self._sock = sock
        self._server = server
        self._handler = server.handler
        limits = server.limits
        self._limits = replace(limits, idle_s=_RESERVED_S, receive_s=_RESERVED_S, io_s=_RESERVED_S) if reserved else limits
        self._lock = threading.Lock()
        self._stopping = False
        self._is_answered = False
        """Whether only unread bytes of the request keep the connection: a new connection may replace it, an orderly stop waits."""
        self._response: ResponseWriter | None = None
        self.thread = threading.Thread(target=self._serve, name="headrace-http", daemon=True)

    def stop(self, hurry: bool) -> None:
        """Close the connection if it waits for its client, or after the current request; with `hurry`, now."""
        with self._lock:
            self._stopping = True
            if self._response is not None:
                self._response.keep_alive = False
            if hurry or (self.waiting_since is not None and not self._is_answered):
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._sock, io.BufferedReader(TimedSocket(self._sock), _READ_BUFFER) as stream:
                while self._serve_one(stream):
                    pass
        except OSError as error:
            # The client has gone or is too slow; the handler has undone its request.
            log.debug("connection lost: %s", error)
        except Exception:
            log.exception("a request failed")
        finally:
            self._server.forget(self)

    def _serve_one(self, stream: RequestStream) -> bool:
        """Serve a request; return whether the connection may serve another."""
        with self._lock:
            if self._stopping:
                return False
            self.waiting_since, self._response, self._is_answered = time.monotonic(), None, False
        self._sock.settimeout(self._limits.idle_s)
        if not stream.peek(1):
            return False
        response = ResponseWriter(self._sock, "", keep_alive=False)
        try:
            request = self._receive(stream, response)
            return request is not None and self._answer(request, response)
        except HttpError as error:
            # A malformed request, or a chunk of it.
            if not response.started:
                response.keep_alive = False
                self._handler.send_error(error, response)
                self._linger()
            return False

    def _receive(self, stream: RequestStream, response: ResponseWriter) -> Request | None:
        """Read a request; None if the server has stopped meanwhile."""
        stream.raw.deadline = time.monotonic() + self._limits.receive_s
        request = read_head(stream, self._limits.head)
        response.method = request.method
        self._handler.receive(request, stream)
        stream.raw.deadline = None
        self._sock.settimeout(self._limits.io_s)
        with self._lock:
            if self._stopping:
                return None
            self.waiting_since, self._response = None, response
            response.keep_alive = request.keep_alive and not self.reserved
        return request

    def _answer(self, request: Request, response: ResponseWriter) -> bool:
        if self.reserved and request.path not in self._handler.liveness_paths:
            raise HttpError(503, "too many requests are at work", headers={"Retry-After": "5"})
        try:
            self._handler.answer(request, response)
        except BadRequest:
            raise
        except HttpError as error:
            if response.started or not response.keep_alive:
                raise
            self._handler.send_error(error, response)
        if not response.keep_alive:
            return False
        self._note_answered()
        if not response.refused:
            return request.body.drain()
        self._sock.settimeout(_REFUSED_S)
        return request.body.drain(_REFUSED_DRAIN)

    def _note_answered(self) -> None:
        with self._lock:
            self.waiting_since, self._is_answered = time.monotonic(), True

    def _linger(self) -> None:
        """Read what the client still sends for a moment: closing with unread bytes would cut off the response."""
        self._note_answered()
        deadline = time.monotonic() + (_LINGER_S if self.reserved else _LINGER_TOTAL_S)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            taken = 0
            while taken < _LINGER_BYTES and (left := deadline - time.monotonic()) > 0:
                self._sock.settimeout(min(left, _LINGER_S))
                piece = self._sock.recv(1 << 16)
                if not piece:
                    break
                taken += len(piece)
