"""The HTTP server of a running process: the page, the figures and the control API, on one address of this machine.

Every connection has a thread; there are so many at most, and each gives up on a client that takes too long. When there are too many, the
one that has waited longest to send a request makes room; when all are at work, a few more may still ask for `/health`. So slow clients do
not make the process look dead. Ending is
orderly: no new connections, streams are told and end, what is under way gets a moment. TLS is not its business: it listens on loopback,
and a proxy that others reach it by brings its own certificate.
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

from headrace.dashboard.auth import Address, Gate, check_reach, parse_listen
from headrace.dashboard.event_stream import Pulse
from headrace.dashboard.handler import Handler
from headrace.dashboard.site import Site
from headrace.dashboard.static_files import Asset, load_assets
from headrace.errors import DefiniteError
from headrace.service.control import Control

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 128
MOST_RESERVED: Final = 16
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
    """Listen on `HOST:PORT` (port 0: any) and answer, until the server is closed.

    POSTs need `token`. `hosts` are further names that the server is reached by; without any, only this machine may reach it.
    """
    address = parse_listen(listen)
    check_reach(address, hosts)
    if assets is None:
        loaded = load_assets()
        assets = lambda: loaded  # noqa: E731
    return Server(address, Site(control, Gate(address, token, hosts), Pulse(control), assets))


class Server:
    """A server that runs in threads of its own; a context manager that ends it."""

    def __init__(self, address: Address, site: Site) -> None:
        self._site = site
        self._listener = _listen(address, type("_SiteHandler", (Handler,), {"site": site}))
        self.address = Address(address.host, int(self._listener.server_address[1]))
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": _POLL_S}, name="headrace-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        return f"http://{_reached(self.address)}"

    def close(self) -> None:
        """End in order; safe to call twice."""
        if self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
        self._site.pulse.end()
        self._listener.server_close()
        self._listener.drain(_GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Accepts connections; knows those that are open."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: Address, handler: type[Handler]) -> None:
        self._open: dict[socket.socket, threading.Thread | None] = {}
        self._waiting: dict[socket.socket, None] = {}
        self._reserved: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS and self._waiting:
                self._cut_off(next(iter(self._waiting)))
            turned_away = len(self._open) >= MOST_CONNECTIONS + MOST_RESERVED
            if not turned_away:
                if len(self._open) >= MOST_CONNECTIONS:
                    self._reserved.add(request)
                else:
                    self._waiting[request] = None
                self._open[request] = None
        if turned_away:
            log.warning("there are %d connections already; one more is turned away", MOST_CONNECTIONS + MOST_RESERVED)
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def set_waiting(self, request: socket.socket, waiting: bool) -> None:
        """A connection waits while its client is to send something; the one that has waited longest makes room for another."""
        with self._lock:
            self._waiting.pop(request, None)
            if waiting and request in self._open and request not in self._reserved:
                self._waiting[request] = None

    def is_reserved(self, request: socket.socket) -> bool:
        """Whether a connection is one beyond the limit, which may only ask for `/health`."""
        return request in self._reserved

    def _cut_off(self, request: socket.socket) -> None:
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
            # The client went away, or took too long: nothing of ours went wrong.
            log.debug("connection lost: %s", error)
        else:
            log.error("a request failed", exc_info=error)

    def drain(self, seconds: float) -> None:
        """Wait for what is under way, then cut it off."""
        deadline = time.monotonic() + seconds
        for hurry in (False, True):
            with self._lock:
                open_now = dict(self._open)
            for request in open_now:
                with contextlib.suppress(OSError):
                    # Nothing more is read: a connection that idles ends by this; one that answers can still do so.
                    request.shutdown(socket.SHUT_RDWR if hurry else socket.SHUT_RD)
            for thread in open_now.values():
                if thread is not None:
                    thread.join(max(0.0, deadline - time.monotonic()) if not hurry else 1.0)


def _listen(address: Address, handler: type[Handler]) -> Listener:
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


def _reached(address: Address) -> Address:
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return Address(anywhere.get(address.host, address.host), address.port)
