"""What a pipe says while it runs, kept for whoever asks how it is; the log gets its lines beside that.

Counts are those of the process: a pipe that is started again goes on counting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.pipes.lifecycle.lag import Lag, Pending
from headrace.pipes.lifecycle.progress_view import LogView, ProgressView, Rate, Written
from headrace.service.status import SchemaChangeSeen, TableStatus, VerifyResult

_CHANGES_KEPT: Final = 20
_LINE_EVERY_S: Final = 60.0
"""Many pipes share a log; the status has the figures of each second."""


@dataclass(slots=True)
class _Copy:
    """A snapshot under way."""

    begun: float
    rows: int = 0

    def eta_s(self, left: int) -> float | None:
        pace = self.rows / max(time.monotonic() - self.begun, 1e-3)
        return left / pace if pace > 0 else None


@dataclass(frozen=True, slots=True)
class Figures:
    """All that a pipe told, at one moment."""

    position: str
    rate: float
    changes: int
    bytes: int
    batches: int
    eta_s: float | None
    copying: bool
    following: bool
    tables: tuple[TableStatus, ...]
    schema_changes: tuple[SchemaChangeSeen, ...]
    late_rows: int
    late_place: str


@dataclass(slots=True)
class _Told:
    tables: dict[str, TableStatus] = field(default_factory=dict)
    schema_changes: deque[SchemaChangeSeen] = field(default_factory=lambda: deque(maxlen=_CHANGES_KEPT))
    position: str = ""
    bytes: int = 0
    batches: int = 0
    copy: _Copy | None = None
    following: bool = False
    late_rows: int = 0
    late_place: str = ""


class Collected(ProgressView):
    """One pipe's. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told, self._rate, self._lines = _Told(), Rate(), LogView(_LINE_EVERY_S)
        self.lag = Lag()

    # -- what the pipe tells

    def note(self, message: str) -> None:
        self._lines.note(message)

    def tables(self, targets: Mapping[str, str]) -> None:
        with self._lock:
            known = self._told.tables
            self._told.tables = {name: replace(known.get(name, TableStatus(name)), target=target) for name, target in targets.items()}

    def written(self, tables: Sequence[Written]) -> None:
        with self._lock:
            for one in tables:
                known = self._table(one.table)
                newest = max(known.last_change, one.newest_us / 1e6)
                self._told.tables[one.table] = replace(known, changes=known.changes + one.changes, last_change=newest)
                self._told.bytes += one.bytes

    def schema_change(self, table: str, statement: str, outcome: str) -> None:
        with self._lock:
            self._told.schema_changes.appendleft(SchemaChangeSeen(time.time(), table, statement, outcome))

    def late_rows(self, rows: int, place: str) -> None:
        with self._lock:
            self._told.late_rows, self._told.late_place = rows, place

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:
        self._lines.snapshot_begins(estimates, done)
        if not estimates:
            return
        with self._lock:
            self._told.copy = _Copy(time.monotonic())
            for name, estimate in estimates.items():
                copied = done.get(name, 0)
                known = replace(self._table(name), copied=copied, estimate=max(estimate, copied), complete=False)
                self._told.tables[name] = known

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None:
        self._lines.snapshot_rows(table, rows, finished)
        with self._lock:
            known = self._table(table)
            copied = (known.copied or 0) + rows
            estimate = copied if finished else max(known.estimate or 0, copied)
            self._told.tables[table] = replace(known, copied=copied, estimate=estimate, complete=finished)
            if self._told.copy is not None:
                self._told.copy.rows += rows

    def snapshot_ends(self, rows: int, seconds: float) -> None:
        self._lines.snapshot_ends(rows, seconds)
        with self._lock:
            self._told.copy = None
            self._told.tables = {name: replace(table, complete=True) for name, table in self._told.tables.items()}

    def pending(self, pending: Pending | None) -> None:
        with self._lock:
            self.lag.say(pending, time.time())

    def batch(self, changes: int, lag_s: float | None, position: str) -> None:
        self._lines.batch(changes, lag_s, position)
        with self._lock:
            self._rate.add(changes)
            self._told.position = position
            self._told.batches += 1
            self._told.following = True

    def waiting(self, wait: tuple[str, float] | None) -> None:
        del wait
        # It is told from the loop that follows the log, and only there.
        self._told.following = True

    def close(self) -> None:
        """The run has ended; its figures stay."""
        with self._lock:
            self.lag.stop()

    # -- what others tell

    def begin_run(self) -> None:
        """Another run of the same pipe begins."""
        with self._lock:
            self._told.copy, self._told.following = None, False

    def remember(self, changes: Sequence[SchemaChangeSeen]) -> None:
        """Schema changes from before this process, newest first."""
        with self._lock:
            self._told.schema_changes.extend(changes[: _CHANGES_KEPT - len(self._told.schema_changes)])

    def rows(self, rows: Mapping[str, int]) -> None:
        """How many rows tables have in the sink, by the source's names."""
        with self._lock:
            for name, count in rows.items():
                if name in self._told.tables:
                    self._told.tables[name] = replace(self._told.tables[name], rows=count)

    def compared(self, table: str, result: VerifyResult | None) -> None:
        with self._lock:
            self._told.tables[table] = replace(self._table(table), verify=result)

    def looked(self, reached: int, end: int, behind: int | None) -> None:
        """The source's log ends at `end`, and the pipe has come to `reached`."""
        with self._lock:
            self.lag.looked(reached, end, behind, time.time())

    # -- what is asked

    def figures(self) -> Figures:
        with self._lock:
            told = self._told
            left = sum(max((table.estimate or 0) - (table.copied or 0), 0) for table in told.tables.values() if not table.complete)
            return Figures(
                told.position,
                self._rate.now(),
                self._rate.total,
                told.bytes,
                told.batches,
                None if told.copy is None else told.copy.eta_s(left),
                told.copy is not None,
                told.following,
                tuple(told.tables.values()),
                tuple(told.schema_changes),
                told.late_rows,
                told.late_place,
            )

    def lag_s(self) -> float | None:
        with self._lock:
            return self.lag.seconds(time.time())

    def knows_lag(self) -> bool:
        """Whether the pipe itself says what is pending."""
        with self._lock:
            return self.lag.is_known(time.time())

    def targets(self) -> dict[str, str]:
        """The tables' names in the sink, by the source's names."""
        with self._lock:
            return {table.name: table.target for table in self._told.tables.values()}

    def _table(self, name: str) -> TableStatus:
        return self._told.tables.get(name) or TableStatus(name)
