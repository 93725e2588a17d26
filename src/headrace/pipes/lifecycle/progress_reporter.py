"""Reports a running pipe's progress to the sink.

After every batch, before it counts, the reporter stores the position up to which the sink's data is complete. Between batches it sends
heartbeats. A batch that is repeated after a crash is reported again and counted once: its end is not above the stored position.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from headrace.errors import TransientError
from headrace.pipes.lifecycle.progress_view import Backlog, ProgressView
from headrace.pipes.state.seal import StateSeal
from headrace.retry import bind_context, current_wait, retrying
from headrace.runtime.reports import Report, filtered_rows, written_tables
from headrace.sinks.base import Progress, ProgressStore

log = logging.getLogger("headrace")

BEAT_S = 10.0
_LOOK_S = 0.25
_NOTICED_US = 500_000
"""The reporter stores a pending change that is older than this, and the end of such a state."""
_NAMESAKE_S = 60.0


class SourcePosition(Protocol):
    """A position of any source."""

    @property
    def version(self) -> int:
        """Rises with the position."""

    @property
    def gtid(self) -> str: ...


class HasProgressStore(Protocol):
    """Provides the progress store, which may change between calls."""

    @property
    def progress_store(self) -> ProgressStore: ...


class ProgressReporter:
    """Reports one pipe's progress; safe for threads."""

    def __init__(
        self, targets: HasProgressStore, pipe: str, source: str, incomplete: Callable[[], tuple[str, ...]], seal: StateSeal | None = None
    ) -> None:
        """`seal`: the state's seal, which records whether progress was stored."""
        self._targets, self._pipe, self._source, self._incomplete, self._seal = targets, pipe, source, incomplete, seal
        self.backlog: Backlog = lambda: None
        self._lock = threading.Lock()
        self._stopped = False
        """Whether the stream has ended or is about to end. Its last batch may still be written."""
        self._stored = Progress(pipe, source, "", 0, 0, 0, 0, 0, 0)
        self._stored_at = -math.inf
        """When that was, by the monotonic clock: heartbeats continue if the system clock is set back."""

    def begin(self, position: SourcePosition, *, is_new: bool) -> None:
        """Create the table; continue the counts of an earlier run of the same pipe."""
        store = self._targets.progress_store
        retrying(store.begin)
        known = retrying(lambda: store.progress(self._pipe))
        if known is not None and is_new:
            self._warn_of_namesake(known)
        with self._lock:
            if known is not None and not is_new:
                self._stored = replace(known, source=self._source)
            else:
                self._stored = replace(self._stored, updated_us=_now_us())
            self._stored = _advance(self._stored, position)

    def snapshot_rows(self, position: SourcePosition, rows: int) -> None:
        self._store(position, rows, 0, counted=rows)

    def batch(self, position: SourcePosition, changes: int, newest_us: int) -> None:
        """Report a batch: all changes before the position are in the sink."""
        is_new = position.version > self._stored.version
        self._store(position, changes, newest_us, counted=changes if is_new else 0)

    def batch_written(self, position: SourcePosition, reports: Iterable[Report], view: ProgressView, shown: str = "") -> None:
        """Report a batch to the sink and to the view, which shows the position as `shown`."""
        written = written_tables(reports)
        changes = sum(one.changes for one in written)
        self.batch(position, changes, max((one.newest_us for one in written), default=0))
        current_wait().clear()
        view.written(written)
        view.filtered(filtered_rows(written))
        pending = self.backlog()
        view.pending(pending)
        view.batch(changes, None if pending is None else pending.lag_s(time.time()), shown or str(position))

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        ended, self._stopped = threading.Event(), False
        thread = threading.Thread(target=bind_context(self._send_heartbeats), args=(ended,), name="headrace-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            # Nothing reports pending changes from now on. The sink is as old as this moment, or as the oldest pending change.
            self._stopped = True
            self._store_again()

    def _send_heartbeats(self, ended: threading.Event) -> None:
        while not ended.wait(min(BEAT_S / 2, _LOOK_S)):
            if time.monotonic() - self._stored_at >= BEAT_S or self._is_stored_lag_wrong(_now_us()):
                self._store_again()

    def _is_stored_lag_wrong(self, now_us: int) -> bool:
        pending_us, told_us = self._pending_us(), self._stored.pending_us
        if not pending_us or not told_us:
            return bool(told_us) or 0 < pending_us < now_us - _NOTICED_US
        return pending_us - told_us > _NOTICED_US

    def _pending_us(self) -> int:
        pending = self.backlog()
        return 0 if pending is None or pending.since is None else round(pending.since * 1e6)

    def _store_again(self) -> None:
        """Store the last progress again, with the tables that are incomplete and the changes that are pending now."""
        with self._lock:
            if not self._stored.position:
                return
            try:
                self._write(replace(self._stored, seen_us=_now_us()))
            except TransientError as error:
                # A missing heartbeat is the signal; the writer that waits for the sink reports the error.
                log.debug("the sink did not record that the pipe runs: %s", error.message)

    def _store(self, position: SourcePosition, rows: int, newest_us: int, *, counted: int) -> None:
        with self._lock:
            now_us = _now_us()
            progress = replace(
                _advance(self._stored, position),
                commit_us=max(newest_us, self._stored.commit_us),
                rows=rows,
                total_rows=self._stored.total_rows + counted,
                updated_us=now_us,
                seen_us=now_us,
            )
            retrying(lambda: self._write(progress))

    def _write(self, progress: Progress) -> None:
        pending_us = self._pending_us() or (progress.seen_us if self._stopped else 0)
        state = self._seal.state if self._seal is not None else ""
        complete = replace(progress, incomplete=self._incomplete(), pending_us=pending_us, state=state)
        self._targets.progress_store.report(complete)
        self._stored, self._stored_at = complete, time.monotonic()
        if self._seal is not None:
            self._seal.note_progress_name(self._pipe)

    def _warn_of_namesake(self, known: Progress) -> None:
        silent_s = time.time() - known.seen_us / 1e6
        if silent_s < _NAMESAKE_S:
            log.warning(
                "a pipe named %s, from %s, was running %.0f s ago and tells its progress to the same sink; give each pipe a --name",
                self._pipe,
                known.source,
                silent_s,
            )


def _advance(reported: Progress, position: SourcePosition) -> Progress:
    """Return the progress at a position. A later stored position stays: it is ahead of the checkpoint, and true."""
    if position.version < reported.version:
        return reported
    return replace(reported, position=str(position), gtid=position.gtid, version=position.version)


def _now_us() -> int:
    return time.time_ns() // 1000
