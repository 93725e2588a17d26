"""`headrace resync` for pipes from ScyllaDB: a table's copy in the sink is emptied and made anew, beside the log.

The stream stands still while the table is emptied; what it has read of the log by then is in the base table, which is copied as of a later
moment, and all that comes after is read as ever. The request is forgotten last: a crash leads to all of it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.scylla.pipe_notes import Notes
from headrace.pipes.scylla.snapshot_runner import TableCopier
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import ResyncRequest, pending_requests
from headrace.retry import retrying
from headrace.sinks.cdc_log_sink import LogSink


@dataclass(frozen=True, slots=True)
class Resyncs:
    """Takes requests up, one after the other."""

    directory: StateDirectory
    notes: Notes
    copier: TableCopier
    sink: LogSink
    view: ProgressView
    renew: Callable[[TableName], None]
    """Hears of each table that is about to be copied again."""
    read_up_to: Callable[[TableName], int]
    """Up to which moment a table's log was read, microseconds since 1970."""

    @property
    def is_idle(self) -> bool:
        return not any(pending_requests(self.directory))

    def poll(self, pause: Callable[[], AbstractContextManager[object]]) -> None:
        """Take up the next request, unless tables are being copied. `pause` keeps the stream from starting a batch."""
        request = None if self.copier.is_busy else next(pending_requests(self.directory), None)
        if request is not None:
            with pause():
                self._take(request)

    def _take(self, request: ResyncRequest) -> None:
        asked = Selection(request.tables)
        found = [name for name in self.notes.tables if asked(name)]
        for name in found:
            table = self.notes.tables[name].table
            self.renew(name)
            self.copier.begin(table, self.read_up_to(name))
            store = self.sink.table_store()
            if store is not None:
                retrying(functools.partial(store.clear, table))
                self.view.note(f"{name} is emptied and copied again")
            else:
                self.view.note(f"{name} is copied again; rows that are gone at the source stay")
        if not found:
            self.view.note(f"nothing to copy again: the pipe has no table {asked}")
        request.forget()
