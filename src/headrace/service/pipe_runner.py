"""Runs one source of a pipe in a thread: starts it, restarts it after transient errors, and executes control requests.

    starting -> snapshot -> streaming <-> waiting          (the pipe runs)
    any of them -> retrying -> starting                    (a transient error; the wait doubles, up to five minutes)
    any of them -> failed                                  (an error that needs a person)
    any of them -> stopping -> paused | stopped            (requested; `resume` starts it again)

Invariant: at most one run at a time. Whatever ends a run, its thread stays alive and its error is kept. A failure never affects another
runner. A pause is written to the state directory before the request returns, so it survives a restart of the process.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from headrace.config.key_catalog import add_file_keys
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.pipes.lifecycle.base import Pipe
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.spec import BuiltPipe, PipeSpec
from headrace.pipes.state.event_skips import skipped_by_table
from headrace.pipes.state.json_file import replace_json
from headrace.retry import WaitState, use_wait_state
from headrace.runtime.interface import Runtime
from headrace.service.log_formats import mask_secrets
from headrace.service.status import ErrorStatus, MetricSample, PipeStage, PipeStatus, VerifyResult
from headrace.service.status_collector import SampleHistory, StatusCollector, with_rates
from headrace.shortage import shortage_of
from headrace.spark.runtime.java_process import lost_process_error
from headrace.spark.runtime.micro_batch import is_java_process_gone
from headrace.telemetry.table_rates import TableCount, TableRates
from headrace.verify.records import VerifyRecord, read_records, record_files

log = logging.getLogger("headrace")

PipeOpener = Callable[[PipeSpec, ProgressView, Runtime], AbstractContextManager[BuiltPipe]]
MAX_RETRY_WAIT_S: Final = 300.0
_MIN_RETRY_WAIT_S: Final = 0.05
STABLE_RUN_S: Final = 60.0
"""A run of this length resets the retry wait."""
_TASK_RETRY_TIMEOUT_S: Final = 15.0
"""A task that waits for its sink holds a slot that all pipes share: it gives up soon, and the runner waits instead."""
_MAX_RECENT_ERRORS: Final = 10
_PAUSE_FILE: Final = "paused.json"


class RequestedState(StrEnum):
    """The state that was requested last."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"
    END = "end"
    """Stop permanently: the process ends."""


@dataclass(frozen=True, slots=True)
class DisplayNames:
    group: str
    source: str
    sink: str


class PipeRunner:
    """Runs one `PipeSpec`. Thread-safe."""

    def __init__(
        self, spec: PipeSpec, shown: DisplayNames, runtime: Runtime, build: PipeOpener, *, enabled: bool = True, retry_s: float = 5.0
    ) -> None:
        patience = min(spec.settings.retry_timeout_s, _TASK_RETRY_TIMEOUT_S) if runtime.is_shared else spec.settings.patience
        self.spec = replace(spec, settings=replace(spec.settings, patience=patience))
        self.shown, self.view, self.history, self.table_rates = shown, StatusCollector(), SampleHistory(), TableRates()
        self._runtime, self._build, self.retry_s = runtime, build, retry_s
        self._changed = threading.Condition()
        self._enabled, self._requested = enabled, RequestedState.RUN
        self.stage = PipeStage.STARTING if enabled else PipeStage.DISABLED
        self._seen = self.stage, time.time()
        self._pipe: Pipe | None = None
        self._is_sink_lost: Callable[[], bool] = lambda: False
        self.error: ErrorStatus | None = None
        self._errors: deque[ErrorStatus] = deque(maxlen=_MAX_RECENT_ERRORS)
        self._error_count = self._retries = self._failures_in_a_row = 0
        self._next_try = 0.0
        """By the monotonic clock: if the system clock is set back, the pipe must not wait longer."""
        self._done = self._stop_requested = False
        """Whether nothing is left to do; whether the current run was requested to stop."""
        self._forced_error: HeadraceError | None = None
        self._thread: threading.Thread | None = None
        self._predecessor: PipeRunner | None = None
        self.dead_letters = self.unreadable = self.skipped = self.relay_bytes = 0
        """`unreadable`: records in `headrace.errors`; the collector counts those in a dead-letter topic."""
        self._verify_files: tuple[object, ...] = ()
        """The files of the recorded comparisons when they were loaded."""
        if enabled and (spec.settings.state / _PAUSE_FILE).exists():
            self._requested, self.stage = RequestedState.PAUSE, PipeStage.PAUSED

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_enabled(self) -> bool:
        return self._enabled

    # -- control requests

    def start(self, predecessor: PipeRunner | None = None) -> None:
        """Start the thread, unless the pipe is disabled. The pipe runs when the predecessor, which has the same state, has ended."""
        self._predecessor = predecessor
        if self._enabled:
            self._thread = threading.Thread(target=self._run_loop, name=f"headrace-{self.name}", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        self.check_enabled()
        state = self.spec.settings.state
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_json(state / _PAUSE_FILE, {"since": time.time()})
        self._request(RequestedState.PAUSE)

    def stop(self) -> None:
        self.check_enabled()
        self._request(RequestedState.STOP)

    def resume(self) -> None:
        self.check_enabled()
        (self.spec.settings.state / _PAUSE_FILE).unlink(missing_ok=True)
        with self._changed:
            if self.stage is PipeStage.FAILED:
                self._failures_in_a_row = 0
            self._done, self._next_try = False, 0.0
        self._request(RequestedState.RUN)

    def end(self) -> None:
        """Stop after the current batch: the process ends."""
        self._request(RequestedState.END)

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
        elif self._predecessor is not None:
            self._predecessor.join(timeout_s)

    def end_run(self, error: HeadraceError) -> None:
        """Stop the current run and treat it as failed with this error."""
        with self._changed:
            pipe, self._forced_error = self._pipe, error
        if pipe is not None:
            pipe.stop()

    def add_error(self, error: HeadraceError) -> None:
        """Record an error from outside the run, such as a verification."""
        with self._changed:
            self._errors.appendleft(_error_status(error))
            self._error_count += 1

    # -- status

    @property
    def is_running(self) -> bool:
        return self._pipe is not None

    @property
    def is_over(self) -> bool:
        """Return whether nothing more happens without a control request."""
        with self._changed:
            if self.spec.settings.once and self.stage in (PipeStage.PAUSED, PipeStage.STOPPED):
                return True
            return self._done or self.stage in (PipeStage.FAILED, PipeStage.DISABLED)

    @property
    def has_failed(self) -> bool:
        return self.stage is PipeStage.FAILED

    def status(self) -> PipeStatus:
        with self._changed:
            pipe, stage, error = self._pipe, self.stage, self.error
            wait = pipe.waits.current() if pipe is not None else None
            errors, error_count, retries = tuple(self._errors), self._error_count, self._retries
            next_try = time.time() + self._next_try - time.monotonic() if stage is PipeStage.RETRYING else 0.0
        progress = self.view.progress()
        if stage is PipeStage.STARTING and pipe is not None:
            stage = progress.stage if wait is None else PipeStage.WAITING
        if stage in (PipeStage.SNAPSHOT, PipeStage.STREAMING):
            # It runs again: the last error no longer applies.
            error = None
        waiting, waiting_s = wait or ("", 0.0)
        return replace(
            progress,
            name=self.name,
            group=self.shown.group,
            source=self.shown.source,
            sink=self.shown.sink,
            stage=stage,
            since=self._seen_since(stage),
            errors=error_count,
            retries=retries,
            skipped=self.skipped,
            dead_letters=self.dead_letters,
            relay_bytes=self.relay_bytes,
            waiting=waiting,
            waiting_s=waiting_s,
            next_try=next_try,
            error=error,
            recent_errors=errors,
            unreadable=self.unreadable + progress.unreadable,
            tables=with_rates(progress.tables, self.table_rates.rates()),
        )

    def _seen_since(self, stage: PipeStage) -> float:
        with self._changed:
            if stage is not self._seen[0]:
                self._seen = stage, time.time()
            return self._seen[1]

    def sample(self) -> PipeStatus:
        """Add a sample to the history, and return the status that it was taken from."""
        skipped = skipped_by_table(self.spec.settings.state)
        self.skipped = skipped.total()
        self.view.set_skipped(skipped)
        self.load_verify_records()
        status = self.status()
        self.table_rates.add(time.time(), {table.name: TableCount(table.changes, table.copied or 0) for table in status.tables})
        self.history.add(MetricSample(time.time(), status.rate, status.lag_s, status.lag_bytes))
        return status

    def load_verify_records(self) -> None:
        """Show the recorded comparisons, also those of other processes. A damaged record is a warning: the pipe does not need it."""
        state = self.spec.settings.state
        with self._changed:
            files = record_files(state)
            if files == self._verify_files:
                return
            self._verify_files = files
            records: dict[str, VerifyRecord] = {}
            try:
                records = read_records(state)
            except (HeadraceError, OSError) as error:
                log.warning("%s: %s", self.name, error)
            self.view.set_recorded({name: VerifyResult.from_json(record.to_json()) for name, record in records.items()})

    def check_sink(self) -> None:
        """Stop the run if its embedded server has died; the next run starts another."""
        if self.is_running and self._is_sink_lost():
            self.end_run(TransientError("the embedded ClickHouse has ended", place=self.shown.sink, hint="it is started again"))

    # -- the thread

    def _run_loop(self) -> None:
        if self._predecessor is not None:
            self._predecessor.join()
            self._predecessor = None
        # Log lines between runs belong to this pipe, too.
        with use_wait_state(WaitState(pipe=self.name)):
            while self._wait_until_runnable():
                self._run_once()

    def _wait_until_runnable(self) -> bool:
        """Wait until the pipe should run; return False if the process ends."""
        with self._changed:
            while True:
                if self._requested is RequestedState.END:
                    if self.stage not in (PipeStage.FAILED, PipeStage.PAUSED):
                        self.stage = PipeStage.STOPPED
                    return False
                left_s = self._next_try - time.monotonic()
                if self._requested is RequestedState.RUN and not self._done and self.stage is not PipeStage.FAILED and left_s <= 0:
                    self.stage = PipeStage.STARTING
                    # Requests to the last run no longer apply, even if this run fails before it starts.
                    self._stop_requested, self._forced_error = False, None
                    return True
                if self._requested is RequestedState.PAUSE:
                    self.stage = PipeStage.PAUSED
                elif self._requested is RequestedState.STOP:
                    self.stage = PipeStage.STOPPED
                waits_for_retry = self._requested is RequestedState.RUN and self.stage is PipeStage.RETRYING
                self._changed.wait(min(left_s, 60.0) if waits_for_retry else None)

    def _run_once(self) -> None:
        self.view.begin_run()
        begun, error = time.monotonic(), None
        try:
            with self._build(self.spec, self.view, self._runtime) as ready:
                if not self._begin(ready):
                    return
                try:
                    ready.pipe.run()
                finally:
                    with self._changed:
                        self._pipe = None
        except HeadraceError as caught:
            error = caught
        # Last resort: an unexpected error ends this pipe only, and is logged with its traceback.
        except Exception as caught:  # noqa: BLE001
            error = _unexpected_error(caught, self.spec.settings.state)
        self._finish_run(error, time.monotonic() - begun)

    def _begin(self, ready: BuiltPipe) -> bool:
        with self._changed:
            if self._requested is not RequestedState.RUN:
                return False
            self._pipe, self._is_sink_lost, self._forced_error, self._stop_requested = ready.pipe, ready.is_lost, None, False
            return True

    def _finish_run(self, error: HeadraceError | None, lasted_s: float) -> None:
        with self._changed:
            if self._forced_error is not None:
                error, self._forced_error = self._forced_error, None
            if lasted_s >= STABLE_RUN_S:
                self._failures_in_a_row = 0
            if error is None:
                # A run that ends by itself has nothing left to do.
                self._done = not self._stop_requested
                self.error = None
                if self._done:
                    self.stage = PipeStage.STOPPED
            elif isinstance(error, TransientError) and self._stop_requested:
                # A run that is stopped while a peer is away ends with the peer's error.
                log.debug("ended while: %s", error)
            else:
                self._record_error(error)

    def _record_error(self, error: HeadraceError) -> None:
        error.hint = add_file_keys(error.hint)
        trouble = _error_status(error)
        self.error = trouble
        self._errors.appendleft(trouble)
        self._error_count += 1
        if not trouble.transient:
            self.stage = PipeStage.FAILED
            log.error("failed: %s", error)
            return
        wait_s = min(max(self.retry_s, _MIN_RETRY_WAIT_S) * math.pow(2, min(self._failures_in_a_row, 30)), MAX_RETRY_WAIT_S)
        self._failures_in_a_row += 1
        self._retries += 1
        self._next_try = time.monotonic() + wait_s
        self.stage = PipeStage.RETRYING
        log.warning("ended, and is started again in %.0f s: %s", wait_s, error)

    # -- state changes, under the lock

    def _request(self, requested: RequestedState) -> None:
        with self._changed:
            if self._requested is not RequestedState.END:
                self._requested = requested
            if requested is RequestedState.RUN and self.stage in (PipeStage.FAILED, PipeStage.STOPPED, PipeStage.PAUSED):
                self.stage = PipeStage.STARTING
            pipe = self._pipe
            self._stop_requested |= requested is not RequestedState.RUN
            if requested is not RequestedState.RUN and (pipe is not None or self.stage is PipeStage.STARTING):
                self.stage = PipeStage.STOPPING
            self._changed.notify_all()
        if pipe is not None and requested is not RequestedState.RUN:
            pipe.stop()

    def check_enabled(self) -> None:
        """Raise `DefiniteError` if the pipe is disabled."""
        if not self._enabled:
            raise DefiniteError(
                f"the pipe {self.name} is disabled",
                place=f"pipe {self.name}",
                hint="set enabled = true in the file, and run headrace reload",
            )


def _unexpected_error(error: Exception, state: Path) -> HeadraceError:
    if is_java_process_gone(error):
        return lost_process_error()
    short = shortage_of(error, state)
    if short is not None:
        return short
    log.exception("an unexpected error ended the pipe")
    return DefiniteError(f"{type(error).__name__}: {error}", hint="this is a defect of Headrace; please report it with the log")


def _error_status(error: HeadraceError) -> ErrorStatus:
    is_passing = isinstance(error, TransientError)
    return ErrorStatus(
        mask_secrets(error.message), mask_secrets(error.place), mask_secrets(error.hint), is_passing, time.time(), error.event
    )
