"""Records what the pipes of a process did: observes their statuses, and stores events and measurements in a thread of its own.

Invariant: pipes never wait for it. The sampler hands over a status that exists already; only the recorder's thread touches files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace import __version__
from headrace.service.alert_monitor import observe_pipe
from headrace.service.pipe_runner import PipeRunner
from headrace.service.status import PipeStage, PipeStatus
from headrace.telemetry.event import EventKind, PipeEvent, draft_event
from headrace.telemetry.event_detector import EventDetector
from headrace.telemetry.event_log import EventLog
from headrace.telemetry.metrics import Measurement, PipeMetrics, Series, merge_series, prune

log = logging.getLogger("headrace")

_WRITE_S: Final = 1.0
_STORE_S: Final = 10.0
"""A process that is killed loses the measurements of at most this time."""


class TelemetryRecorder:
    """Records the events and measurements of the pipes. Thread-safe."""

    def __init__(self, state: Path, runners: Sequence[PipeRunner], began: float) -> None:
        self._state, self._began, self._log = state, began, EventLog(state)
        self._detectors: dict[str, EventDetector] = {}
        self._metrics: dict[str, PipeMetrics] = {}
        self._reported_until: dict[str, float] = {}
        prune(state, began)
        self._runners: Sequence[PipeRunner] = ()
        self.set_runners(runners)
        self._store_due = 0.0
        self._latest: dict[str, PipeStatus] = {}
        self._started: set[str] = set()
        self._reported = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set_runners(self, runners: Sequence[PipeRunner]) -> None:
        """Observe these pipes from now on. What was recorded of other pipes stays."""
        for name in [runner.name for runner in runners if runner.name not in self._detectors]:
            self._metrics[name] = PipeMetrics(self._state, name)
            self._reported_until[name] = 0.0
            self._detectors[name] = EventDetector(name, self._log.events([name]), self._began)
        self._runners = runners

    def observe(self, runner: PipeRunner, status: PipeStatus) -> None:
        """Take the newest status of a pipe."""
        self._latest[runner.name] = status
        if status.stage is not PipeStage.DISABLED:
            now = time.time()
            self._metrics[runner.name].add(Measurement(now, status.rate, status.snapshot_rate, status.lag_s, status.lag_bytes))

    def events(self, pipes: Collection[str] | None, limit: int) -> list[PipeEvent]:
        return self._log.events(pipes, limit)

    def metrics(self, pipes: Collection[str], span: str) -> Series:
        now = time.time()
        return merge_series([self._metrics[pipe].series(span, now) for pipe in pipes])

    def close(self) -> None:
        """Record how the pipes ended, and end."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._latest |= {runner.name: runner.status() for runner in self._runners}
            self._record()
            self._store()

    def _run(self) -> None:
        while not self._ended.wait(_WRITE_S):
            self._record()
            if time.monotonic() >= self._store_due:
                self._store_due = time.monotonic() + _STORE_S
                self._store()

    def _store(self) -> None:
        for metrics in list(self._metrics.values()):
            metrics.store()

    def _record(self) -> None:
        try:
            found = [event for runner in self._runners for event in self._events_of(runner)]
            self._log.add(sorted(found, key=lambda event: event.at))
        # Last resort: an error here must not end the recording of later events.
        except Exception as error:
            before, self._reported = self._reported, f"{type(error).__name__}: {error}"
            if before != self._reported:
                log.exception("events: the pipes cannot be observed")

    def _events_of(self, runner: PipeRunner) -> list[PipeEvent]:
        status = self._latest.get(runner.name)
        if status is None:
            return []
        drafts = [self._named(runner.name, draft) for draft in runner.view.take_milestones()]
        drafts += self._errors(status)
        seen = observe_pipe(status)
        return self._detectors[runner.name].observe(seen, status.stage, time.time(), sorted(drafts, key=lambda draft: draft.at))

    def _named(self, pipe: str, draft: PipeEvent) -> PipeEvent:
        if draft.kind is EventKind.STARTED and pipe not in self._started:
            self._started.add(pipe)
            return replace(draft, pipe=pipe, text=f"starts with the process, Headrace {__version__}")
        return replace(draft, pipe=pipe)

    def _errors(self, status: PipeStatus) -> list[PipeEvent]:
        until = self._reported_until[status.name]
        fresh = [error for error in status.recent_errors if error.at > until]
        self._reported_until[status.name] = max((error.at for error in fresh), default=until)
        kinds = {True: EventKind.ERROR, False: EventKind.FAILED}
        return [draft_event(one.at, status.name, kinds[one.transient], one.message, one.place, one.remedy) for one in fresh]
