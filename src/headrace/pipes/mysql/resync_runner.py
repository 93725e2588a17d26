"""Reads tables again while the stream continues.

The table's schema is captured together with a position. From then on, changes before that position are skipped, and the rows are read in
chunks alongside the stream. Rows that the source no longer has are deleted at the end. The state is saved before each step, so a crash only
interrupts the resync.
"""

from __future__ import annotations

import glob
import logging
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace

from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext, SnapshotInterrupted
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.mysql.snapshot_runner import Pause, SnapshotRunner
from headrace.pipes.mysql.startup import capture_tables
from headrace.pipes.mysql.stream_runner import StreamRunner
from headrace.pipes.state.pipe_state import TableState
from headrace.pipes.state.resync_requests import ResyncRequest, pending_requests
from headrace.retry import bind_context, retrying
from headrace.runtime.interface import RuntimeSession
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sources.mysql.preflight.required import check_tables
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.server.position import BinlogPosition

log = logging.getLogger("headrace")

_LOOK_AGAIN_S = 1.0


@dataclass(slots=True)
class ResyncRunner:
    """Processes resync requests one at a time; a thread alongside the stream reads the rows."""

    stream: StreamRunner
    snapshots: SnapshotRunner
    _thread: threading.Thread | None = field(default=None, init=False)
    _failure: HeadraceError | None = field(default=None, init=False)
    _not_before: float = field(default=0.0, init=False)

    @property
    def context(self) -> PipeContext[SinkTables]:
        return self.snapshots.context

    @property
    def is_idle(self) -> bool:
        return self._thread is None and not any(pending_requests(self.context.directory))

    def plan_pending(self, pause: Pause) -> None:
        """Plan the pending requests before the stream starts."""
        for request in list(pending_requests(self.context.directory)):
            self._plan_request(request, pause)

    def poll(self, session: RuntimeSession, pause: Pause) -> None:
        """Start the next request if none is running; raise the error of the last one."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if self._failure is not None:
                raise self._failure
        request = next(pending_requests(self.context.directory), None)
        if request is not None and time.monotonic() >= self._not_before:
            self._thread = threading.Thread(
                target=bind_context(self._run), args=(session, request, pause), name="headrace-resync", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait for the running request; it ends soon after the pipe starts to stop."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, session: RuntimeSession, request: ResyncRequest, pause: Pause) -> None:
        try:
            self._plan_request(request, pause)
            # Use one task at a time and leave the other slots to the stream.
            self.snapshots.run(session, 1, pause)
        except SnapshotInterrupted:
            log.info("stopped while reading tables again; run again to go on")
        except HeadraceError as error:
            self._failure = error
        # An unexpected error must reach the driver; otherwise it would be lost with the thread.
        except Exception as error:
            self._failure = DefiniteError(f"reading tables again failed: {type(error).__name__}: {error}", hint="please report it")
            raise

    def _plan_request(self, request: ResyncRequest, pause: Pause) -> None:
        """Save which tables are read again, and plan their snapshots."""
        address, context, state = self.snapshots.address, self.context, self.context.state
        requested = Selection(request.tables)
        # The stream is paused, so that it does not pass the position before the state is saved.
        with closing(retrying(lambda: connect(address, identity=state.identity))) as connection, pause():
            found, position = retrying(lambda: capture_tables(connection, address, requested, state.epoch, self.stream.written))
            if not request.new_log and self._is_early(requested, found, position):
                if not self._not_before:
                    context.view.note(f"{requested} is read again when the stream has come to where its definition changed")
                self._not_before = time.monotonic() + _LOOK_AGAIN_S
                return
            if found:
                check_tables(connection, address, [schema.name for schema in found])
            self._save_tables(requested, found, position)
            self.snapshots.plan(connection)
        self._not_before = 0.0
        request.forget()

    def _is_early(self, requested: Selection, found: list[TableSchema], position: BinlogPosition) -> bool:
        """Whether the stream must first reach the position where the schemas changed: append-only sinks receive every change.

        A table that no longer exists may have been renamed; its rows are then read under the new name.
        """
        there = {schema.name: schema for schema in found}
        known = {name: self._alongside_state(name) for name in {*self.context.state.tables, *there} if requested(name)}
        changed = any(table is not None and table.schema != there.get(name) for name, table in known.items())
        return changed and self.stream.written < position

    def _alongside_state(self, name: TableName) -> TableState | None:
        """Return the table's state if its rows are read alongside its changes (append-only sinks), else None."""
        state = self.context.state
        return state.tables.get(name) if self.context.targets.append_only and name not in state.awaiting_resync else None

    def _save_tables(self, requested: Selection, found: list[TableSchema], position: BinlogPosition) -> None:
        context, state = self.context, self.context.state
        selection = context.selection
        for name in {*state.tables, *state.awaiting_resync} - {schema.name for schema in found}:
            if requested(name):
                self._remove_table(name, position)
        # A glob matches selected tables only; a table that is not selected must be named exactly.
        meant = [schema for schema in found if selection(schema.name) or _is_named(schema.name, requested)]
        resolver = context.schemas
        for schema in meant:
            known = state.tables.get(schema.name)
            if known is not None:
                resolver.check_again(known.schema, schema)
        for schema in meant:
            self._restart_table(schema, position, chosen=selection(schema.name))
        if not meant:
            log.warning("nothing to read again: the source has no such table %s", requested)
        context.directory.save(state)
        self.stream.follower.history.learn(meant, position)

    def _restart_table(self, schema: TableSchema, position: BinlogPosition, *, chosen: bool) -> None:
        state, name = self.context.state, schema.name
        known, concurrent = state.tables.get(name), self._alongside_state(name)
        if not chosen:
            state.selection["added"].append(str(name))
        number = max(self.snapshots.snapshots.log.next_number(name), 1)
        # The snapshot includes every change up to here: a lagging stream must not bring back rows that were deleted since.
        ignores = self.context.settings.schema_changes.of(ChangeKind.ADD_COLUMN) is Policy.IGNORE
        hidden = known.hidden if known is not None and ignores else ()
        renewed = TableState(schema, position.to_json(), position.to_json(), number, hidden)
        if concurrent is not None and concurrent.schema == schema:
            renewed = replace(concurrent, snapshot=number, concurrent_resync=True)
        state.tables[name] = renewed
        state.awaiting_resync.discard(name)
        state.ignored.discard(name)
        self.context.view.note(f"reading {name} again" if known is not None else f"adding {name}")

    def _remove_table(self, name: TableName, position: BinlogPosition) -> None:
        """Handle a table that was dropped; its changes are skipped until the stream reaches the DROP."""
        state = self.context.state
        if self._alongside_state(name) is not None:
            # The stream will reach the DROP after the table's other changes.
            return
        known = state.tables.get(name)
        if known is not None and self.context.settings.schema_changes.of(ChangeKind.DROP_TABLE) is not Policy.KEEP:
            self._delete_stale(self.context.sink_schema(known.schema), position)
            del state.tables[name]
        state.awaiting_resync.add(name)
        self.context.view.note(f"{name} is no more")

    def _delete_stale(self, shown: TableSchema, position: BinlogPosition) -> None:
        try:
            retrying(lambda: self.context.targets.delete_stale(shown, position.version))
        except DefiniteError as error:
            if shown.name not in self.context.state.awaiting_resync:
                raise
            # The target would have been recreated for the table's new columns.
            self.context.view.note(f"the target of {shown.name} stays as it was: {error.message}")


def _is_named(name: TableName, requested: Selection) -> bool:
    return str(name) in requested.include or glob.escape(str(name)) in requested.include
