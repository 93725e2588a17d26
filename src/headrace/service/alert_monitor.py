"""Observes the pipes of a process for its alerts, in a thread of its own.

Invariant: pipes and reloads never wait for it. It reads statuses that exist already, and measures free disk space. The thread starts with
the first rule.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.alerts.delivery import AlertDelivery
from headrace.alerts.observation import DiskObservation, Health, LastComparison, Observation, PipeObservation, SchemaChange
from headrace.alerts.status import AlertsStatus
from headrace.alerts.store import FILE, AlertStore
from headrace.config.configuration import Configuration
from headrace.service.log_formats import mask_secrets
from headrace.service.pipe_runner import PipeRunner
from headrace.service.status import PipeStage, PipeStatus, TableStatus, VerifyResult
from headrace.sinks.clickhouse.connector import EMBEDDED_CLICKHOUSE, embedded_path

log = logging.getLogger("headrace")

_POLL_S: Final = 1.0
_DISK_S: Final = 30.0
_FLUSH_S: Final = 4.0
"""How long the end of the process waits for alerts that were never tried."""
_HEALTH: Final = {
    PipeStage.SNAPSHOT: Health.RUNS,
    PipeStage.STREAMING: Health.RUNS,
    PipeStage.STARTING: Health.AWAY,
    PipeStage.WAITING: Health.AWAY,
    PipeStage.RETRYING: Health.AWAY,
    PipeStage.FAILED: Health.FAILED,
}
"""In all other stages a person has stopped the pipe."""


class AlertMonitor:
    """Detects and sends the alerts of a process. Thread-safe."""

    def __init__(self, configuration: Configuration, runners: Sequence[PipeRunner], began: float) -> None:
        self.server_url = ""
        """Where the dashboard listens, for links without `[headrace] address`."""
        self._state, self._began = configuration.process.state, began
        self._store: AlertStore | None = None
        self._delivery: AlertDelivery | None = None
        self._reported = ""
        self._is_started, self._ended = False, threading.Event()
        self._lock = threading.Lock()
        """Held while the rules are replaced and the threads are started or ended."""
        self._thread = threading.Thread(target=self._run, name="headrace-alerts", daemon=True)
        self._configure(configuration, runners, began)

    def start(self) -> None:
        with self._lock:
            self._is_started = True
            self._start_threads()

    def configure(self, configuration: Configuration, runners: Sequence[PipeRunner]) -> None:
        """Observe these pipes from now on, by the rules of the configuration. It waits for no receiver."""
        with self._lock:
            self._configure(configuration, runners, time.time())
            self._start_threads()

    def _configure(self, configuration: Configuration, runners: Sequence[PipeRunner], at: float) -> None:
        self._address, self._runners = configuration.process.address, runners
        self._directories, self._disk_due = _directories(self._state, runners), 0.0
        if self._store is not None:
            self._store.set_rules(configuration.alerts, at)
        elif configuration.alerts or (self._state / FILE).exists():
            store = AlertStore(self._state, configuration.alerts, self._began, since=at)
            self._store, self._delivery = store, AlertDelivery(store)

    def _start_threads(self) -> None:
        if self._store is None or self._delivery is None or not self._is_started or self._ended.is_set():
            return
        self._delivery.follow_rules()
        if self._store.rules and self._thread.ident is None:
            self._thread.start()

    def status(self) -> AlertsStatus:
        return AlertsStatus() if self._store is None else self._store.status()

    def observe(self) -> None:
        """Observe all pipes now."""
        if self._store is None or not self._store.rules:
            return
        try:
            self._store.observe(self._observation())
        # Last resort: an error here must neither end the alerts nor the process.
        except Exception as error:
            before, self._reported = self._reported, f"{type(error).__name__}: {error}"
            if before != self._reported:
                log.exception("alerts: the pipes cannot be observed")

    def close(self) -> None:
        """Report the pipes that have failed until now, and end. Alerts that were not sent are sent after the next start."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        if self._store is not None and self._delivery is not None and self._thread.ident is not None:
            self._thread.join()
            self.observe()
            self._store.flush(_FLUSH_S)
            self._delivery.close()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            self.observe()

    def _observation(self) -> Observation:
        pipes = tuple(observe_pipe(runner.status()) for runner in self._runners)
        return Observation(time.time(), time.monotonic(), pipes, self._measure_disks(), self._address or self.server_url)

    def _measure_disks(self) -> tuple[DiskObservation, ...]:
        if time.monotonic() < self._disk_due:
            return ()
        self._disk_due = time.monotonic() + _DISK_S
        return measure_disks(self._directories)


def observe_pipe(status: PipeStatus) -> PipeObservation:
    error, health = status.error, _HEALTH.get(status.stage, Health.IDLE)
    return PipeObservation(
        status.name,
        status.group,
        health,
        status.since,
        error.message if error is not None else mask_secrets(status.waiting),
        error.place if error is not None else "",
        error.remedy if error is not None else "",
        status.lag_s,
        tuple(SchemaChange(one.at, one.table, _masked(one.statement), one.outcome) for one in status.schema_changes),
        tuple(_comparison(table) for table in status.tables),
    )


# The same statements are seen each second.
_masked = functools.lru_cache(1000)(mask_secrets)


def _comparison(table: TableStatus) -> LastComparison:
    found = table.verify
    return LastComparison(table.name, "") if found is None else LastComparison(table.name, found.verdict, found.at, _differing(found))


def _differing(found: VerifyResult) -> int:
    return found.different + found.missing + found.extra


def measure_disks(directories: Sequence[tuple[Path, str]]) -> tuple[DiskObservation, ...]:
    """Measure the file systems of directories, each with a pipe that writes there. If one does not exist, its parent counts."""
    found: dict[int, tuple[Path, list[str]]] = {}
    for directory, group in directories:
        with suppress(OSError, StopIteration):
            there = next(path for path in (directory, *directory.parents) if path.exists())
            _, groups = found.setdefault(there.stat().st_dev, (there, []))
            groups += [] if group in groups else [group]
    disks = []
    for there, groups in found.values():
        with suppress(OSError):
            space = os.statvfs(there)
            disks.append(DiskObservation(str(there), space.f_bavail * space.f_frsize, tuple(groups)))
    return tuple(disks)


def _directories(state: Path, runners: Sequence[PipeRunner]) -> list[tuple[Path, str]]:
    """Return what the pipes write to: the state, relay logs, embedded servers."""
    found = [(state.absolute(), runner.shown.group) for runner in runners]
    for runner in runners:
        settings, sink = runner.spec.settings, runner.spec.sink
        places = [Path(settings.relay)] if settings.relay else []
        places += [embedded_path(sink)] if EMBEDDED_CLICKHOUSE.is_address(sink) else []
        found += [(place.absolute(), runner.shown.group) for place in places]
    return found
