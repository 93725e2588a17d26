"""What the HTTP handler needs of the server, so that handler and server do not import each other."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.dashboard.auth import RequestAuth
from headrace.dashboard.event_stream import EventStream
from headrace.dashboard.static_files import Asset
from headrace.service.control import Control


@dataclass(frozen=True, slots=True)
class Site:
    """The resources that a handler serves."""

    control: Control
    auth: RequestAuth
    events: EventStream
    assets: Callable[[], Mapping[str, Asset]]


class ConnectionTracker(Protocol):
    """The listener, as its connections see it."""

    def set_waiting(self, request: socket.socket, waiting: bool) -> None:
        """Mark a connection as waiting for its client, or as busy."""

    def is_reserved(self, request: socket.socket) -> bool:
        """Return whether the connection is beyond the limit, and so may only request `/health`."""
