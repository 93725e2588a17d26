"""Live updates: the status as server-sent events, made once a second for all who listen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import orjson

from headrace.dashboard.responses import Refused
from headrace.service.control import Control

PERIOD_S: Final = 1.0
MOST_LISTENERS: Final = 64
END: Final = b"event: end\ndata: {}\n\n"
"""The process ends: whoever listens may say so, and try again later."""


class Pulse:
    """Makes events for as long as somebody listens; safe for threads. A slow listener misses some, and holds up nobody."""

    def __init__(self, control: Control) -> None:
        self._control = control
        # Two: whoever comes or leaves does not wait for a status that is long in coming.
        self._counting, self._making = threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._listeners = 0
        self._event, self._made = b"", -PERIOD_S

    @contextmanager
    def listening(self) -> Iterator[Iterator[bytes]]:
        with self._counting:
            if self._listeners >= MOST_LISTENERS:
                remedy = "close pages that nobody looks at"
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many listen already", remedy=remedy, headers={"Retry-After": "10"})
            self._listeners += 1
        try:
            yield self._events()
        finally:
            with self._counting:
                self._listeners -= 1

    def end(self) -> None:
        """Have all listeners leave."""
        self._ended.set()

    def _events(self) -> Iterator[bytes]:
        while not self._ended.is_set():
            started = time.monotonic()
            yield self._current()
            self._ended.wait(max(0.0, PERIOD_S - (time.monotonic() - started)))
        yield END

    def _current(self) -> bytes:
        with self._making:
            # Half a period old is new enough: listeners beat together without a thread that beats for nobody.
            if time.monotonic() - self._made >= PERIOD_S / 2:
                self._event = b"event: status\ndata: " + orjson.dumps(self._control.status()) + b"\n\n"
                self._made = time.monotonic()
            return self._event
