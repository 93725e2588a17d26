"""One source's part of a pipe: a thread that runs it, starts it again, and does what it is asked.

    starting -> snapshot -> streaming <-> waiting          (the pipe runs)
    any of them -> retrying -> starting                    (a passing error; the wait doubles, up to five minutes)
    any of them -> failed                                  (an error that a person has to see to)
    any of them -> stopping -> paused | stopped            (asked for; `resume` starts it again)

Invariant: at most one run at a time, and whatever ends one, its thread stays and its error is kept. Nothing that happens here reaches
another part. A pause is written to the state directory before it is answered, so it outlives the process.
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

from headrace.config.key_hints import in_file_words
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.pipes.factory import BuiltPipe, PipeSpec
from headrace.pipes.lifecycle.base import Pipe
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.state.event_skips import skipped_events
from headrace.pipes.state.json_file import replace_json
from headrace.retry import WaitState, use_wait_state
from headrace.service.logging.formatters import masked
from headrace.service.samples import History
from headrace.service.status import PipeStage, PipeStatus, Sample, Trouble
from headrace.service.status_collector import Collected
from headrace.shortage import shortage_of
from headrace.spark.runtime.java_process import lost_process_error
from headrace.spark.runtime.micro_batch import is_java_process_gone
from headrace.spark.session.session_provider import SessionProvider

log = logging.getLogger("headrace")

Build = Callable[[PipeSpec, ProgressView], AbstractContextManager[BuiltPipe]]
MOST_WAIT_S: Final = 300.0
_LEAST_WAIT_S: Final = 0.05
GOOD_RUN_S: Final = 60.0
"""After a run of this length the next failure is a first one again."""
_TASK_PATIENCE_S: Final = 15.0
"""A task that waits for its sink holds one of the slots that all pipes share: it gives up soon, and the part waits instead."""
_ERRORS_KEPT: Final = 10
_PAUSED: Final = "paused.json"


class Wish(StrEnum):
    """What was asked for last."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"
    END = "end"
    """The process ends."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a part is called, for people."""

    group: str
    source: str
    sink: str


class Part:
    """Runs one `PipeSpec`. Safe for threads."""

    def __init__(
        self,
        spec: PipeSpec,
        shown: Addresses,
        spark: SessionProvider,
        build: Build,
        *,
        enabled: bool = True,
        retry_s: float = 5.0,
    ) -> None:
        patience_s = min(spec.settings.patience_s, _TASK_PATIENCE_S) if spark.is_shared else spec.settings.patience_s
        self.spec = replace(spec, settings=replace(spec.settings, patience_s=patience_s))
        self.shown, self.view, self.history = shown, Collected(), History()
        self._spark, self._build, self._retry_s = spark, build, retry_s
        self._changed = threading.Condition()
        self._enabled, self._wish = enabled, Wish.RUN
        self._stage = PipeStage.STARTING if enabled else PipeStage.DISABLED
        self._seen = self._stage, time.time()
        self._pipe: Pipe | None = None
        self._is_sink_lost: Callable[[], bool] = lambda: False
        self._error: Trouble | None = None
        self._errors: deque[Trouble] = deque(maxlen=_ERRORS_KEPT)
        self._error_count = self._retries = self._in_a_row = 0
        self._next_try = 0.0
        """By the monotonic clock: the system's clock may be set back, and the pipe must not wait until it has caught up."""
        self._done = self._was_asked = False
        """Whether there is nothing left to do; whether the run under way was asked to end."""
        self._why_ended: HeadraceError | None = None
        self._thread: threading.Thread | None = None
        self.dead_letters = self.skipped = self.relay_bytes = 0
        if enabled and (spec.settings.state / _PAUSED).exists():
            self._wish, self._stage = Wish.PAUSE, PipeStage.PAUSED

    @property
    def name(self) -> str:
        return self.spec.name

    # -- what is asked of it

    def start(self) -> None:
        """Begin, unless it is disabled."""
        if self._enabled:
            self._thread = threading.Thread(target=self._work, name=f"headrace-{self.name}", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        self.check_enabled()
        state = self.spec.settings.state
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_json(state / _PAUSED, {"since": time.time()})
        self._ask(Wish.PAUSE)

    def stop(self) -> None:
        self.check_enabled()
        self._ask(Wish.STOP)

    def resume(self) -> None:
        self.check_enabled()
        (self.spec.settings.state / _PAUSED).unlink(missing_ok=True)
        with self._changed:
            if self._stage is PipeStage.FAILED:
                self._in_a_row = 0
            self._done, self._next_try = False, 0.0
        self._ask(Wish.RUN)

    def end(self) -> None:
        """The process ends: finish the batch under way, and no more."""
        self._ask(Wish.END)

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def end_run(self, error: HeadraceError) -> None:
        """End the run under way as if it had failed by this."""
        with self._changed:
            pipe, self._why_ended = self._pipe, error
        if pipe is not None:
            pipe.stop()

    def fail(self, error: HeadraceError) -> None:
        """Note an error that something beside the run came to."""
        with self._changed:
            self._errors.appendleft(_trouble(error))
            self._error_count += 1

    # -- what is known of it

    @property
    def stage(self) -> PipeStage:
        return self._stage

    @property
    def is_running(self) -> bool:
        return self._pipe is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens unless somebody asks for it."""
        with self._changed:
            if self.spec.settings.once and self._stage in (PipeStage.PAUSED, PipeStage.STOPPED):
                return True
            return self._done or self._stage in (PipeStage.FAILED, PipeStage.DISABLED)

    @property
    def has_failed(self) -> bool:
        return self._stage is PipeStage.FAILED

    @property
    def error(self) -> Trouble | None:
        return self._error

    def status(self) -> PipeStatus:
        with self._changed:
            pipe, stage = self._pipe, self._stage
            wait = pipe.waits.current() if pipe is not None else None
            errors, counts = tuple(self._errors), (self._error_count, self._retries)
            next_try = time.time() + self._next_try - time.monotonic() if stage is PipeStage.RETRYING else 0.0
            error = self._error
        figures = self.view.figures()
        if stage is PipeStage.STARTING and pipe is not None:
            stage = _refined(figures.copying, figures.following, wait is not None)
        if stage in (PipeStage.SNAPSHOT, PipeStage.STREAMING):
            # What it ended by last is over.
            error = None
        since = self._seen_since(stage)
        return PipeStatus(
            self.name,
            self.shown.group,
            self.shown.source,
            self.shown.sink,
            stage,
            since,
            self.view.lag_s(),
            self.view.lag.size,
            figures.position,
            figures.rate,
            figures.changes,
            figures.bytes,
            figures.batches,
            *counts,
            self.skipped,
            self.dead_letters,
            self.relay_bytes,
            wait[0] if wait is not None else "",
            wait[1] if wait is not None else 0.0,
            next_try,
            error,
            errors,
            figures.eta_s,
            figures.tables,
            figures.schema_changes,
            figures.late_rows,
            figures.late_place,
        )

    def _seen_since(self, stage: PipeStage) -> float:
        with self._changed:
            if stage is not self._seen[0]:
                self._seen = stage, time.time()
            return self._seen[1]

    def sample(self) -> None:
        """Add a point to the history."""
        self.skipped = skipped_events(self.spec.settings.state)
        status = self.status()
        self.history.add(Sample(time.time(), status.rate, status.lag_s, status.lag_bytes))

    def look_after(self) -> None:
        """End a run whose sink is gone for good: the next one finds another."""
        if self.is_running and self._is_sink_lost():
            self.end_run(TransientError("the embedded ClickHouse has ended", place=self.shown.sink, hint="it is started again"))

    # -- the thread

    def _work(self) -> None:
        # Lines that are logged between runs are about this part, too.
        with use_wait_state(WaitState(pipe=self.name)):
            while self._await_turn():
                self._run_once()

    def _await_turn(self) -> bool:
        """Wait until there is something to run; False if the process ends."""
        with self._changed:
            while True:
                if self._wish is Wish.END:
                    if self._stage not in (PipeStage.FAILED, PipeStage.PAUSED):
                        self._enter(PipeStage.STOPPED)
                    return False
                left_s = self._next_try - time.monotonic()
                if self._wish is Wish.RUN and not self._done and self._stage is not PipeStage.FAILED and left_s <= 0:
                    self._enter(PipeStage.STARTING)
                    # Whatever the last run was asked is over, also if this one does not get as far as to begin.
                    self._was_asked, self._why_ended = False, None
                    return True
                if self._wish is Wish.PAUSE:
                    self._enter(PipeStage.PAUSED)
                elif self._wish is Wish.STOP:
                    self._enter(PipeStage.STOPPED)
                waits_for_retry = self._wish is Wish.RUN and self._stage is PipeStage.RETRYING
                self._changed.wait(min(left_s, 60.0) if waits_for_retry else None)

    def _run_once(self) -> None:
        self.view.begin_run()
        begun, error = time.monotonic(), None
        try:
            with self._build(self.spec, self.view) as ready:
                ready.pipe.spark = self._spark
                if not self._begin(ready):
                    return
                try:
                    ready.pipe.run()
                finally:
                    with self._changed:
                        self._pipe = None
        except HeadraceError as caught:
            error = caught
        # The part's last resort: an error that nobody foresaw ends this part, is told in full, and leaves the others alone.
        except Exception as caught:  # noqa: BLE001
            error = _unforeseen(caught, self.spec.settings.state)
        self._conclude(error, time.monotonic() - begun)

    def _begin(self, ready: BuiltPipe) -> bool:
        with self._changed:
            if self._wish is not Wish.RUN:
                return False
            self._pipe, self._is_sink_lost, self._why_ended, self._was_asked = ready.pipe, ready.is_lost, None, False
            return True

    def _conclude(self, error: HeadraceError | None, lasted_s: float) -> None:
        with self._changed:
            if self._why_ended is not None:
                error, self._why_ended = self._why_ended, None
            if lasted_s >= GOOD_RUN_S:
                self._in_a_row = 0
            if error is None:
                # What ends by itself has nothing left to do, unless it was asked to end.
                self._done = not self._was_asked
                self._error = None
                if self._done:
                    self._enter(PipeStage.STOPPED)
            elif isinstance(error, TransientError) and self._was_asked:
                # Whoever ends while something is away ends by that.
                log.debug("ended while: %s", error)
            else:
                self._note(error)

    def _note(self, error: HeadraceError) -> None:
        error.hint = in_file_words(error.hint)
        trouble = _trouble(error)
        self._error = trouble
        self._errors.appendleft(trouble)
        self._error_count += 1
        if not trouble.transient:
            self._enter(PipeStage.FAILED)
            log.error("failed: %s", error)
            return
        wait_s = min(max(self._retry_s, _LEAST_WAIT_S) * math.pow(2, min(self._in_a_row, 30)), MOST_WAIT_S)
        self._in_a_row += 1
        self._retries += 1
        self._next_try = time.monotonic() + wait_s
        self._enter(PipeStage.RETRYING)
        log.warning("ended, and is started again in %.0f s: %s", wait_s, error)

    # -- within the lock

    def _ask(self, wish: Wish) -> None:
        with self._changed:
            if self._wish is not Wish.END:
                self._wish = wish
            if wish is Wish.RUN and self._stage in (PipeStage.FAILED, PipeStage.STOPPED, PipeStage.PAUSED):
                self._enter(PipeStage.STARTING)
            pipe = self._pipe
            self._was_asked |= wish is not Wish.RUN
            if wish is not Wish.RUN and (pipe is not None or self._stage is PipeStage.STARTING):
                self._enter(PipeStage.STOPPING)
            self._changed.notify_all()
        if pipe is not None and wish is not Wish.RUN:
            pipe.stop()

    def _enter(self, stage: PipeStage) -> None:
        self._stage = stage

    def check_enabled(self) -> None:
        """Raise `DefiniteError` if it is not to run at all."""
        if not self._enabled:
            raise DefiniteError(
                f"the pipe {self.name} is disabled",
                place=f"pipe {self.name}",
                hint="set enabled = true in the file, and start headrace run again",
            )


def _refined(copying: bool, following: bool, waiting: bool) -> PipeStage:
    """What a running pipe does."""
    if waiting:
        return PipeStage.WAITING
    if copying:
        return PipeStage.SNAPSHOT
    return PipeStage.STREAMING if following else PipeStage.STARTING


def _unforeseen(error: Exception, state: Path) -> HeadraceError:
    if is_java_process_gone(error):
        return lost_process_error()
    short = shortage_of(error, state)
    if short is not None:
        return short
    log.exception("the pipe ended by an error that nobody foresaw")
    return DefiniteError(f"{type(error).__name__}: {error}", hint="this is a defect of Headrace; please report it with the log")


def _trouble(error: HeadraceError) -> Trouble:
    is_passing = isinstance(error, TransientError)
    return Trouble(masked(error.message), masked(error.place), masked(error.hint), is_passing, time.time(), error.event)
