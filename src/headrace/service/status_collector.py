"""Collects a running pipe's progress into its status, and logs it.

Counters are per process: they continue when a pipe restarts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.pipes.lifecycle.lag import Lag, Pending
from headrace.pipes.lifecycle.progress_view import LogView, ProgressView, Rate
from headrace.service.status import SchemaChangeStatus, TableStatus, VerifyResult

if TYPE_CHECKING:
    from headrace.runtime.reports import TableWrites

_MAX_SCHEMA_CHANGES: Final = 20
_LINE_EVERY_S: Final = 60.0
"""Many pipes share one log file, and the status has values for each second."""


@dataclass(slots=True)
class _SnapshotProgress:
    """A running snapshot."""

    begun: float
    rows: int = 0

    def eta_s(self, left: int) -> float | None:
        pace = self.rows / max(time.monotonic() - self.begun, 1e-3)
        return left / pace if pace > 0 else None


@dataclass(frozen=True, slots=True)
class PipeProgress:
    """A copy of the collected values."""

    position: str
    rate: float
    changes: int
    bytes: int
    batches: int
    eta_s: float | None
    copying: bool
    following: bool
    tables: tuple[TableStatus, ...]
    schema_changes: tuple[SchemaChangeStatus, ...]
    late_rows: int
    late_place: str
    unreadable: int
    """Records in the dead-letter topic."""
    filtered: int


@dataclass(slots=True)
class _State:
    tables: dict[str, TableStatus] = field(default_factory=dict)
    schema_changes: deque[SchemaChangeStatus] = field(default_factory=lambda: deque(maxlen=_MAX_SCHEMA_CHANGES))
    position: str = ""
    bytes: int = 0
    batches: int = 0
    copy: _SnapshotProgress | None = None
    following: bool = False
    late_rows: int = 0
    late_place: str = ""
    unreadable: int = 0
    filtered: int = 0


class StatusCollector(ProgressView):
    """Collects the progress of one pipe. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state, self._rate, self._lines = _State(), Rate(), LogView(_LINE_EVERY_S)
        self.lag = Lag()

    # -- called by the pipe

    def note(self, message: str) -> None:
        self._lines.note(message)

    def tables(self, targets: Mapping[str, str]) -> None:
        with self._lock:
            known = self._state.tables
            self._state.tables = {name: replace(known.get(name, TableStatus(name)), target=target) for name, target in targets.items()}

    def written(self, tables: Sequence[TableWrites]) -> None:
        with self._lock:
            for one in tables:
                known = self._table(one.table)
                newest = max(known.last_change, one.newest_us / 1e6)
                self._state.tables[one.table] = replace(known, changes=known.changes + one.changes, last_change=newest)
                self._state.bytes += one.bytes

    def schema_change(self, table: str, statement: str, outcome: str) -> None:
        with self._lock:
            self._state.schema_changes.appendleft(SchemaChangeStatus(time.time(), table, statement, outcome))

    def late_rows(self, rows: Mapping[str, int], place: str) -> None:
        with self._lock:
            self._state.late_rows, self._state.late_place = sum(rows.values()), place
            for table in self._changed_tables(rows, "late_rows"):
                self._state.tables[table.name] = replace(table, late_rows=rows.get(table.name, 0))

    def unreadable(self, records: int) -> None:
        self._state.unreadable = records

    def filtered(self, rows: Mapping[str, int]) -> None:
        with self._lock:
            self._state.filtered += sum(rows.values())
            for name, count in rows.items():
                known = self._table(name)
                self._state.tables[name] = replace(known, filtered=known.filtered + count)

    def snapshot_begins(self, estimates: Mapping[str, int], done: Mapping[str, int]) -> None:
        self._lines.snapshot_begins(estimates, done)
        if not estimates:
            return
        with self._lock:
            self._state.copy = _SnapshotProgress(time.monotonic())
            for name, estimate in estimates.items():
                copied = done.get(name, 0)
                known = replace(self._table(name), copied=copied, estimate=max(estimate, copied), complete=False)
                self._state.tables[name] = known

    def snapshot_rows(self, table: str, rows: int, finished: bool) -> None:
        self._lines.snapshot_rows(table, rows, finished)
        with self._lock:
            known = self._table(table)
            copied = (known.copied or 0) + rows
            estimate = copied if finished else max(known.estimate or 0, copied)
            self._state.tables[table] = replace(known, copied=copied, estimate=estimate, complete=finished)
            if self._state.copy is not None:
                self._state.copy.rows += rows

    def snapshot_ends(self, rows: int, seconds: float) -> None:
        self._lines.snapshot_ends(rows, seconds)
        with self._lock:
            self._state.copy = None
            self._state.tables = {name: replace(table, complete=True) for name, table in self._state.tables.items()}

    def pending(self, pending: Pending | None) -> None:
        with self._lock:
            self.lag.say(pending, time.time())

    def batch(self, changes: int, lag_s: float | None, position: str) -> None:
        self._lines.batch(changes, lag_s, position)
        with self._lock:
            self._rate.add(changes)
            self._state.position = position
            self._state.batches += 1
            self._state.following = True

    def waiting(self, wait: tuple[str, float] | None) -> None:
        del wait
        # Only the loop that reads the log calls this.
        self._state.following = True

    def close(self) -> None:
        """Stop the lag clock: the run has ended. The other values stay."""
        with self._lock:
            self.lag.stop()

    # -- called by the runner and the probes

    def begin_run(self) -> None:
        """Reset the values that belong to one run."""
        with self._lock:
            self._state.copy, self._state.following = None, False

    def add_past_schema_changes(self, changes: Sequence[SchemaChangeStatus]) -> None:
        """Append schema changes from before this process, newest first."""
        with self._lock:
            self._state.schema_changes.extend(changes[: _MAX_SCHEMA_CHANGES - len(self._state.schema_changes)])

    def rows(self, rows: Mapping[str, int]) -> None:
        """Set the row counts of target tables, by the source's table names."""
        with self._lock:
            for name, count in rows.items():
                if name in self._state.tables:
                    self._state.tables[name] = replace(self._state.tables[name], rows=count)

    def set_skipped(self, counts: Mapping[str, int]) -> None:
        """Set the number of skipped events, by the source's table names."""
        with self._lock:
            for table in self._changed_tables(counts, "skipped"):
                self._state.tables[table.name] = replace(table, skipped=counts.get(table.name, 0))

    def set_dead_letters(self, counts: Mapping[str, int]) -> None:
        """Set the number of waiting dead letters, by the source's table names."""
        with self._lock:
            for table in self._changed_tables(counts, "dead_letters"):
                self._state.tables[table.name] = replace(table, dead_letters=counts.get(table.name, 0))

    def set_verify_result(self, table: str, result: VerifyResult | None) -> None:
        with self._lock:
            self._state.tables[table] = replace(self._table(table), verify=result)

    def set_log_end(self, reached: int, end: int, behind: int | None) -> None:
        """Record that the source's log ends at `end` and that the pipe has reached `reached`."""
        with self._lock:
            self.lag.looked(reached, end, behind, time.time())

    # -- queries

    def progress(self) -> PipeProgress:
        with self._lock:
            state = self._state
            left = sum(max((table.estimate or 0) - (table.copied or 0), 0) for table in state.tables.values() if not table.complete)
            return PipeProgress(
                state.position,
                self._rate.now(),
                self._rate.total,
                state.bytes,
                state.batches,
                None if state.copy is None else state.copy.eta_s(left),
                state.copy is not None,
                state.following,
                tuple(state.tables.values()),
                tuple(state.schema_changes),
                state.late_rows,
                state.late_place,
                state.unreadable,
                state.filtered,
            )

    def lag_s(self) -> float | None:
        with self._lock:
            return self.lag.seconds(time.time())

    def knows_lag(self) -> bool:
        """Return whether the pipe itself reports pending changes."""
        with self._lock:
            return self.lag.is_known(time.time())

    def targets(self) -> dict[str, str]:
        """Return the table names in the sink, by their names in the source."""
        with self._lock:
            return {table.name: table.target for table in self._state.tables.values()}

    def _changed_tables(self, counts: Mapping[str, int], field_name: str) -> list[TableStatus]:
        """Return the tables whose value of a field differs from `counts`, in which a missing table means 0."""
        return [table for table in self._state.tables.values() if getattr(table, field_name) != counts.get(table.name, 0)]

    def _table(self, name: str) -> TableStatus:
        return self._state.tables.get(name) or TableStatus(name)
