"""Lag: the age of the oldest change that is committed at the source and not visible in the sink; 0 if there is none.

A running pipe reports since when a change has been pending. For a stopped pipe, the end of the source's log tells whether it falls behind.
The terminal, `headrace status`, the dashboard, the metrics and `headrace.lag` all show this figure. Times are seconds since 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

FRESH_S: Final = 2.0
"""A report of pending changes is valid for this long; a running pipe reports several times a second."""
_UNSEEN_S: Final = 15.0
"""An observed log end is valid for this long."""
_MOST: Final = 1000


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
    _behind: int | None = None
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
        before, self._looked_at, self._behind = self._looked_at, now, behind
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

    @property
    def size(self) -> int | None:
        """The distance between the pipe and the end of the log at the last observation."""
        return self._behind

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
