"""`headrace resync` for pipes from ScyllaDB: empties a target and reads its table again, alongside the log.

The stream is paused while the target is emptied. What it has read of the log by then is in the base table, which is read at a later time.
The request is removed last, so a crash repeats all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.scylla.late_rows import LateRowWatch
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.scylla.snapshot_runner import ScyllaSnapshotRunner
from headrace.pipes.state.resync_requests import ResyncRequest, pending_requests
from headrace.retry import retrying


@dataclass(frozen=True, slots=True)
class ScyllaResyncRunner:
    """Handles resync requests one at a time."""

    context: PipeContext[LogTarget]
    notes: ScyllaPipeNotes
    snapshots: ScyllaSnapshotRunner
    late: LateRowWatch
    read_up_to: Callable[[TableName], int]
    """Returns the time up to which a table's log was read, microseconds since 1970."""

    @property
    def is_idle(self) -> bool:
        return not any(pending_requests(self.context.directory))

    def poll(self, pause: Callable[[], AbstractContextManager[object]]) -> None:
        """Handle the next request, unless a snapshot is running. `pause` keeps the stream from starting a batch."""
        request = None if self.snapshots.is_busy else next(pending_requests(self.context.directory), None)
        if request is not None:
            with pause():
                self._take(request)

    def _take(self, request: ResyncRequest) -> None:
        requested = Selection(request.tables)
        found = [name for name in self.notes.tables if requested(name)]
        for name in found:
            table = self.notes.tables[name].table
            self.late.renew(name)
            self.snapshots.begin(table, self.read_up_to(name))
            store = self.context.targets.sink.table_store()
            if store is not None:
                retrying(functools.partial(store.clear, table))
                self.context.view.note(f"{name} is emptied and copied again")
            else:
                self.context.view.note(f"{name} is copied again; rows that are gone at the source stay")
        if not found:
            self.context.view.note(f"nothing to copy again: the pipe has no table {requested}")
        request.forget()
