"""A pipe from a MySQL server to a sink: checks, snapshot, stream, and going on where it stopped.

The order of things makes every crash harmless. The start position is saved before anything is read; a table's schema is saved before its
first row is written; a chunk counts as done after its rows are in the sink; a batch counts after Spark has checkpointed it. Whatever was
done but not yet noted is done again, and the sink's merge makes the second time a no-op.
"""

from __future__ import annotations

import functools
import shutil
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.pipes.lifecycle.base import SchemaFollowingPipe
from headrace.pipes.lifecycle.progress_reporter import Reporter
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver, current_sink_schema
from headrace.pipes.lifecycle.sink_tables import targets_of
from headrace.pipes.lifecycle.tombstone_purger import TombstonePurger
from headrace.pipes.mysql.failover import reached, written
from headrace.pipes.mysql.resync_runner import ResyncRunner
from headrace.pipes.mysql.schema_follower import SchemaChangeFollower
from headrace.pipes.mysql.snapshot_runner import Interrupted, SnapshotRunner
from headrace.pipes.mysql.startup import PipeStartup, StartedPipe, is_wanted
from headrace.pipes.mysql.stream_runner import StreamRunner
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory
from headrace.pipes.state.resync_requests import ask_for_resync
from headrace.retry import retrying
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.base import Sink
from headrace.sources.mysql.preflight.required import ServerIdentity, check_server, check_tables
from headrace.sources.mysql.segments.segment_access import SegmentAccess
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import MySQLSource
from headrace.spark.runtime.executors import always_fetches_segments, count_task_slots, is_local_session
from headrace.spark.runtime.micro_batch import ChangeStream

_POLL_S = 5.0
"""A pipe with nothing to do asks seldom: what comes ends the wait at once, and so does stopping the stream."""


class MySQLPipe(SchemaFollowingPipe):
    """One replication of a server."""

    def __init__(self, address: MySQLAddress, sink: Sink, sink_name: str, settings: PipeSettings, view: ProgressView) -> None:
        super().__init__(sink, sink_name, settings, view)
        self._address = address

    def _run(self, directory: StateDirectory) -> None:
        told = self._resume(directory)
        connection = retrying(lambda: connect(self._address), deadline_s=self._settings.retry_timeout_s)
        try:
            server = check_server(connection, self._address)
            opened = self._opening(directory, connection).open(server, told)
            self._targets.read_from(server.flavour, opened.target.file)
            parts = self._assemble(directory, opened)
            if opened.is_new:
                # What the sink cannot hold is refused before there is a state to go on with.
                parts.copier.prepare()
            directory.save(opened.state)
            parts.resyncs.take_all(nullcontext)
            parts.copier.plan(connection)
            retrying(lambda: self._targets.keep_only({*opened.state.tables, *opened.state.waiting}))
            parts.streaming.reporter.begin(parts.streaming.reached, is_new=opened.is_new)
        finally:
            connection.close()
        self._view.tables(targets_of(self._targets, parts.streaming.written_tables))
        tables = len(opened.state.tables)
        self._begin(directory, opened.state, f"replicating {tables} tables from {self._address} ({server.flavour} {server.version})")
        directory.clear_scratch()
        if parts.is_finished(opened.target):
            self._view.note(f"nothing new since {parts.streaming.reached}")
            return
        with self._spark(directory) as session:
            self._copy(session, parts)
            self._follow(session, parts, opened, server)

    def _executor(self, directory: StateDirectory, state: PipeState, snapshots: SnapshotLog) -> IntentExecutor:
        return IntentExecutor(
            state, directory, snapshots, self._targets, SinkSchemaResolver(self._settings), functools.partial(ask_for_resync, directory)
        )

    def _opening(self, directory: StateDirectory, connection: Any) -> PipeStartup:
        return PipeStartup(connection, self._address, directory, self._settings, self._sink_name, self._targets)

    def _assemble(self, directory: StateDirectory, opened: StartedPipe) -> _Parts:
        state, settings, snapshots = opened.state, self._settings, SnapshotLog(directory)
        self._targets.write_as(state.id, self._settings.pipe_name)
        self._own_targets(directory, state)
        shows = functools.partial(current_sink_schema, state=state, settings=settings)
        follower = SchemaChangeFollower(
            opened.history,
            functools.partial(is_wanted, state, settings.selection),
            self._executor(directory, state, snapshots),
            settings.schema_changes,
            settings.pipe_name,
            functools.partial(self._check_tables, state),
            self._view,
        )
        reporter = Reporter(self._targets, settings.pipe_name, str(self._address), lambda: copier.incomplete, directory.seal)
        streaming = StreamRunner(
            self._address,
            self._targets,
            settings,
            self._view,
            directory,
            state,
            opened.history,
            follower,
            reached(directory, state),
            written(directory, state),
            reporter,
            self._targets.skips(directory.path, settings.pipe_name, settings.transforms),
        )
        copier = SnapshotRunner(
            self._address,
            self._targets,
            settings,
            self._view,
            directory,
            state,
            snapshots,
            shows,
            streaming.copying_task,
            self._stop.is_set,
        )
        resyncs = ResyncRunner(copier, opened.history, functools.partial(self._opening, directory), lambda: streaming.written)
        cleaner = TombstonePurger(
            self._targets,
            settings.pipe_name,
            lambda: [shows(table.schema) for table in list(state.tables.values())],
            lambda: copier.is_complete and resyncs.is_idle and not state.waiting,
        )
        return _Parts(settings, streaming, copier, resyncs, cleaner)

    def _check_tables(self, state: PipeState) -> None:
        with closing(retrying(lambda: connect(self._address))) as connection:
            check_tables(connection, self._address, list(state.tables))

    def _copy(self, session: Any, parts: _Parts) -> None:
        rows = parts.copier.log.rows
        try:
            with parts.streaming.reporter.beating():
                parts.copier.run(session, count_task_slots(session))
        except Interrupted:
            self._view.note("stopped during the snapshot; run again to go on")
        parts.streaming.reporter.copied(parts.streaming.reached, parts.copier.log.rows - rows)

    def _follow(self, session: Any, parts: _Parts, opened: StartedPipe, server: ServerIdentity) -> None:
        def ended() -> bool:
            return self._stop.is_set() or parts.is_finished(opened.target)

        def meanwhile(stream: ChangeStream) -> None:
            parts.resyncs.poll(session, stream.paused)
            parts.cleaner.poll(stream.paused)

        if ended():
            return
        source = MySQLSource(
            self._address,
            BinlogPosition.from_json(opened.state.start),
            self._relay(parts.streaming.directory, opened.state),
            self._settings.relay_bytes,
            replace(self._settings.limits, parallelism=count_task_slots(session), poll_seconds=_POLL_S),
            server.mariadb,
            server.identity,
            self._segment_access(session),
            parts.streaming.backlog.path,
        )
        try:
            parts.streaming.run(session, source, ended, meanwhile)
        finally:
            self._stop.set()
            parts.resyncs.wait()

    def _relay(self, directory: StateDirectory, state: PipeState) -> Path:
        """Where the log is mirrored. What a run that was killed left there is gone."""
        relay = directory.mirror(self._settings.relay, state.id)
        if self._settings.relay:
            shutil.rmtree(relay, ignore_errors=True)
        return relay

    def _segment_access(self, session: Any) -> SegmentAccess:
        """Where tasks find that mirror."""
        if is_local_session(session):
            return SegmentAccess.LOCAL
        return SegmentAccess.FETCH if always_fetches_segments(session) else SegmentAccess.LOCAL_OR_FETCH


class _Parts:
    """What an open pipe consists of."""

    def __init__(
        self, settings: PipeSettings, streaming: StreamRunner, copier: SnapshotRunner, resyncs: ResyncRunner, cleaner: TombstonePurger
    ) -> None:
        self._once, self.streaming, self.copier, self.resyncs, self.cleaner = settings.once, streaming, copier, resyncs, cleaner

    def is_finished(self, target: BinlogPosition) -> bool:
        return self._once and self.streaming.reached >= target and self.copier.is_complete and self.resyncs.is_idle
