"""The embedded server: owns the directory and serves each connection in a thread, until it is stopped.

The number of connections is bounded. When there are too many, the connection that has been idle longest is closed; when all are busy, a few
more still get an answer to health checks. So slow clients do not keep others out.

A stop is orderly: no new connections, idle ones are closed, running requests get `_GRACE_SECONDS` to finish, then the engine is closed. A
kill is safe too: an acknowledged insert is a complete part, and an incomplete part is dropped at the next start.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

from headrace.embedded.access.credentials import store_account
from headrace.embedded.access.origin_check import OriginCheck
from headrace.embedded.access.privileges import render_users
from headrace.embedded.access.sandbox import confine
from headrace.embedded.engine.directory_lock import DirectoryLock, in_use, make_directory, read_serving_process, restrict_permissions
from headrace.embedded.engine.engine import Engine, wait_for_directory
from headrace.embedded.engine.engine_config import render_config
from headrace.embedded.engine.errors import QueryFailure
from headrace.embedded.handler import LIVENESS_PATHS, EmbeddedHandler
from headrace.embedded.http.http_connection import BadRequest, Request, ResponseWriter, TimedSocket, read_request
from headrace.errors import DefiniteError
from headrace.shortage import SERVER_FILES, check_file_limit

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS: Final = 60
_IO_SECONDS: Final = 300
_GRACE_SECONDS: Final = 30
_HURRY_SECONDS: Final = 5
STOP_S: Final = _GRACE_SECONDS + 2 * _HURRY_SECONDS
"""The longest duration of a stop."""
_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 512
_MOST_RESERVED: Final = 32
_HEAD_SECONDS: Final = 30
_RESERVED_SECONDS: Final = 2
_REFUSED_SECONDS: Final = 5
_LINGER_SECONDS: Final = 1
_LINGER_BYTES: Final = 4 << 20
_REFUSED_DRAIN: Final = 1 << 20
_READ_BUFFER: Final = 1 << 18
_Stream: TypeAlias = "io.BufferedReader[TimedSocket]"


def serve(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    user: str = "default",
    password: str = "",
    on_ready: Callable[[int], None] | None = None,
    lock_wait_seconds: float = 5.0,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve the directory until SIGTERM or SIGINT; `on_ready` gets the port once requests are served. Call it in the main thread.

    Without a password, the server uses the stored one, or generates and stores a random one.
    """
    # Other users must not read rows or password, whatever mode the engine requests.
    os.umask(0o077)
    root = path.resolve()
    if "?" in str(root):
        raise DefiniteError("the directory's name contains a question mark", place=str(root), hint="choose another name")
    make_directory(root)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(_stop_signals())
        deadline = time.monotonic() + lock_wait_seconds
        lock = DirectoryLock(root, deadline)
        stack.callback(lock.release)
        if not wait_for_directory(root, deadline):
            raise in_use(root, read_serving_process(root))
        restrict_permissions(root)
        account = store_account(root, user, password)
        listener = stack.enter_context(_listen(host, port))
        scratch = _make_scratch(root)
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        config, users = scratch / "engine.xml", scratch / "users.xml"
        config.write_text(render_config())
        # The engine reads a config.xml of the working directory; the scratch directory has none. Its import creates a temporary directory.
        os.chdir(scratch)
        os.environ["TMPDIR"] = str(scratch)
        # A wide table with many parts needs thousands of files.
        check_file_limit("an embedded ClickHouse", SERVER_FILES)
        if not confine(root):
            log.warning("this kernel has no Landlock: only the engine's own rules keep SQL from files outside of %s", root)
        users.write_text(render_users())
        engine = Engine(root, config, users, scratch)
        stack.callback(engine.close)
        handler = EmbeddedHandler(engine, account, OriginCheck(host, allowed_hosts), scratch)
        stack.callback(handler.close)
        server = _Server(listener, handler)
        bound = int(listener.getsockname()[1])
        lock.publish(host, bound)
        if on_ready is not None:
            on_ready(bound)
        server.run(stop)


class _Stop:
    """Set by a signal handler, awaited by the accept loop."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)

    def request(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.writer, b"x")


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop.request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        os.close(stop.reader)
        os.close(stop.writer)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise DefiniteError(
            f"cannot listen: {error.strerror or error}", place=f"{host}:{port}", hint="choose a free port, or 0 for any, and an own address"
        ) from error
    return listener


def _make_scratch(root: Path) -> Path:
    """Create an empty directory for the engine's configuration and spooled results; files of a killed server are removed."""
    scratch = root / "headrace-scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    return scratch


class _Server:
    def __init__(self, listener: socket.socket, handler: EmbeddedHandler) -> None:
        self._listener = listener
        self._handler = handler
        self._connections: set[_ClientConnection] = set()
        self._lock = threading.Lock()

    def run(self, stop: _Stop) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(stop.reader, select.POLLIN)
        while not any(fd == stop.reader for fd, _ in poller.poll()):
            self._accept()
        self._listener.close()
        self._drain()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors, or the client has gone: neither may end the server.
            log.warning("cannot accept a connection: %s", error)
            time.sleep(0.1)
            return
        with self._lock:
            full = len(self._connections) >= _MOST_CONNECTIONS
            waiting = [connection for connection in self._connections if connection.waiting_since is not None] if full else []
            if waiting:
                slowest = min(waiting, key=lambda connection: connection.waiting_since or 0.0)
                self._connections.discard(slowest)
                slowest.stop(hurry=True)
            if len(self._connections) >= _MOST_CONNECTIONS + _MOST_RESERVED:
                log.warning("%d requests are at work; a connection is closed", _MOST_CONNECTIONS)
                sock.close()
                return
            connection = _ClientConnection(sock, self._handler, self._forget, reserved=full and not waiting)
            self._connections.add(connection)
        connection.thread.start()

    def _forget(self, connection: _ClientConnection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _drain(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        for hurry in (False, True):
            with self._lock:
                connections = list(self._connections)
            for connection in connections:
                connection.stop(hurry)
            if hurry and connections:
                self._handler.cancel()
            for connection in connections:
                connection.thread.join(max(0.0, deadline - time.monotonic()) if not hurry else _HURRY_SECONDS)


class _ClientConnection:
    """One client's connection and its thread."""

    def __init__(
        self, sock: socket.socket, handler: EmbeddedHandler, forget: Callable[[_ClientConnection], None], *, reserved: bool
    ) -> None:
        """`reserved`: beyond the limit; only health checks are answered."""
        self.waiting_since: float | None = time.monotonic()
        self._reserved = reserved
        self._sock = sock
        self._handler = handler
        self._forget = forget
        self._lock = threading.Lock()
        self._busy = False
        self._stopping = False
        self._response: ResponseWriter | None = None
        self.thread = threading.Thread(target=self._serve, name="client", daemon=True)

    def stop(self, hurry: bool) -> None:
        """Close when idle, or after the current request; with `hurry`, now."""
        with self._lock:
            self._stopping = True
            if self._response is not None:
                self._response.keep_alive = False
            if hurry or not self._busy:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._sock, io.BufferedReader(TimedSocket(self._sock), _READ_BUFFER) as stream:
                while self._serve_one(stream):
                    pass
        except OSError as error:
            # The client has gone; the handler has undone its request.
            log.debug("connection lost: %s", error)
        finally:
            self._forget(self)

    def _serve_one(self, stream: _Stream) -> bool:
        self.waiting_since = time.monotonic()
        self._sock.settimeout(_RESERVED_SECONDS if self._reserved else _KEEP_ALIVE_SECONDS)
        if not stream.peek(1):
            return False
        with self._lock:
            if self._stopping:
                return False
            self._busy = True
        try:
            return self._exchange(stream)
        finally:
            with self._lock:
                self._busy = False

    def _exchange(self, stream: _Stream) -> bool:
        response = ResponseWriter(self._sock, "", keep_alive=False)
        try:
            stream.raw.deadline = time.monotonic() + (_RESERVED_SECONDS if self._reserved else _HEAD_SECONDS)
            request = read_request(stream, self._sock)
            stream.raw.deadline, self.waiting_since = None, None
            self._sock.settimeout(_RESERVED_SECONDS if self._reserved else _IO_SECONDS)
            with self._lock:
                response = self._response = ResponseWriter(self._sock, request.method, keep_alive=request.keep_alive and not self._stopping)
            return self._answer(request, response)
        except BadRequest as error:
            if not response.started:
                response.keep_alive = False
                response.send(error.status, {"Content-Type": "text/plain; charset=UTF-8"}, f"{error.reason}\n".encode())
                self._linger()
            return False

    def _linger(self) -> None:
        """Read what the client still sends for a moment: closing with unread bytes would cut off the response."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(_LINGER_SECONDS)
            taken = 0
            while taken < _LINGER_BYTES and (piece := self._sock.recv(1 << 16)):
                taken += len(piece)

    def _answer(self, request: Request, response: ResponseWriter) -> bool:
        if self._reserved and request.path not in LIVENESS_PATHS:
            response.keep_alive = False
            response.send(503, {"Content-Type": "text/plain; charset=UTF-8", "Retry-After": "5"}, b"Too many requests are at work.\n")
            return False
        try:
            self._handler.answer(request, response)
        except QueryFailure as failure:
            # Part of the result was sent: the handler has marked it, and closing here leaves it visibly incomplete.
            log.info("a result ended early: %s", failure.message)
            return False
        if response.refused:
            self._sock.settimeout(_REFUSED_SECONDS)
            return response.keep_alive and request.body.drain(_REFUSED_DRAIN)
        return response.keep_alive and not self._reserved and request.body.drain()
