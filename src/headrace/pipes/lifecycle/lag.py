"""Lag, defined once: the age of the oldest change that is committed at the source and not yet visible in the sink; 0 if there is none.

A running pipe says since when a change has been pending. While it does not run, the log's end at the source says whether it falls behind.
The terminal, `headrace status`, the dashboard, the metrics and `headrace.lag` all show this figure. Times are seconds since 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

FRESH_S: Final = 2.0
"""What a pipe says of pending changes holds for this long; a running pipe says it several times a second."""
_UNSEEN_S: Final = 15.0
"""A log end that was not looked at for this long may have moved."""
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Pending:
    """What a pipe knows of the changes that its sink does not show yet."""

    since: float | None
    """When the oldest of them was committed; None if there is none."""

    def lag_s(self, now: float) -> float:
        return 0.0 if self.since is None else max(now - self.since, 0.0)


Backlog = Callable[[], Pending | None]
"""Says what is pending now; None while that is not known, as before the source has answered."""


def lag_text(lag_s: float | None) -> str:
    return "lag unknown" if lag_s is None else f"lag {lag_s:.1f} s"


@dataclass(slots=True)
class Lag:
    """Of one pipe, running or not. All times are given, none is asked for."""

    _pending: Pending | None = None
    _pending_at: float = 0.0
    _running: bool = False
    _looked_at: float = 0.0
    _behind: int | None = None
    _unreached: deque[tuple[float, int]] = field(default_factory=deque)
    """Log ends that were seen and are not reached, with the time at which each came about."""

    def say(self, pending: Pending | None, now: float) -> None:
        """The running pipe says what is pending."""
        if pending is not None:
            self._pending, self._pending_at, self._running = pending, now, True
            while self._unreached and self._unreached[0][0] < self._visible_until:
                self._unreached.popleft()

    def stop(self) -> None:
        """The pipe has stopped: what it said last does not cover the changes that come now."""
        self._running = False

    def looked(self, reached: int, end: int, behind: int | None, now: float) -> None:
        """The source's log ends at `end`, and the pipe has come to `reached`: numbers that rise with the log.

        `behind` is how much lies between.
        """
        before, self._looked_at, self._behind = self._looked_at, now, behind
        if self._unreached and end < self._unreached[-1][1]:
            # Another server's log, or a log that was reset: ends of the old one are never reached.
            self._unreached.clear()
        while self._unreached and self._unreached[0][1] <= reached:
            self._unreached.popleft()
        if end > reached and (not self._unreached or self._unreached[-1][1] < end):
            # What was seen first counts for longest; of a very long wait the middle may go.
            if len(self._unreached) == _MOST:
                del self._unreached[_MOST // 2]
            # It was committed between two looks, and after all that is visible.
            before = max(before, self._visible_until)
            self._unreached.append(((before + now) / 2 if now - before <= _UNSEEN_S else now, end))

    @property
    def _visible_until(self) -> float:
        """Up to this time all changes are visible, as the pipe said last."""
        if self._pending is None:
            return 0.0
        return self._pending_at if self._pending.since is None else self._pending.since

    def is_known(self, now: float) -> bool:
        """Whether the pipe runs and says itself what is pending."""
        return self._running and self._pending is not None and now - self._pending_at <= FRESH_S

    @property
    def size(self) -> int | None:
        """What lies between the pipe and the end of the log, as of the last look."""
        return self._behind

    def seconds(self, now: float) -> float | None:
        """None if nothing is known yet."""
        if self._pending is not None and self.is_known(now):
            return self._pending.lag_s(now)
        # The pipe does not run, or does not follow the log: what was pending then still is.
        since = [] if self._pending is None or self._pending.since is None else [self._pending.since]
        since += [at for at, _ in self._unreached]
        if since:
            return max(now - min(since), 0.0)
        seen = max(self._looked_at, self._pending_at)
        if not seen:
            return None
        return 0.0 if now - seen <= _UNSEEN_S else now - seen
