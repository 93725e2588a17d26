"""A pipe from ScyllaDB's CDC log to a sink of log rows.

The order of writes makes every crash harmless. A batch is a window of each table's log. Spark's log holds its bounds before anything is
read, and it counts when all of it is in the sink. After a crash the same windows are read again, and rows that are written twice merge to
the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.cql.address import CqlAddress
from headrace.cql.blocks import BatchPosition
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.base import Pipe
from headrace.pipes.lifecycle.context import PipeContext, SnapshotInterrupted
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.target_ownership import TargetOwnership
from headrace.pipes.scylla.batch_runner import LogBatchRunner
from headrace.pipes.scylla.late_rows import LateRowWatch
from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes, TableNote
from headrace.pipes.scylla.schema_follower import ScyllaSchemaFollower
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.pipes.scylla.snapshot_runner import ScyllaSnapshotRunner, SnapshotProgress
from headrace.pipes.scylla.start_position import StartPosition, check_start
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.pipes.state.stored_settings import check_unmatched, settings_in, store_settings
from headrace.retry import current_wait, pause, retrying
from headrace.runtime.interface import LOOP_S, Runtime, RuntimeSession, WorkerStartTimeout
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.base import ProgressStore
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.registry import is_same_sink
from headrace.sources.scylla.generations import ServerCatalog
from headrace.sources.scylla.log_tables import LoggedTable, check_tables_readable, missing_table_error, no_log, select_tables
from headrace.sources.scylla.position import LogPosition, moment
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_planner import ScyllaSource
from headrace.stage_report import enter_stage

log = logging.getLogger("headrace")

_STARTS: Final = 5
"""How often the stream is started before the start of Spark's processes counts as failed."""
_TABLES_S: Final = 1.0
"""How often a pipe without tables looks for some."""
_PRELOAD: Final = ("headrace.sources.scylla.window_reader", "headrace.sources.scylla.snapshot.reader")
_KIND: Final = "scylla"
"""The option that marks the state of such a pipe."""


class ScyllaPipe(Pipe):
    """Replicates log tables."""

    def __init__(
        self,
        address: CqlAddress,
        choices: ScyllaOptions,
        target: LogTarget,
        settings: PipeSettings,
        view: ProgressView,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(target.name, settings, view, runtime)
        self._address, self._choices, self._target = address, choices, target
        self._owned: TargetOwnership | None = None

    @property
    def _progress_store(self) -> ProgressStore:
        return self._target.progress_store

    @property
    def _worker_sink(self) -> LogSink:
        return self._target.sink

    def _can_skip(self, event: str) -> bool:
        """Return whether the event is a batch of log rows; snapshot rows cannot be skipped."""
        return BatchPosition.parse(event) is not None

    def _run(self, directory: StateDirectory) -> None:
        self._choices.check()
        check_start(self._settings)
        enter_stage(f"connecting to {self._address}")
        session = retrying(lambda: shared_session(self._address), deadline_s=self._settings.retry_timeout_s)
        catalog = ServerCatalog(session, self._choices)
        state = directory.load()
        is_new = state is None
        if state is None:
            state = self._new_state(session)
            directory.begin(state)
        else:
            state = self._checked(state, session)
        self._owned = self._ownership(self._target.claims, directory, state)
        batches = self._batches(directory, session, state, catalog)
        self._read_sink_record(directory, LogPosition.from_json, batches.notes.tables, can_resync=True)
        self._open_tables(batches, lambda: directory.save(state), is_new=is_new)
        batches.late.begin()
        batches.reporter.begin(batches.reached, is_new=is_new)
        self._begin(directory, state, f"replicating {len(batches.notes.tables)} tables from {self._address}")
        directory.clear_scratch()
        # `--once` ends when everything written before this time is in the sink.
        ends = {name: catalog.now() for name in batches.notes.tables} if self._settings.once else {}
        if ends:
            until, wait_s = moment(next(iter(ends.values()))), self._choices.confidence
            self._view.note(f"reading the log up to {until}, which takes {wait_s:g} s of waiting")

        def ended() -> bool:
            done = self._settings.once and batches.reached.covers(ends) and batches.snapshots.is_complete and batches.resyncs.is_idle
            return self._stop.is_set() or done

        if self._settings.once and not ends:
            self._view.note("nothing to read: no chosen table exists yet")
            return
        with self._session(directory, _PRELOAD) as spark:
            try:
                while not ended():
                    if not batches.notes.tables:
                        self._wait_for_tables(batches, ended)
                        self._open_tables(batches)
                        continue
                    self._copy_first(spark, batches)
                    self._stream_patiently(spark, batches, ended)
                    if batches.follower.came and not ended():
                        self._open_tables(batches)
            finally:
                self._stop.set()
                batches.snapshots.wait()
        self._view.note(f"stopped at {batches.reached}")

    def _new_state(self, session: CqlSession) -> PipeState:
        options = {**self._settings.stored_options, _KIND: True}
        return PipeState(str(self._address), _cluster(session), self._sink_name, self._settings.selection.to_json(), {}, 0, options)

    def _checked(self, state: PipeState, session: CqlSession) -> PipeState:
        place = str(self._settings.state)
        if not state.options.get(_KIND) or not is_same_sink(state.sink, self._sink_name) or state.identity != _cluster(session):
            hint = "use a new state directory, or give the same ends"
            raise DefiniteError(f"the state belongs to {state.source} and {state.sink}", place=place, hint=hint)
        was = settings_in(state, place).scylla.kept
        if was is not self._choices.kept:
            raise DefiniteError(f"the tables were begun with kept = {was}", place=f"{place}, kept", hint="give it as it was")
        store_settings(state, self._settings.choices, place)
        state.sink, state.source, state.selection = self._sink_name, str(self._address), self._settings.selection.to_json()
        return state

    def _batches(self, directory: StateDirectory, session: CqlSession, state: PipeState, catalog: ServerCatalog) -> LogBatchRunner:
        notes = ScyllaPipeNotes.load(directory)
        context = PipeContext(self._settings, state, directory, self._target, self._view, self._stop.is_set)
        follower = ScyllaSchemaFollower(context, session, self._choices, notes)
        snapshots = ScyllaSnapshotRunner(context, self._address, self._choices, notes, SnapshotProgress(directory))
        reporter = ProgressReporter(self._target, self._settings.pipe_name, state.source, lambda: snapshots.incomplete, directory.seal)
        late = LateRowWatch(notes, self._choices, catalog, self._view, self._settings.pipe_name, self._target.sink.late_row_store())
        return LogBatchRunner(context, self._address, self._choices, notes, follower, snapshots, reporter, late)

    def _open_tables(self, batches: LogBatchRunner, on_prepared: Callable[[], None] = lambda: None, *, is_new: bool = False) -> None:
        """Open the selected tables: known tables continue, new ones start, and the sink is prepared for all of them.

        `on_prepared` is called when the sink can hold all tables, and before anything is saved about them.
        """
        notes, session = batches.notes, batches.follower.session
        enter_stage(f"inspecting the tables of {self._address}")
        names = self._chosen(session, notes, is_new=is_new)
        for name in [name for name in notes.tables if name not in names]:
            self._view.note(f"table {name} is not chosen any more; what was read of it stays in the sink")
            del notes.tables[name]
        fresh = retrying(lambda: check_tables_readable(session, [name for name in names if name not in notes.tables], self._choices))
        # The sink must accept new tables before anything is saved about them.
        known = [note.table for note in notes.tables.values()]
        enter_stage(f"preparing {len(known) + len(fresh)} target tables")
        retrying(lambda: self._prepare([*known, *(one.table for one in fresh.values())]))
        on_prepared()
        enter_stage(f"planning the snapshot of {len(fresh)} tables")
        self._begin_with(fresh, batches)
        notes.save()
        batches.follower.follow(again=True)
        batches.follower.came.clear()
        self._view.tables({str(name): self._target.place(name) for name in notes.tables})

    def _prepare(self, tables: Sequence[CqlTable]) -> None:
        """Claim the targets, then create what is missing; release the targets of tables that are no longer selected."""
        if self._owned is None:
            self._target.sink.prepare(tables)
            return
        targets = {self._target.target_of(table.name) for table in tables}
        with self._owned.creating(targets):
            self._target.sink.prepare(tables)
        self._owned.keep_only(targets)

    def _chosen(self, session: CqlSession, notes: ScyllaPipeNotes, *, is_new: bool) -> tuple[TableName, ...]:
        chosen = retrying(lambda: select_tables(session, self._settings.selection), deadline_s=self._settings.retry_timeout_s)
        named = set(self._settings.selection.include)
        for name in chosen.unlogged:
            if str(name) in named or name in notes.tables:
                raise no_log(name, str(self._address))
        for name in notes.tables:
            if self._settings.selection(name) and name not in chosen.logged:
                raise missing_table_error(name, str(self._address))
        if chosen.unlogged and not chosen.logged:
            raise no_log(chosen.unlogged[0], str(self._address))
        check_unmatched(self._settings.selection, (*chosen.logged, *chosen.unlogged), str(self._address), is_new=is_new)
        if chosen.unlogged:
            log.warning("left out, because they have no CDC log: %s", ", ".join(map(str, chosen.unlogged)))
        return chosen.logged

    def _begin_with(self, fresh: Mapping[TableName, LoggedTable], batches: LogBatchRunner) -> None:
        notes, snapshots = batches.notes, batches.snapshots
        where = self._settings.start_at or ("oldest" if self._settings.snapshot is SnapshotMode.NONE else "now")
        beginning = StartPosition(batches.late.catalog, self._choices, where, joins=bool(notes.tables))
        copied = self._settings.snapshot is not SnapshotMode.NONE and not self._settings.start_at
        for name, found in fresh.items():
            start = beginning.of(found)
            # Save this before the table: a crash in between repeats it.
            if copied:
                if name in snapshots.progress.tables:
                    self._empty(found.table)
                snapshots.begin(found.table, start.place.time)
            else:
                snapshots.progress.forget(name)
            notes.tables[name] = TableNote(found.table, found.id, start)

    def _empty(self, table: CqlTable) -> None:
        """Empty the target of a table that was deselected for a time: rows that were deleted meanwhile would stay."""
        store = self._target.sink.table_store()
        if store is not None:
            retrying(lambda: store.clear(table))
            self._view.note(f"{table.name} was begun before and left out since: it is emptied and copied again")

    def _wait_for_tables(self, batches: LogBatchRunner, ended: Callable[[], bool]) -> None:
        """Wait until a selected table has a log. Without tables no batch is planned, so schemas are checked here."""
        with batches.reporter.heartbeats():
            while not ended() and not batches.follower.came:
                batches.follower.follow()
                pause(_TABLES_S)

    def _stream_patiently(self, spark: RuntimeSession, batches: LogBatchRunner, ended: Callable[[], bool]) -> None:
        """Stream; start again a few times if Spark's processes did not start in time."""
        for attempt in range(_STARTS):
            try:
                self._stream(spark, batches, ended)
                return
            except WorkerStartTimeout as error:
                if attempt == _STARTS - 1 or ended():
                    raise
                log.warning("waiting: %s", error.message)

    def _copies_first(self, batches: LogBatchRunner) -> bool:
        """Whether snapshots must complete before the log is read on: a range deletion must find all earlier rows."""
        return self._target.sink.stores_row_images and not batches.snapshots.is_complete

    def _copy_first(self, spark: RuntimeSession, batches: LogBatchRunner) -> None:
        if self._copies_first(batches):
            try:
                with batches.reporter.heartbeats():
                    batches.snapshots.run(spark, spark.task_slots, lambda: batches.follower.follow(again=True))
            except SnapshotInterrupted:
                self._view.note("stopped during the first copy; run again to go on")

    def _stream(self, spark: RuntimeSession, batches: LogBatchRunner, ended: Callable[[], bool]) -> None:
        batches.follower.outdated = False
        slots, directory = spark.task_slots, batches.context.directory
        source = ScyllaSource(self._address, batches.notes.starts, self._choices, slots, directory.path / "pace.json")
        stream = spark.stream_splits(source, directory.checkpoint, batches.run)
        try:
            with batches.reporter.heartbeats():
                while not stream.wait(LOOP_S) and not ended() and not batches.follower.came and not batches.follower.outdated:
                    batches.resyncs.poll(stream.paused)
                    if self._copies_first(batches):
                        break
                    # At least one task is left to the log.
                    batches.snapshots.poll(spark, max(slots - 1, 1))
                    self._view.waiting(current_wait().current())
                    self._view.pending(batches.pending())
        finally:
            stream.stop()


def _cluster(session: CqlSession) -> str:
    """Return the cluster's name, which identifies it."""
    found = retrying(lambda: session.execute("SELECT cluster_name FROM system.local"))
    return str(found[0].cluster_name)
