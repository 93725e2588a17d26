"""The events of all pipes of a process, in `events.jsonl` of its state directory.

Invariant: pipes neither read the file nor wait for it. A damaged line is dropped, and the file is written again without it; a file that
cannot be written is a warning. File and memory are bounded: the oldest events of a pipe go first, so a noisy pipe displaces only its own.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from headrace.jsonl import MISSHAPEN, Journal
from headrace.telemetry.event import PipeEvent, parse_event

log = logging.getLogger("headrace")

FILE: Final = "events.jsonl"
MAX_OF_A_PIPE: Final = 500
MAX_EVENTS: Final = 10_000
_SLACK: Final = 1000
"""How many outdated lines the file may have before it is written again."""
_MAX_BYTES: Final = 64 << 20
"""A larger file is not Headrace's; only its end is read."""


class EventLog:
    """Stores events. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._journal = Journal(self.path)
        self._lock = threading.Lock()
        self._events: dict[str, deque[PipeEvent]] = {}
        self._lines = 0
        self._is_writable = True
        damaged = self._load()
        if damaged:
            log.warning("events: %s: %d damaged lines are dropped", self.path, damaged)
            with self._lock:
                self._write(())

    def add(self, events: Collection[PipeEvent]) -> None:
        if events:
            with self._lock:
                for event in events:
                    self._keep(event)
                self._write(events)

    def events(self, pipes: Collection[str] | None = None, limit: int = MAX_OF_A_PIPE) -> list[PipeEvent]:
        """Return the newest events of these pipes, or of all, newest first."""
        with self._lock:
            found = [event for pipe, kept in self._events.items() if pipes is None or pipe in pipes for event in reversed(kept)]
        return heapq.nlargest(limit, found, key=lambda event: event.at)

    # -- under the lock

    def _keep(self, event: PipeEvent) -> None:
        self._events.setdefault(event.pipe, deque(maxlen=MAX_OF_A_PIPE)).append(event)

    def _count(self) -> int:
        return sum(map(len, self._events.values()))

    def _write(self, fresh: Iterable[PipeEvent]) -> None:
        """Append events that are kept already; without any, or if the file has grown or was not writable, write the whole file."""
        appended = list(fresh)
        try:
            if not appended or not self._is_writable or self._lines + len(appended) > min(self._count(), MAX_EVENTS) + _SLACK:
                self._rewrite()
            else:
                for event in appended:
                    self._journal.append(event.to_json())
                self._lines += len(appended)
            self._is_writable = True
        except OSError as error:
            if self._is_writable:
                log.warning("events: %s cannot be written, so events may be missing after a restart: %s", self.path, error)
            # The last line may be incomplete.
            self._is_writable = False

    def _rewrite(self) -> None:
        kept = heapq.nlargest(MAX_EVENTS, (event for one in self._events.values() for event in one), key=lambda event: event.at)
        self._events.clear()
        for event in reversed(kept):
            self._keep(event)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._journal.rewrite(event.to_json() for event in reversed(kept))
        self._lines = len(kept)

    # -- at the start

    def _load(self) -> int:
        """Read the file and return how many lines are damaged."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _MAX_BYTES))
                content = file.read()
        except FileNotFoundError:
            return 0
        except OSError as error:
            log.warning("events: %s cannot be read: %s", self.path, error)
            self._is_writable = False
            return 0
        whole, _, torn = content.rpartition(b"\n")
        damaged = int(bool(torn))
        for line in whole.split(b"\n") if whole else ():
            try:
                self._keep(parse_event(json.loads(line)))
                self._lines += 1
            except (RecursionError, *MISSHAPEN):
                damaged += 1
        return damaged
