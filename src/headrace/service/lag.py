"""How far a pipe is behind, honestly: a pipe that stands still while its source goes on falls behind, whatever its last batch said.

Two things are known: of each batch, how old its newest change was when it became visible; and, asked every few seconds, where the source's
log ends. An end that was seen and is not reached yet has been waited for since it was seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

RECENT_S: Final = 10.0
"""For how long a batch says what the lag is."""
_MOST: Final = 1000


@dataclass(slots=True)
class Lag:
    """Of one pipe. Times are those of a clock that only goes on; all of it is given, none is asked for."""

    _batch_s: float | None = None
    _batch_at: float = 0.0
    _looked: bool = False
    _behind: int | None = None
    _unreached: deque[tuple[float, int]] = field(default_factory=deque)

    def arrived(self, lag_s: float, now: float) -> None:
        """A batch is visible, and its newest change is so old."""
        self._batch_s, self._batch_at = lag_s, now

    def looked(self, reached: int, end: int, behind: int | None, now: float) -> None:
        """The log ends at `end`, and the pipe has come to `reached`: numbers that rise with the log. `behind`: how much lies between."""
        self._looked, self._behind = True, behind
        if self._unreached and end < self._unreached[-1][1]:
            # Another log: another server's after a failover, or one that was begun anew. Ends of the old one are never reached.
            self._unreached.clear()
        while self._unreached and self._unreached[0][1] <= reached:
            self._unreached.popleft()
        if end > reached and (not self._unreached or self._unreached[-1][1] < end):
            # What was seen first counts for longest; of a very long wait the middle may go.
            if len(self._unreached) == _MOST:
                del self._unreached[_MOST // 2]
            self._unreached.append((now, end))

    @property
    def size(self) -> int | None:
        """What lies between the pipe and the end of the log, as of the last look."""
        return self._behind

    def seconds(self, now: float, *, flowing: bool) -> float | None:
        """`flowing`: whether the pipe runs and waits for nothing."""
        recent = self._batch_s if self._batch_s is not None and now - self._batch_at <= RECENT_S else None
        if self._unreached:
            return max(recent or 0.0, now - self._unreached[0][0])
        if recent is not None:
            return recent
        if self._looked:
            return 0.0
        if self._batch_s is None:
            return None
        return 0.0 if flowing else self._batch_s + now - self._batch_at
