"""The HTTP server of a running process: dashboard, metrics and control API on one local address.

Every connection has a thread; the number of connections is limited, and slow clients time out. At the limit, the connection that has waited
longest for its client is closed; if all are busy, a few reserved connections may still request `/health`, so that slow clients do not make
the process look dead. At shutdown the server accepts no new connections, ends streams, and gives running requests a moment. It has no TLS:
it listens on loopback, and a proxy in front of it brings its own certificate.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from headrace.dashboard.auth import Address, RequestAuth, check_exposure, parse_listen
from headrace.dashboard.event_stream import EventStream
from headrace.dashboard.handler import DashboardHandler
from headrace.dashboard.site import Site
from headrace.dashboard.static_files import Asset, load_assets
from headrace.errors import DefiniteError
from headrace.service.control import Control

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 128
MAX_RESERVED: Final = 16
_POLL_S, _GRACE_S = 0.1, 3.0
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"


def serve(
    control: Control,
    listen: str,
    token: str,
    *,
    hosts: Sequence[str] = (),
    assets: Callable[[], Mapping[str, Asset]] | None = None,
) -> Server:
    """Start a server on `HOST:PORT` (port 0: any free port).

    POSTs need `token`. `hosts` are further host names of the server; without any, only this machine may connect.
    """
    address = parse_listen(listen)
    check_exposure(address, hosts)
    if assets is None:
        loaded = load_assets()
        assets = lambda: loaded  # noqa: E731
    return Server(address, Site(control, RequestAuth(address, token, hosts), EventStream(control), assets))


class Server:
    """A server in background threads; a context manager that stops it at exit."""

    def __init__(self, address: Address, site: Site) -> None:
        self._site = site
        self._listener = _listen(address, type("_SiteHandler", (DashboardHandler,), {"site": site}))
        self.address = Address(address.host, int(self._listener.server_address[1]))
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": _POLL_S}, name="headrace-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        return f"http://{_local_address(self.address)}"

    def close(self) -> None:
        """Stop in order; safe to call twice."""
        if self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
        self._site.events.close()
        self._listener.server_close()
        self._listener.drain(_GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Accepts connections and tracks the open ones."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: Address, handler: type[DashboardHandler]) -> None:
        self._open: dict[socket.socket, threading.Thread | None] = {}
        self._waiting: dict[socket.socket, None] = {}
        self._reserved: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS and self._waiting:
                self._disconnect(next(iter(self._waiting)))
            turned_away = len(self._open) >= MAX_CONNECTIONS + MAX_RESERVED
            if not turned_away:
                if len(self._open) >= MAX_CONNECTIONS:
                    self._reserved.add(request)
                else:
                    self._waiting[request] = None
                self._open[request] = None
        if turned_away:
            log.warning("there are %d connections already; one more is turned away", MAX_CONNECTIONS + MAX_RESERVED)
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def set_waiting(self, request: socket.socket, waiting: bool) -> None:
        """Mark a connection as waiting for its client, or as busy; the one that waits longest is closed first."""
        with self._lock:
            self._waiting.pop(request, None)
            if waiting and request in self._open and request not in self._reserved:
                self._waiting[request] = None

    def is_reserved(self, request: socket.socket) -> bool:
        """Return whether the connection is beyond the limit, and so may only request `/health`."""
        return request in self._reserved

    def _disconnect(self, request: socket.socket) -> None:
        self._waiting.pop(request, None)
        self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if request in self._open:
                self._open[request] = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self._waiting.pop(request, None)
                self._reserved.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            # The client disconnected or timed out; this is not a server error.
            log.debug("connection lost: %s", error)
        else:
            log.error("a request failed", exc_info=error)

    def drain(self, seconds: float) -> None:
        """Wait for running requests, then disconnect them."""
        deadline = time.monotonic() + seconds
        for hurry in (False, True):
            with self._lock:
                open_now = dict(self._open)
            for request in open_now:
                with contextlib.suppress(OSError):
                    # Closing the read side ends idle connections; a response that is being sent can finish.
                    request.shutdown(socket.SHUT_RDWR if hurry else socket.SHUT_RD)
            for thread in open_now.values():
                if thread is not None:
                    thread.join(max(0.0, deadline - time.monotonic()) if not hurry else 1.0)


def _listen(address: Address, handler: type[DashboardHandler]) -> Listener:
    try:
        return Listener(address, handler)
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        raise DefiniteError(
            f"the address {address} is in use" if busy else f"cannot listen on {address}: {error.strerror or error}",
            place="listen",
            hint=(
                "another `headrace run` may be at it (`headrace status` tells); else choose another port: "
                f'[headrace] listen = "{Address(address.host, 0)}" takes any, listen = "" none'
                if busy
                else "give an address of this machine and a port that is allowed"
            ),
        ) from error


def _local_address(address: Address) -> Address:
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return Address(anywhere.get(address.host, address.host), address.port)
