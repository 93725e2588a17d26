"""A pipe from a directory of binlog files to a sink, without a server and without snapshots.

Schemas come from the files. A table is known from its first table map (complete with `binlog_row_metadata = FULL`) or from its CREATE
TABLE; earlier statements concern no rows in the files.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from headrace.api.tracked_tables import learn_described_tables
from headrace.errors import DefiniteError
from headrace.pipes.lifecycle.base import SchemaFollowingPipe
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.lifecycle.sink_schema import store_column_settings
from headrace.pipes.lifecycle.sink_tables import SinkTables, targets_of
from headrace.pipes.mysql.schema_follower import SchemaChangeFollower
from headrace.pipes.mysql.startup import committed_position, is_older_than_sink
from headrace.pipes.mysql.stream_runner import StreamRunner
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.state.stored_settings import store_settings
from headrace.retry import retrying
from headrace.runtime.interface import Runtime
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.base import Sink
from headrace.sinks.registry import is_same_sink
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.offline_source import OfflineLog, check_file, open_directory
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import BinlogDirectory
from headrace.stage_report import enter_stage
from headrace.transforms.transform_plan import find_name_conflicts

logger = logging.getLogger("headrace")


class BinlogFilesPipe(SchemaFollowingPipe):
    _reads_tables = False

    def __init__(
        self, path: Path, sink: Sink, sink_name: str, settings: PipeSettings, view: ProgressView, runtime: Runtime | None = None
    ) -> None:
        super().__init__(sink, sink_name, settings, view, runtime)
        self._path = path

    def _run(self, directory: StateDirectory) -> None:
        record = self._resume(directory)
        enter_stage(f"inspecting the log files in {self._path}")
        log = open_directory(self._path, self._settings.start_at or "oldest")
        state = directory.load()
        is_new = state is None
        if state is None:
            state = self._new_state(log)
            directory.begin(state)
        self._check(state, log)
        context = self._context(directory, state)
        if not is_new:
            check_file(log.path, committed_position(directory, state))
            if is_older_than_sink(directory, state, record):
                self._check_counting(context)
        history = SchemaHistory(context.is_selected, Dialect.of(log.server_version, in_utc=True), directory.history)
        if is_new:
            described = learn_described_tables(history, log, self._settings.selection)
            state.tables.update({name: TableState(schema, position.to_json()) for name, (schema, position) in described.items()})
            for misfit in find_name_conflicts(self._settings.transforms, [table.schema for table in state.tables.values()]):
                # A later statement in the files may create the table or the column.
                logger.warning("%s (%s): %s", misfit.message, misfit.place, misfit.hint)
        self._own_targets(directory, state)
        shown = [context.sink_schema(table.schema) for table in state.tables.values()]
        enter_stage(f"preparing {len(shown)} target tables")
        retrying(lambda: self._targets.prepare(shown))
        if is_new:
            for schema in shown:
                self._targets.check_versions(schema, log.end.version)
        directory.save(state)
        self._targets.read_from("mariadb" if log.mariadb else "mysql", log.start.file)
        stream = self._stream_runner(context, history)
        stream.reporter.begin(stream.reached, is_new=is_new)
        directory.clear_scratch()
        self._view.tables(targets_of(self._targets, context.written_tables))
        self._begin(directory, state, f"replicating log files in {self._path} up to {log.end}")

        def ended() -> bool:
            return self._stop.is_set() or (self._settings.once and stream.reached >= log.end)

        if ended():
            self._view.note(f"nothing new since {stream.reached}")
            return
        start = BinlogPosition.from_json(state.start)
        with self._session(directory) as session:
            whole_tables = session.is_local and not self._targets.append_only
            limits = replace(self._settings.limits, parallelism=session.task_slots, whole_tables=whole_tables)
            source = BinlogDirectory(log.path, start, limits, log.mariadb, stream.backlog.path)
            stream.run(session, source, ended, lambda _: None)

    def _new_state(self, log: OfflineLog) -> PipeState:
        selection, start = self._settings.selection.to_json(), log.start
        options = self._settings.stored_options
        return PipeState(f"binlog:{log.path}", log.identity, self._sink_name, selection, start.to_json(), start.epoch, options)

    def _check(self, state: PipeState, log: OfflineLog) -> None:
        if state.identity != log.identity or not is_same_sink(state.sink, self._sink_name):
            raise DefiniteError(
                f"the state belongs to {state.source} and {state.sink}", place=str(self._settings.state), hint="use a new state directory"
            )
        store_settings(state, self._settings.choices, str(self._settings.state))
        store_column_settings(self._targets, state, self._settings, None)

    def _check_counting(self, context: PipeContext[SinkTables]) -> None:
        """Refuse to repeat changes into tables that would count them twice; the state is an old copy."""
        shown = [context.sink_schema(table.schema) for table in context.state.tables.values()]
        counting = sorted(str(name) for name, need in retrying(lambda: self._targets.requirements(shown)).items() if need.exact)
        if counting:
            raise DefiniteError(
                f"the state is older than the sink, and changes that are read again would count twice in {', '.join(counting)}",
                place=str(self._settings.state),
                hint="restore a newer copy of the state directory, or start over: remove the state directory and the target tables",
            )

    def _executor(self, context: PipeContext[SinkTables], snapshots: SnapshotLog) -> IntentExecutor:
        return IntentExecutor(context, snapshots, None)

    def _stream_runner(self, context: PipeContext[SinkTables], history: SchemaHistory) -> StreamRunner:
        settings, state, directory = self._settings, context.state, context.directory
        self._targets.write_as(state.id, settings.pipe_name)
        follower = SchemaChangeFollower(history, self._executor(context, SnapshotLog(directory)), settings.schema_changes)
        reporter = ProgressReporter(
            self._targets, settings.pipe_name, state.source, lambda: tuple(sorted(map(str, state.awaiting_resync))), directory.seal
        )
        skips = self._targets.skips(directory.path, settings.pipe_name, settings.transforms)
        return StreamRunner(None, context, follower, reporter, skips)
