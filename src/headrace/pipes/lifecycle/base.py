"""The base classes of pipes: a pipe owns its state directory while it runs, and stops in order."""

from __future__ import annotations

import shlex
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_reporter import SourcePosition
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor, resume
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.lifecycle.target_ownership import TargetOwnership
from headrace.pipes.state.event_skips import note_halt
from headrace.pipes.state.pipe_registry import PipeEntry, register
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory
from headrace.pipes.state.resync_requests import add_state_to_hint, pending_requests
from headrace.pipes.state.stored_progress import FileProgressStore, SinkRecord, read_sink_record
from headrace.retry import WaitState, retrying, use_wait_state
from headrace.runtime.checkpoint import committed_offset
from headrace.runtime.interface import Runtime, RuntimeSession
from headrace.settings.pipe_settings import PipeSettings
from headrace.shortage import shortages_at
from headrace.sinks.base import ProgressStore, Sink
from headrace.sinks.registry import is_same_sink
from headrace.sinks.target_claims import Claim, ClaimStore
from headrace.sources.base import Offset
from headrace.sources.mysql.segments.skipped_events import is_place
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.spark.spark_runtime import SparkRuntime
from headrace.stage_report import end_report, enter_stage, report_stages

_PRELOAD = ("headrace.sources.mysql.split_reader",)
"""Modules that workers import at their start, in addition to the sink's."""


class Pipe(ABC):
    """One replication, from its checks to its end."""

    def __init__(self, sink_name: str, settings: PipeSettings, view: ProgressView, runtime: Runtime | None = None) -> None:
        self._sink_name, self._settings, self._view = sink_name, settings, view
        self._stop, self.waits = threading.Event(), WaitState(pipe=settings.name)
        """`waits`: the servers that the pipe waits for."""
        self.on_begun: Callable[[], None] = lambda: None
        """Called when the checks have passed, the tables exist and the state is saved."""
        self._runtime: Runtime = SparkRuntime() if runtime is None else runtime

    def stop(self) -> None:
        """Stop the pipe after its current step; safe in a signal handler."""
        self._stop.set()
        self.waits.ending = True

    def run(self) -> None:
        """Replicate until caught up (`once`) or stopped."""
        with (
            use_wait_state(self.waits, of_run=True),
            shortages_at(self._settings.state),
            # `_begin` ends the report.
            report_stages(f"opening the state directory {self._settings.state}"),
        ):
            directory = StateDirectory(self._settings.state).acquire()
            try:
                self._run_noting_halts(directory)
            finally:
                directory.close()

    def _run_noting_halts(self, directory: StateDirectory) -> None:
        try:
            # A pipe that has run before knows that its addresses are right, so it waits for an unavailable server.
            self.waits.first_contact = directory.load() is None
            self._run_or_fail(directory)
        except DefiniteError as error:
            error.hint = add_state_to_hint(error.hint, directory.path)
            if error.event and not self._can_skip(error.event):
                error.event = ""
            error.hint = error.hint.replace("--state DIR", f"--state {shlex.quote(str(directory.path))}")
            note_halt(directory.path, error)
            raise
        note_halt(directory.path, None)

    def _run_or_fail(self, directory: StateDirectory) -> None:
        """Run; with `once`, a server that is unavailable on first contact is an error."""
        try:
            self._run(directory)
        except TransientError as error:
            if not (self.waits.first_contact and self._settings.once):
                raise
            raise DefiniteError(error.message, place=error.place, hint=error.hint) from error

    def _can_skip(self, event: str) -> bool:
        """Whether this kind of pipe can skip an event."""
        return is_place(event)

    @abstractmethod
    def _run(self, directory: StateDirectory) -> None: ...

    @property
    @abstractmethod
    def _progress_store(self) -> ProgressStore:
        """Where progress is stored."""

    @property
    @abstractmethod
    def _worker_sink(self) -> object:
        """The sink as tasks carry it; workers import its module at their start."""

    def _read_sink_record(
        self, directory: StateDirectory, place: Callable[[Offset], SourcePosition], tables: Iterable[TableName], *, can_resync: bool
    ) -> SinkRecord:
        """Return the sink's record of the state. Raise if the sink is older than the state, unless all tables are read again."""
        enter_stage("reading the pipe's record in the sink")
        requests = list(pending_requests(directory))
        requested = [Selection(request.tables) for request in requests]
        is_all = any(request.new_log for request in requests) or all(any(one(name) for one in requested) for name in tables)
        if can_resync and requests and is_all:
            return SinkRecord()
        committed = committed_offset(directory.checkpoint)
        version = place(committed).version if committed is not None else -1
        return read_sink_record(self._progress_store, directory, self._settings.pipe_name, version, can_resync)

    def _ownership(self, store: ClaimStore | None, directory: StateDirectory, state: PipeState) -> TargetOwnership | None:
        """Return the pipe's claims on its targets; None if the sink stores none."""
        if store is None:
            return None
        settings, path = self._settings, str(directory.path.resolve())
        owner = Claim("", state.id, settings.pipe_name, state.source, socket.gethostname(), path, 0)
        return TargetOwnership(store, owner, self._sink_name, shared=settings.shared_target)

    def _begin(self, directory: StateDirectory, state: PipeState, message: str) -> None:
        """Register the pipe in the sink, and report that it has started."""
        entry = PipeEntry(self._settings.pipe_name, state.source, state.selection, state.options, str(directory.path))
        retrying(lambda: register(self._progress_store, entry))
        end_report()
        self.waits.first_contact = False
        self._view.note(message)
        self.on_begun()

    @contextmanager
    def _session(
        self, directory: StateDirectory, modules: tuple[str, ...] = _PRELOAD, more: Mapping[str, str] | None = None
    ) -> Iterator[RuntimeSession]:
        """Start a session of the runtime that ends with the block; its workers import `modules`, and `more` are settings of the engine."""
        preload = (*modules, type(self._worker_sink).__module__)
        settings = self._settings
        spark_settings = {**settings.spark, **(more or {})}
        starting = self._runtime.session(
            settings.master, directory.path, spark_log=settings.spark_log, preload=preload, more=spark_settings
        )
        try:
            with starting as session:
                try:
                    if session.helper_pid is not None:
                        directory.note_helper(session.helper_pid, shared=self._runtime.is_shared)
                    yield session
                finally:
                    self._view.close()
        finally:
            directory.clear_scratch()


class ChangeBlockPipe(Pipe):
    def __init__(self, sink: Sink, sink_name: str, settings: PipeSettings, view: ProgressView, runtime: Runtime | None = None) -> None:
        super().__init__(sink_name, settings, view, runtime)
        self._targets = SinkTables(sink, FileProgressStore(settings.state))

    @property
    def _progress_store(self) -> ProgressStore:
        return self._targets.progress_store

    @property
    def _worker_sink(self) -> Sink:
        return self._targets.sink

    def _context(self, directory: StateDirectory, state: PipeState) -> PipeContext[SinkTables]:
        return PipeContext(self._settings, state, directory, self._targets, self._view, self._stop.is_set)

    def _own_targets(self, directory: StateDirectory, state: PipeState) -> None:
        """Claim targets for this state from now on, before they are created or written."""
        self._targets.ownership = self._ownership(self._targets.sink.claims(), directory, state)


class SchemaFollowingPipe(ChangeBlockPipe):
    """A pipe whose log holds DDL statements."""

    _reads_tables = True
    """Whether tables can be read again from the source."""

    def _resume(self, directory: StateDirectory) -> SinkRecord:
        """Finish the intent of an earlier run before anything else reads the sink's tables; return the sink's record of the state."""
        enter_stage(f"reading the state in {directory.path}")
        state = directory.load()
        tables = state.tables if state is not None else ()
        if state is not None and is_same_sink(state.sink, self._sink_name):
            self._own_targets(directory, state)
            chosen = [name for name in tables if state.is_selected(self._settings.selection, name)]
            enter_stage(f"claiming {len(chosen)} target tables")
            retrying(lambda: self._targets.claim(chosen))
        record = self._read_sink_record(directory, BinlogPosition.from_json, tables, can_resync=self._reads_tables)
        if state is not None and state.intent is not None and is_same_sink(state.sink, self._sink_name):
            requested = [Selection(request.tables) for request in pending_requests(directory)]
            enter_stage("finishing the schema change that the last run began")
            resume(
                self._executor(self._context(directory, state), SnapshotLog(directory)), lambda name: any(one(name) for one in requested)
            )
        return record

    @abstractmethod
    def _executor(self, context: PipeContext[SinkTables], snapshots: SnapshotLog) -> IntentExecutor: ...
