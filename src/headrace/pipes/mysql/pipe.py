"""A pipe from a MySQL or MariaDB server to a sink.

The order of writes makes every crash harmless. The start position is saved before anything is read. A table's schema is saved before its
first row is written. A chunk counts as done when its rows are in the sink. A batch counts when Spark has checkpointed it. After a crash,
work that was done but not recorded is repeated, and the sink merges the repeated rows away.
"""

from __future__ import annotations

import functools
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.pipes.lifecycle.base import SchemaFollowingPipe
from headrace.pipes.lifecycle.context import PipeContext, SnapshotInterrupted
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.lifecycle.sink_tables import SinkTables, TombstonePurger, targets_of
from headrace.pipes.mysql.cascade_runner import CascadeRunner
from headrace.pipes.mysql.resync_runner import ResyncRunner
from headrace.pipes.mysql.schema_follower import SchemaChangeFollower
from headrace.pipes.mysql.snapshot_runner import SnapshotRunner
from headrace.pipes.mysql.startup import PipeStartup, StartedPipe
from headrace.pipes.mysql.stream_runner import StreamRunner
from headrace.pipes.mysql.table_snapshots import TableSnapshots
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.retry import retrying
from headrace.runtime.interface import BatchStream, Runtime, RuntimeSession
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.base import Sink
from headrace.sources.mysql.limits import SegmentAccess
from headrace.sources.mysql.preflight.required import ServerIdentity, check_server
from headrace.sources.mysql.server.collations import SourceCollations
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import MySQLSource
from headrace.stage_report import enter_stage


class MySQLPipe(SchemaFollowingPipe):
    def __init__(
        self, address: MySQLAddress, sink: Sink, sink_name: str, settings: PipeSettings, view: ProgressView, runtime: Runtime | None = None
    ) -> None:
        super().__init__(sink, sink_name, settings, view, runtime)
        self._address = address

    def _run(self, directory: StateDirectory) -> None:
        record = self._resume(directory)
        enter_stage(f"connecting to {self._address}")
        connection = retrying(lambda: connect(self._address), deadline_s=self._settings.retry_timeout_s)
        try:
            server = check_server(connection, self._address)
            started = self._startup(directory, connection).open(server, record)
            self._targets.read_from(server.flavour, started.target.file)
            runners = self._assemble(directory, started)
            runners.cascades.find({name: table.schema for name, table in started.state.tables.items()}, runners.stream.reached)
            if started.is_new:
                # Refuse what the sink cannot hold before a state exists.
                runners.snapshots.prepare()
            directory.save(started.state)
            runners.resyncs.plan_pending(nullcontext)
            runners.snapshots.plan(connection)
            retrying(lambda: self._targets.keep_only({*started.state.tables, *started.state.awaiting_resync}))
            runners.stream.reporter.begin(runners.stream.reached, is_new=started.is_new)
        finally:
            connection.close()
        self._view.tables(targets_of(self._targets, runners.stream.context.written_tables))
        tables = len(started.state.tables)
        self._begin(directory, started.state, f"replicating {tables} tables from {self._address} ({server.flavour} {server.version})")
        directory.clear_scratch()
        if runners.is_finished(started.target):
            self._view.note(f"nothing new since {runners.stream.reached}")
            return
        with self._session(directory) as session:
            self._run_snapshots(session, runners)
            self._run_stream(session, runners, started, server)

    def _executor(self, context: PipeContext[SinkTables], snapshots: SnapshotLog) -> IntentExecutor:
        return IntentExecutor(context, snapshots, functools.partial(request_resync, context.directory))

    def _startup(self, directory: StateDirectory, connection: Any) -> PipeStartup:
        return PipeStartup(connection, self._address, directory, self._settings, self._sink_name, self._targets, self._view)

    def _assemble(self, directory: StateDirectory, started: StartedPipe) -> _Runners:
        context, settings = self._context(directory, started.state), self._settings
        self._targets.write_as(started.state.id, settings.pipe_name)
        self._own_targets(directory, started.state)
        snapshots = TableSnapshots(context, SnapshotLog(directory))
        executor = self._executor(context, snapshots.log)
        reporter = ProgressReporter(self._targets, settings.pipe_name, str(self._address), lambda: snapshots.incomplete, directory.seal)
        skips = self._targets.skips(directory.path, settings.pipe_name, settings.transforms)
        # An earlier run may have read collations up to the present end of the log.
        texts = SourceCollations(self._address, started.target)
        cascades = CascadeRunner(context, not started.logs_cascades, texts, lambda: snapshots.incomplete, snapshots.stale_versions)
        follower = SchemaChangeFollower(started.history, executor, settings.schema_changes, cascades.before_change)
        stream = StreamRunner(self._address, context, follower, reporter, skips, cascades)
        snapshot_runner = SnapshotRunner(
            self._address, context, snapshots, stream.snapshot_task, lambda: stream.written, stream.settle_cascades
        )
        resyncs = ResyncRunner(stream, snapshot_runner)
        purger = TombstonePurger(
            self._targets,
            settings.pipe_name,
            lambda: [context.sink_schema(table.schema) for table in list(context.state.tables.values())],
            lambda: snapshots.is_complete and resyncs.is_idle and not context.state.awaiting_resync and cascades.is_settled(),
        )
        return _Runners(stream, snapshot_runner, resyncs, purger, cascades)

    def _run_snapshots(self, session: RuntimeSession, runners: _Runners) -> None:
        rows = runners.snapshots.snapshots.log.rows
        try:
            with runners.stream.reporter.heartbeats():
                runners.snapshots.run(session, session.task_slots)
        except SnapshotInterrupted:
            self._view.note("stopped during the snapshot; run again to go on")
        runners.stream.reporter.snapshot_rows(runners.stream.reached, runners.snapshots.snapshots.log.rows - rows)

    def _run_stream(self, session: RuntimeSession, runners: _Runners, started: StartedPipe, server: ServerIdentity) -> None:
        def ended() -> bool:
            return self._stop.is_set() or runners.is_finished(started.target)

        def meanwhile(stream: BatchStream) -> None:
            runners.resyncs.poll(session, stream.paused)
            runners.purger.poll(stream.paused)

        if ended():
            return
        source = MySQLSource(
            self._address,
            BinlogPosition.from_json(started.state.start),
            self._relay(runners.stream.context.directory, started.state),
            self._settings.relay_bytes,
            replace(
                self._settings.limits,
                parallelism=session.task_slots,
                # On a cluster, every task would fetch the whole batch from the server.
                whole_tables=session.is_local and not self._targets.append_only,
                poll_seconds=session.plan_wait_s,
            ),
            server.mariadb,
            server.identity,
            self._segment_access(session),
            runners.stream.backlog.path,
        )
        try:
            runners.stream.run(session, source, ended, meanwhile)
        finally:
            self._stop.set()
            runners.resyncs.wait()

    def _relay(self, directory: StateDirectory, state: PipeState) -> Path:
        """Return the relay's directory. A directory that several pipes share is cleared first: a killed run may have left files."""
        relay = directory.mirror(self._settings.relay, state.id)
        if self._settings.relay:
            shutil.rmtree(relay, ignore_errors=True)
        return relay

    def _segment_access(self, session: RuntimeSession) -> SegmentAccess:
        if session.is_local:
            return SegmentAccess.LOCAL
        return SegmentAccess.FETCH if session.always_fetches_segments else SegmentAccess.LOCAL_OR_FETCH


@dataclass(frozen=True, slots=True)
class _Runners:
    stream: StreamRunner
    snapshots: SnapshotRunner
    resyncs: ResyncRunner
    purger: TombstonePurger
    cascades: CascadeRunner

    def is_finished(self, target: BinlogPosition) -> bool:
        """Whether a `--once` run has reached its target."""
        return (
            self.stream.context.settings.once
            and self.stream.reached >= target
            and self.snapshots.snapshots.is_complete
            and self.resyncs.is_idle
        )
