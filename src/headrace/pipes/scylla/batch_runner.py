"""Runs the batches of a pipe from ScyllaDB's CDC log on the driver.

Invariant: a batch is a window of each table's log. Spark's log holds its bounds before it is read, so a repeated batch reads the same
windows, and rows that are written twice merge to the same.

`headrace resync` empties a target and reads its table again, alongside the log. The stream is paused while the target is emptied. What it
has read of the log by then is in the base table, which is read at a later time. The request is removed last, so a crash repeats all of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from headrace.cql.address import CqlAddress
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import Pending
from headrace.pipes.scylla.late_rows import LateRowWatch
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes
from headrace.pipes.scylla.schema_follower import ScyllaSchemaFollower
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.scylla.snapshot_runner import ScyllaSnapshotRunner
from headrace.pipes.state.event_skips import EventSkips
from headrace.pipes.state.resync_requests import ResyncRequest, pending_requests
from headrace.retry import retrying
from headrace.runtime.checkpoint import committed_offset, offset_of
from headrace.runtime.interface import RunTask
from headrace.runtime.reports import Report, finished_splits
from headrace.runtime.tasks import Task
from headrace.sources.scylla.batch_assembler import is_passed
from headrace.sources.scylla.position import LogPosition
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_planner import write_feedback
from headrace.sources.scylla.window_reader import LogReader, TableLog, WindowsRead


@dataclass(frozen=True, slots=True)
class ScyllaResyncRunner:
    """Handles resync requests one at a time."""

    batches: LogBatchRunner

    @property
    def is_idle(self) -> bool:
        return not any(pending_requests(self.batches.context.directory))

    def poll(self, pause: Callable[[], AbstractContextManager[object]]) -> None:
        """Handle the next request, unless a snapshot is running. `pause` keeps the stream from starting a batch."""
        request = None if self.batches.snapshots.is_busy else next(pending_requests(self.batches.context.directory), None)
        if request is not None:
            with pause():
                self._take(request)

    def _take(self, request: ResyncRequest) -> None:
        batches, view, requested = self.batches, self.batches.context.view, Selection(request.tables)
        found = [note for name, note in batches.notes.tables.items() if requested(name)]
        for note in found:
            name = note.table.name
            batches.late.renew(name)
            note.snapshot += 1
            batches.notes.save()
            batches.snapshots.begin(note.table, batches.reached.places.get(name, note.start.place).time)
            store = batches.context.targets.sink.table_store()
            if store is not None:
                retrying(functools.partial(store.clear, note.table))
                view.note(f"{name} is emptied and copied again")
            else:
                view.note(f"{name} is copied again; rows that are gone at the source stay")
        if not found:
            view.note(f"nothing to copy again: the pipe has no table {requested}")
        request.forget()


_MAX_ROUNDS: Final = 5
"""How often a batch is read again because tables were altered while it was read."""
_EXPIRY_OVERLAP_S: Final = 600
"""How far back expired values are looked for again: a write that took long may store a value after it has expired."""


@dataclass(slots=True)
class LogBatchRunner:
    """Runs each batch on the driver, and knows the pipe's position."""

    context: PipeContext[LogTarget]
    address: CqlAddress
    choices: ScyllaOptions
    notes: ScyllaPipeNotes
    follower: ScyllaSchemaFollower
    snapshots: ScyllaSnapshotRunner
    reporter: ProgressReporter
    late: LateRowWatch
    skips: EventSkips = field(init=False)
    reached: LogPosition = field(init=False)
    _expired_s: int = field(default=0, init=False)
    """The sink's time up to which it has hidden expired values; 0: unknown."""

    def __post_init__(self) -> None:
        directory = self.context.directory
        committed = committed_offset(directory.checkpoint)
        self.reached = LogPosition.from_json(committed) if committed is not None else LogPosition()
        self.skips = EventSkips(directory.path)
        self.reporter.backlog = self.pending

    def pending(self) -> Pending | None:
        """Return everything after the time up to which the log is read as pending; the log does not tell whether there is anything."""
        return Pending(self.reached.reached / 1e6) if self.reached.reached else None

    def run(self, over: RunTask, number: int) -> None:
        """Write all of a batch to the sink."""
        self.skips.drop_passed(lambda place: is_passed(place, self.reached))
        end = LogPosition.from_json(offset_of(self.context.directory.checkpoint, number))
        self.late.read(self.reached, end)
        reports = self._read(over)
        results = [report.result_of(WindowsRead) for report in finished_splits(reports)]
        self.skips.record_skipped(found for result in results for found in result.skipped)
        self.late.done(self.reached, end, results)
        self._expire()
        self.reached = end
        rows: Counter[str] = Counter()
        for result in results:
            rows.update(result.rows)
        write_feedback(self.context.directory.path / "pace.json", self.reached, rows)
        self.reporter.batch_written(self.reached, reports, self.context.view)

    def _expire(self) -> None:
        """Hide values that have expired since the last batch; windows are read even if the log is idle."""
        since = max(self._expired_s - _EXPIRY_OVERLAP_S, 0)
        tables = [note.table for note in self.notes.tables.values()]
        sink, deadline_s = self.context.targets.sink, self.context.settings.retry_timeout_s
        self._expired_s = retrying(lambda: sink.expire(tables, since), deadline_s=deadline_s)

    def _read(self, over: RunTask) -> list[Report]:
        """Read the batch with the current schemas, again if they changed meanwhile."""
        for _ in range(_MAX_ROUNDS):
            self.follower.follow()
            try:
                return over(self.task())
            except DefiniteError:
                # A dropped column or table makes a query fail; then the schema was outdated.
                if not self.follower.follow(again=True):
                    raise
        return over(self.task())

    @property
    def resyncs(self) -> ScyllaResyncRunner:
        return ScyllaResyncRunner(self)

    def task(self) -> Task:
        """Return a task that reads the tables with their current schemas."""
        logs = {name: TableLog(note.table, note.start.ttl, self.late.known(note)) for name, note in self.notes.tables.items()}
        # A postimage shows the whole row, so no value needs a second read.
        begun = {} if self.context.targets.sink.stores_row_images else self.snapshots.progress.begun()
        reader = LogReader(self.address, logs, self.choices, begun, self.skips.pending)
        return Task(reader, self.context.targets.sink, functools.partial(retrying, deadline_s=self.context.settings.retry_timeout_s))
