"""A pipe's lag, and the view of its progress: bars and a live line on a terminal, plain log lines elsewhere.

Lag is the age of the oldest change that is committed at the source and not visible in the sink; 0 if there is none. A running pipe reports
since when a change has been pending. For a stopped pipe, the end of the source's log tells whether it falls behind. The terminal, `headrace
status`, the dashboard, the metrics and `headrace.lag` all show this figure. Times are seconds since 1970.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from headrace.terminal_text import escape_text

if TYPE_CHECKING:
    from headrace.runtime.reports import TableWrites

FRESH_S: Final = 2.0
"""A report of pending changes is valid for this long; a running pipe reports several times a second."""
_UNSEEN_S: Final = 15.0
"""An observed log end is valid for this long."""
_MOST: Final = 1000

log = logging.getLogger("headrace")
_RATE_WINDOW_S = 3.0
LINE_EVERY_S = 5.0
_REFRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class Pending:
    """The changes that the sink does not show yet."""

    since: float | None
    """When the oldest of them was committed; None if there is none."""

    def lag_s(self, now: float) -> float:
        return 0.0 if self.since is None else max(now - self.since, 0.0)


Backlog = Callable[[], Pending | None]
"""Returns the pending changes; None while they are unknown, for example before the source has answered."""


def lag_text(lag_s: float | None) -> str:
    return "lag unknown" if lag_s is None else f"lag {lag_s:.1f} s"


@dataclass(slots=True)
class Lag:
    """Tracks one pipe, running or not. The caller passes all times."""

    _pending: Pending | None = None
    _pending_at: float = 0.0
    _running: bool = False
    _looked_at: float = 0.0
    size: int | None = None
    """The distance between the pipe and the end of the log at the last observation."""
    _unreached: deque[tuple[float, int]] = field(default_factory=deque)
    """Observed log ends that are not reached, with the time of each."""

    def say(self, pending: Pending | None, now: float) -> None:
        """Record the running pipe's report."""
        if pending is not None:
            self._pending, self._pending_at, self._running = pending, now, True
            while self._unreached and self._unreached[0][0] < self._visible_until:
                self._unreached.popleft()

    def stop(self) -> None:
        """Record that the pipe has stopped: its last report does not cover later changes."""
        self._running = False

    def looked(self, reached: int, end: int, behind: int | None, now: float) -> None:
        """Record the end of the source's log and the pipe's position, as numbers that rise with the log.

        `behind` is the distance between them.
        """
        before, self._looked_at, self.size = self._looked_at, now, behind
        if self._unreached and end < self._unreached[-1][1]:
            # This is another server's log, or the log was reset: ends of the old log are never reached.
            self._unreached.clear()
        while self._unreached and self._unreached[0][1] <= reached:
            self._unreached.popleft()
        if end > reached and (not self._unreached or self._unreached[-1][1] < end):
            # The first observation matters most; after a long wait the middle ones may be dropped.
            if len(self._unreached) == _MOST:
                del self._unreached[_MOST // 2]
            # It was committed between two observations, after everything that is visible.
            before = max(before, self._visible_until)
            self._unreached.append(((before + now) / 2 if now - before <= _UNSEEN_S else now, end))

    @property
    def _visible_until(self) -> float:
        """All changes up to this time are visible, by the pipe's last report."""
        if self._pending is None:
            return 0.0
        return self._pending_at if self._pending.since is None else self._pending.since

    def is_known(self, now: float) -> bool:
        """Whether the pipe runs and reports pending changes itself."""
        return self._running and self._pending is not None and now - self._pending_at <= FRESH_S

    def seconds(self, now: float) -> float | None:
        """Return the lag, or None if it is unknown."""
        if self._pending is not None and self.is_known(now):
            return self._pending.lag_s(now)
        # The pipe does not run or does not stream: what was pending still is.
        since = [] if self._pending is None or self._pending.since is None else [self._pending.since]
        since += [at for at, _ in self._unreached]
        if since:
            return max(now - min(since), 0.0)
        seen = max(self._looked_at, self._pending_at)
        if not seen:
            return None
        return 0.0 if now - seen <= _UNSEEN_S else now - seen


class ProgressView(Protocol):
    """Receives a pipe's progress. Optional methods do nothing by default."""

    def note(self, message: str) -> None: ...

    def tables(self, targets: Mapping[str, str]) -> None:  # noqa: ARG002
        """The pipe's tables with their names in the sink; called at the start and when they change."""
        return

    def written(self, tables: Sequence[TableWrites]) -> None:  # noqa: ARG002
        """What a batch wrote; called before `batch`."""
        return

    def schema_change(self, table: str, statement: str, outcome: str) -> None:  # noqa: ARG002
        """A statement changed a table of the source, with this outcome in the sink."""
        return

    def failover(self, message: str) -> None:  # noqa: ARG002
        """The pipe continues on another server of the source, or in a new log of it."""
        return

    def late_rows(self, rows: Mapping[str, int], place: str) -> None:  # noqa: ARG002
        """The number of log rows of each table that arrived too late to be read, and the position of the first."""
        return

    def unreadable(self, records: int) -> None:  # noqa: ARG002
        """The number of unreadable records that the pipe has sent to its dead-letter topic, in all runs."""
        return

    def filtered(self, rows: Mapping[str, int]) -> None:  # noqa: ARG002
        """How many more changes or snapshot rows of each table its filter has excluded."""
        return

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:
        """Expected rows per table, and rows that earlier runs have read."""

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None: ...

    def snapshot_ends(self, rows: int, seconds: float) -> None: ...

    def batch(self, changes: int, lag_s: float | None, position: str) -> None:
        """A batch is visible in the sink. `lag_s` is the lag after it, None if unknown."""

    def pending(self, pending: Pending | None) -> None:  # noqa: ARG002
        """The changes that the sink does not show yet; called several times a second while streaming."""
        return

    def waiting(self, wait: tuple[str, float] | None) -> None:
        """What the pipe waits for, and for how many seconds; called often."""

    def close(self) -> None: ...


def choose_view() -> ProgressView:
    return TerminalView() if sys.stderr.isatty() else LogView()


class Rate:
    """Changes per second over the last few seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def add(self, changes: int) -> float:
        self.total += changes
        return self.now()

    def now(self) -> float:
        now = time.monotonic()
        self._samples.append((now, self.total))
        while len(self._samples) > 2 and self._samples[0][0] < now - _RATE_WINDOW_S:
            self._samples.pop(0)
        then, before = self._samples[0]
        return (self.total - before) / max(now - then, 1e-3)


class LogView(ProgressView):
    """Plain log lines; at most one for the stream per interval, while changes arrive."""

    def __init__(self, every_s: float = LINE_EVERY_S) -> None:
        self._rate, self._every_s = Rate(), every_s
        self._last_line = -math.inf

    def note(self, message: str) -> None:
        log.info(message)

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:
        if estimates:
            log.info("snapshot: %d tables, about %d rows, %d there already", len(estimates), sum(estimates.values()), sum(done.values()))

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None:
        log.info("snapshot: %s %d rows%s", table, rows, ", table complete" if finished else "")

    def snapshot_ends(self, rows: int, seconds: float) -> None:
        log.info("snapshot: complete, %d rows in %.1f s (%d rows/s)", rows, seconds, rows / max(seconds, 1e-3))

    def batch(self, changes: int, lag_s: float | None, position: str) -> None:
        rate = self._rate.add(changes)
        now = time.monotonic()
        if now - self._last_line >= self._every_s:
            self._last_line = now
            log.info("stream: %d changes, %.0f/s, %s, at %s", self._rate.total, rate, lag_text(lag_s), position)

    def waiting(self, wait: tuple[str, float] | None) -> None:
        """Do nothing: the log has a line for every retry."""

    def close(self) -> None:
        log.info("stream: ended after %d changes", self._rate.total)


def start_bars(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console)
    bars.start()
    return bars


class TerminalView(ProgressView):
    """A bar per table during the snapshot, then one line that is rewritten."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._line: Live | None = None
        self._rate = Rate()
        self._summary, self._waiting_for, self._waited = "", "", False
        self._lag_s: float | None = None
        self._position, self._shown_at = "", -math.inf

    def note(self, message: str) -> None:
        self._console.print(Text(escape_text(message)))

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:
        if not estimates:
            return
        if self._line is not None:
            # A terminal has one live display at a time.
            self._line.stop()
            self._line = None
        self._bars = start_bars(self._console)
        for table, rows in estimates.items():
            self._tasks[table] = self._bars.add_task(escape_text(table), total=max(rows, 1), completed=done.get(table, 0))

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None:
        if self._bars is None:
            return
        task = self._tasks[table]
        self._bars.advance(task, rows)
        if finished:
            # The server's estimate is replaced by the exact count.
            completed = max(int(next(t.completed for t in self._bars.tasks if t.id == task)), 1)
            self._bars.update(task, total=completed, completed=completed)

    def snapshot_ends(self, rows: int, seconds: float) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        self.note(f"snapshot complete: {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 1e-3):,.0f} rows/s)")

    def batch(self, changes: int, lag_s: float | None, position: str) -> None:
        self._rate.add(changes)
        self._lag_s, self._position = lag_s, position
        self._refresh()

    def pending(self, pending: Pending | None) -> None:
        if self._position and time.monotonic() - self._shown_at >= _REFRESH_S:
            self._lag_s = None if pending is None else pending.lag_s(time.time())
            self._refresh()

    def _refresh(self) -> None:
        if self._bars is not None:
            return
        self._summary = f"{self._rate.total:,} changes · {self._rate.now():,.0f}/s · {lag_text(self._lag_s)} · {self._position}"
        self._show(self._summary + self._waiting_for)

    def waiting(self, wait: tuple[str, float] | None) -> None:
        if self._bars is not None or (wait is None and not self._waited):
            return
        self._waited = wait is not None
        self._waiting_for = "" if wait is None else f"{' · ' if self._summary else ''}waiting for {wait[1]:.0f} s: {wait[0]}"
        self._show(self._summary + self._waiting_for)

    def _show(self, line: str) -> None:
        if self._line is None:
            self._line = Live(console=self._console, refresh_per_second=4)
            self._line.start()
        self._line.update(Text(escape_text(line)))
        self._shown_at = time.monotonic()

    def close(self) -> None:
        for part in (self._bars, self._line):
            if part is not None:
                part.stop()
