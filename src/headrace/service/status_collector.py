"""Collects a running pipe's progress into its status, and logs it; merges the statuses of a pipe's sources.

Counters are per process: they continue when a pipe restarts.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.pipes.lifecycle.progress_view import Lag, LogView, Pending, ProgressView, Rate
from headrace.service.log_formats import mask_secrets
from headrace.service.status import MetricSample, PipeStage, PipeStatus, SchemaChangeStatus, TableStatus, VerifyResult
from headrace.telemetry.event import EventKind, PipeEvent, draft_event
from headrace.telemetry.table_rates import TableRate

if TYPE_CHECKING:
    from headrace.runtime.reports import TableWrites

SAMPLES: Final = 3600
_FIELDS: Final = np.dtype([("at", "f8"), ("rate", "f4"), ("lag_s", "f4"), ("lag_bytes", "f8")])


class SampleHistory:
    """A ring buffer of samples. Thread-safe."""

    def __init__(self, size: int = SAMPLES) -> None:
        self._ring = np.zeros(size, _FIELDS)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, sample: MetricSample) -> None:
        with self._lock:
            self._ring[self._count % len(self._ring)] = (sample.at, sample.rate, _number(sample.lag_s), _number(sample.lag_bytes))
            self._count += 1

    def samples(self) -> list[MetricSample]:
        """Return the samples, oldest first."""
        with self._lock:
            kept = min(self._count, len(self._ring))
            found = np.roll(self._ring, -self._count)[-kept:] if kept else self._ring[:0]
        return [
            MetricSample(at, rate, None if math.isnan(lag_s) else lag_s, None if math.isnan(lag_bytes) else int(lag_bytes))
            for at, rate, lag_s, lag_bytes in found.tolist()
        ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


_MAX_SCHEMA_CHANGES: Final = 20
_MAX_MILESTONES: Final = 100
_LINE_EVERY_S: Final = 60.0
"""Many pipes share one log file, and the status has values for each second."""


@dataclass(slots=True)
class _SnapshotProgress:
    begun: float
    rows: int = 0

    def eta_s(self, left: int) -> float | None:
        pace = self.rows / max(time.monotonic() - self.begun, 1e-3)
        return left / pace if pace > 0 else None


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
    """Records in the dead-letter topic."""
    filtered: int = 0


class StatusCollector(ProgressView):
    """Collects the progress of one pipe. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state, self._rate, self._copied, self._lines = _State(), Rate(), Rate(), LogView(_LINE_EVERY_S)
        self._recorded: Mapping[str, VerifyResult] = {}
        self._milestones: deque[PipeEvent] = deque(maxlen=_MAX_MILESTONES)
        self._has_past_changes = False
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

    def failover(self, message: str) -> None:
        self._reached(EventKind.FAILOVER, message)

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
        there = f", {sum(done.values()):,} there already" if any(done.values()) else ""
        count = "1 table" if len(estimates) == 1 else f"{len(estimates):,} tables"
        self._reached(EventKind.SNAPSHOT_STARTED, f"snapshot of {count}, about {sum(estimates.values()):,} rows{there}")
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
            self._copied.add(rows)
            if self._state.copy is not None:
                self._state.copy.rows += rows

    def snapshot_ends(self, rows: int, seconds: float) -> None:
        self._lines.snapshot_ends(rows, seconds)
        if self._state.copy is not None:
            pace = rows / max(seconds, 1e-3)
            self._reached(EventKind.SNAPSHOT_FINISHED, f"snapshot complete: {rows:,} rows in {seconds:.1f} s ({pace:,.0f} rows/s)")
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
        self._reached(EventKind.STARTED, "starts")
        with self._lock:
            self._state.copy, self._state.following = None, False

    def add_past_schema_changes(self, changes: Sequence[SchemaChangeStatus]) -> None:
        """Append schema changes from before this process, newest first; later calls change nothing."""
        with self._lock:
            if self._has_past_changes:
                return
            self._has_past_changes = True
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

    def set_recorded(self, results: Mapping[str, VerifyResult]) -> None:
        """Set the last recorded comparisons, by the source's table names."""
        with self._lock:
            self._recorded = dict(results)

    def set_verify_result(self, table: str, result: VerifyResult, *, recorded: bool = False) -> None:
        """Set the state of a comparison in this process. `recorded`: it has ended, and `set_recorded` has set its result."""
        with self._lock:
            self._state.tables[table] = replace(self._table(table), verify=None if recorded else result)

    def set_log_end(self, reached: int, end: int, behind: int | None) -> None:
        """Record that the source's log ends at `end` and that the pipe has reached `reached`."""
        with self._lock:
            self.lag.looked(reached, end, behind, time.time())

    # -- queries

    def progress(self) -> PipeStatus:
        """Return the part of the status that the pipe itself reports; without name, source, sink and errors."""
        with self._lock:
            state = self._state
            left = sum(max((table.estimate or 0) - (table.copied or 0), 0) for table in state.tables.values() if not table.complete)
            running = PipeStage.STREAMING if state.following else PipeStage.STARTING
            return PipeStatus(
                *("", "", "", ""),
                running if state.copy is None else PipeStage.SNAPSHOT,
                0.0,
                self.lag.seconds(time.time()),
                self.lag.size,
                state.position,
                self._rate.now(),
                self._rate.total,
                state.bytes,
                state.batches,
                eta_s=None if state.copy is None else state.copy.eta_s(left),
                tables=tuple(map(self._with_recorded, state.tables.values())),
                schema_changes=tuple(state.schema_changes),
                late_rows=state.late_rows,
                late_place=state.late_place,
                unreadable=state.unreadable,
                filtered=state.filtered,
                snapshot_rate=self._copied.now(),
            )

    def knows_lag(self) -> bool:
        """Return whether the pipe itself reports pending changes."""
        with self._lock:
            return self.lag.is_known(time.time())

    def take_milestones(self) -> list[PipeEvent]:
        """Return the events that the pipe reported since the last call; without its name."""
        return [self._milestones.popleft() for _ in range(len(self._milestones))]

    def _reached(self, kind: EventKind, text: str) -> None:
        self._milestones.append(draft_event(time.time(), "", kind, mask_secrets(text)))

    def targets(self) -> dict[str, str]:
        """Return the table names in the sink, by their names in the source."""
        with self._lock:
            return {table.name: table.target for table in self._state.tables.values()}

    def _changed_tables(self, counts: Mapping[str, int], field_name: str) -> list[TableStatus]:
        """Return the tables whose value of a field differs from `counts`, in which a missing table means 0."""
        return [table for table in self._state.tables.values() if getattr(table, field_name) != counts.get(table.name, 0)]

    def _with_recorded(self, table: TableStatus) -> TableStatus:
        """Return the table with its last comparison: the one that runs now, or else the newest."""
        recorded, here = self._recorded.get(table.name), table.verify
        if recorded is None or (here is not None and (here.verdict == "running" or here.at >= recorded.at)):
            return table
        return replace(table, verify=recorded)

    def _table(self, name: str) -> TableStatus:
        return self._state.tables.get(name) or TableStatus(name)


def with_rates(tables: tuple[TableStatus, ...], rates: Mapping[str, TableRate]) -> tuple[TableStatus, ...]:
    """Return the tables with their rates; tables without a rate are at rest."""
    if not rates:
        return tables
    return tuple(
        table if (rate := rates.get(table.name)) is None else replace(table, rate=rate.changes, snapshot_rate=rate.copied)
        for table in tables
    )


_SUMMED: Final = (
    *("rate", "changes", "bytes", "batches", "errors", "retries", "skipped", "dead_letters", "relay_bytes"),
    *("late_rows", "unreadable", "filtered", "snapshot_rate"),
)
_WORST_FIRST: Final = (
    PipeStage.FAILED,
    PipeStage.RETRYING,
    PipeStage.WAITING,
    PipeStage.STOPPING,
    PipeStage.STARTING,
    PipeStage.SNAPSHOT,
    PipeStage.PAUSED,
    PipeStage.STOPPED,
    PipeStage.STREAMING,
    PipeStage.DISABLED,
)


def merge_status(name: str, parts: Sequence[PipeStatus]) -> PipeStatus:
    """Return the pipe's status: the most urgent stage, sums of the counters, and the largest lag."""
    if len(parts) == 1:
        return parts[0]
    first = min(parts, key=lambda part: _WORST_FIRST.index(part.stage))
    lags = [part.lag_s for part in parts if part.lag_s is not None]
    sizes = [part.lag_bytes for part in parts if part.lag_bytes is not None]
    etas = [part.eta_s for part in parts if part.eta_s is not None]
    recent = sorted((error for part in parts for error in part.recent_errors), key=lambda error: error.at, reverse=True)
    changed = sorted((change for part in parts for change in part.schema_changes), key=lambda change: change.at, reverse=True)
    sums: dict[str, Any] = {counter: sum(getattr(part, counter) for part in parts) for counter in _SUMMED}
    return replace(
        first,
        name=name,
        source=", ".join(part.source for part in parts),
        lag_s=max(lags, default=None),
        lag_bytes=sum(sizes) if sizes else None,
        position=", ".join(part.position for part in parts if part.position),
        recent_errors=tuple(recent[:10]),
        eta_s=max(etas, default=None),
        tables=tuple(table for part in parts for table in part.tables),
        schema_changes=tuple(changed[:20]),
        late_place=next((part.late_place for part in parts if part.late_place), ""),
        **sums,
    )


def merge_history(parts: Sequence[Sequence[MetricSample]]) -> list[MetricSample]:
    """Merge samples of the same second, oldest first."""
    if len(parts) == 1:
        return list(parts[0])
    seconds: dict[int, list[MetricSample]] = {}
    for samples in parts:
        for sample in samples:
            seconds.setdefault(round(sample.at), []).append(sample)
    return [_merge_samples(found) for _, found in sorted(seconds.items())]


def _merge_samples(samples: Sequence[MetricSample]) -> MetricSample:
    lags = [one.lag_s for one in samples if one.lag_s is not None]
    sizes = [one.lag_bytes for one in samples if one.lag_bytes is not None]
    return MetricSample(samples[0].at, sum(one.rate for one in samples), max(lags, default=None), sum(sizes) if sizes else None)
