"""Live updates: the status as server-sent events, built once a second for all listeners."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import orjson

from headrace.http.request import HttpError
from headrace.service.control import Control

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
