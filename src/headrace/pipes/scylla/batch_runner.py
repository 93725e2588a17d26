"""Runs the batches of a pipe from ScyllaDB's CDC log on the driver.

Invariant: a batch is a window of each table's log. Spark's log holds its bounds before it is read, so a repeated batch reads the same
windows, and rows that are written twice merge to the same.
"""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.cql.address import CqlAddress
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.lag import Pending
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter, sum_written
from headrace.pipes.scylla.late_rows import LateRowWatch
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes
from headrace.pipes.scylla.resync_runner import ScyllaResyncRunner
from headrace.pipes.scylla.schema_follower import ScyllaSchemaFollower
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.scylla.snapshot_runner import ScyllaSnapshotRunner
from headrace.pipes.state.event_skips import EventSkips
from headrace.retry import current_wait, retrying
from headrace.runtime.checkpoint import committed_offset, offset_of
from headrace.runtime.interface import RunTask
from headrace.runtime.tasks import Report, Task
from headrace.sources.scylla.position import LogPosition
from headrace.sources.scylla.skipped_batches import is_passed
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_feedback import write_feedback
from headrace.sources.scylla.window_reader import LogReader, TableLog

_MAX_ROUNDS: Final = 5
"""How often a batch is read again because tables were altered while it was read."""


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
        self.skips.record_skipped(found for report in reports if report.kind == "done" for found in json.loads(report.detail)["skipped"])
        self.late.done(self.reached, end, reports)
        self.reached = end
        write_feedback(self.context.directory.path / "pace.json", self.reached, _rows(reports))
        self._tell(reports)

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
        return ScyllaResyncRunner(self.context, self.notes, self.snapshots, self.late, self._read_up_to)

    def _read_up_to(self, name: TableName) -> int:
        place = self.reached.places.get(name)
        return self.notes.tables[name].start.place.time if place is None else place.time

    def task(self) -> Task:
        """Return a task that reads the tables with their current schemas."""
        logs = {name: TableLog(note.table, note.start.ttl, self.late.known(note)) for name, note in self.notes.tables.items()}
        # A postimage shows the whole row, so no value needs a second read.
        begun = {} if self.context.targets.sink.stores_row_images else self.snapshots.progress.begun()
        reader = LogReader(self.address, logs, self.choices, begun, self.skips.pending)
        return Task(reader, self.context.targets.sink, functools.partial(retrying, deadline_s=self.context.settings.retry_timeout_s))

    def _tell(self, reports: Iterable[Report]) -> None:
        written = [report for report in reports if report.kind == "changes"]
        newest, changes = max((report.commit_ts for report in written), default=0), sum(report.changes for report in written)
        self.reporter.batch(self.reached, changes, newest)
        current_wait().clear()
        self.context.view.written(sum_written(written))
        pending = self.pending()
        self.context.view.pending(pending)
        self.context.view.batch(changes, None if pending is None else pending.lag_s(time.time()), str(self.reached))


def _rows(reports: Iterable[Report]) -> Counter[str]:
    """The number of log rows in each table's window, summed over all tasks."""
    found: Counter[str] = Counter()
    for report in reports:
        if report.kind == "done":
            found.update(json.loads(report.detail)["rows"])
    return found
