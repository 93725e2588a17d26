"""The HTTP server of a running process: dashboard, metrics and control API on one local address."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from headrace.dashboard.auth import Address, RequestAuth, check_exposure, parse_listen
from headrace.dashboard.handler import Asset, DashboardHandler, EventStream, load_assets
from headrace.editor import Editor
from headrace.errors import DefiniteError
from headrace.http.request import HeadLimits
from headrace.http.server import HttpLimits, HttpServer, StopEvent, listen
from headrace.service.status import Control

_LIMITS: Final = HttpLimits(
    connections=128,
    reserved=16,
    idle_s=30,
    receive_s=30,
    io_s=30,
    grace_s=3,
    hurry_s=1,
    head=HeadLimits(line_bytes=(64 << 10) + 1, headers=100),
    busy_response=b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n",
)


def serve(
    control: Control,
    listen: str,
    token: str,
    *,
    hosts: Sequence[str] = (),
    assets: Callable[[], Mapping[str, Asset]] | None = None,
    editor: Editor | None = None,
) -> Server:
    """Start a server on `HOST:PORT` (port 0: any free port).

    POSTs need `token`. `editor` edits the pipe file.

    `hosts` are further host names of the server; without any, only this machine may connect.
    """
    address = parse_listen(listen)
    check_exposure(address, hosts)
    if assets is None:
        loaded = load_assets()
        assets = lambda: loaded  # noqa: E731
    return Server(address, DashboardHandler(control, RequestAuth(address, token, hosts), EventStream(control), assets, editor))


class Server:
    """A server in background threads; a context manager that stops it at exit."""

    def __init__(self, address: Address, handler: DashboardHandler) -> None:
        listener = _listen(address)
        self._events = handler.events
        self.http = HttpServer(listener, handler, _LIMITS)
        self.address = Address(address.host, int(listener.getsockname()[1]))
        self._stop = StopEvent()
        self._thread = threading.Thread(target=self.http.run, args=(self._stop,), name="headrace-http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address.host, self.address.host)
        return f"http://{Address(host, self.address.port)}"

    def close(self) -> None:
        """Stop in order; safe to call twice."""
        self._events.close()
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self._stop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(address: Address) -> socket.socket:
    try:
        return listen(address.host, address.port)
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        raise DefiniteError(
            f"the address {address} is in use" if busy else f"cannot listen on {address}: {error.strerror or error}",
            place="listen",
            hint=(
                "another `headrace run` may use it (see `headrace status`); else choose another port: "
                f'[headrace] listen = "{Address(address.host, 0)}" takes any, listen = "" none'
                if busy
                else "give an address of this machine and a port that is allowed"
            ),
        ) from error
