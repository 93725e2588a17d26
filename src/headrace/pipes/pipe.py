"""A pipe from a MySQL server to a sink: checks, snapshot, stream, and going on where it stopped.

The order of things makes every crash harmless. The start position is saved before anything is read; a table's schema is saved before its
first row is written; a chunk counts as done after its rows are in the sink; a batch counts after Spark has checkpointed it. Whatever was
done but not yet noted is done again, and the sink's merge makes the second time a no-op.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.progress import ProgressView
from headrace.pipes.state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.pipes.takeover import forget_seen, note_seen, reached, take_over
from headrace.retry import retrying
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.capture import capture_schemas
from headrace.sources.mysql.connection import MySQLAddress, connect
from headrace.sources.mysql.decoder import ReadOptions
from headrace.sources.mysql.events import Query
from headrace.sources.mysql.locate import complete_gtid, resolve_start
from headrace.sources.mysql.origin import Limits, MySQLSource
from headrace.sources.mysql.position import BinlogPosition
from headrace.sources.mysql.preflight import ServerIdentity, check_server, check_tables
from headrace.sources.mysql.snapshot import CHUNK_ROWS, Chunk, plan_chunks
from headrace.sources.mysql.source import MySQLReader, Selection
from headrace.sources.mysql.statements import Effect, assess
from headrace.sources.mysql.watermark import log_end, note_position
from headrace.spark.session import java_pid, start_session, warm_workers
from headrace.spark.stream import ChangeStream, run_works
from headrace.spark.tasks import Report, Task

log = logging.getLogger("headrace")

_START_PATIENCE_S = 30.0
_PRELOAD = ("headrace.sources.mysql.source", "headrace.sinks.clickhouse.sink")


@dataclass(frozen=True, slots=True)
class PipeSettings:
    """What the user chose."""

    patterns: tuple[str, ...]
    state: Path
    once: bool = False
    start_at: str = ""
    """Replicate from there, without a snapshot: `now`, `oldest`, `FILE:OFFSET` or GTIDs (see `locate`)."""
    limits: Limits = field(default_factory=Limits)
    relay_bytes: int = 1 << 30
    chunk_rows: int = CHUNK_ROWS
    zero_dates_as_null: bool = False
    master: str = "local[2]"
    spark_log: bool = False


class Pipe:
    """One replication, from its checks to its end."""

    def __init__(self, address: MySQLAddress, sink: ClickHouseSink, sink_name: str, settings: PipeSettings, view: ProgressView) -> None:
        self._address, self._sink, self._sink_name, self._settings, self._view = address, sink, sink_name, settings, view
        self._selection = Selection(settings.patterns)
        self._options = ReadOptions(zero_dates_as_null=settings.zero_dates_as_null)
        self._stop = threading.Event()
        self._reached: BinlogPosition | None = None
        self._folds_case = False

    def stop(self) -> None:
        """Ask the pipe to end after what it is doing; safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Replicate until caught up (`once`) or asked to stop."""
        directory = StateDirectory(self._settings.state).acquire()
        try:
            self._run(directory)
        finally:
            directory.release()

    def _run(self, directory: StateDirectory) -> None:
        connection = retrying(lambda: connect(self._address), deadline_s=_START_PATIENCE_S)
        try:
            server = check_server(connection, self._address)
            self._folds_case = server.folds_case
            state, target = self._open_state(connection, directory, server)
            snapshot = self._plan_snapshot(connection, directory, state)
        finally:
            connection.close()
        self._view.note(f"replicating {len(state.tables)} tables from {self._address} ({server.flavour} {server.version})")
        directory.clear_scratch()
        self._reached = reached(directory, state)
        if not snapshot.pending() and self._is_finished(target):
            self._view.note(f"nothing new since {self._reached}")
            return
        session = start_session(self._settings.master, directory.path, spark_log=self._settings.spark_log, preload=_PRELOAD)
        try:
            directory.note_helper(java_pid(session))
            warm_workers(session)
            self._take_snapshot(session, directory, state, snapshot)
            self._stream(session, directory, state, server, target)
        finally:
            self._view.close()
            session.stop()
            directory.clear_scratch()

    # -- beginning

    def _open_state(
        self, connection: Connection[Any], directory: StateDirectory, server: ServerIdentity
    ) -> tuple[PipeState, BinlogPosition]:
        """The state to go on with, or a new one; and where the log stands now. Checks all before it creates or writes anything."""
        state = directory.load()
        seen: BinlogPosition | None = None
        if state is None:
            state = self._new_state(connection, server)
        else:
            self._check_state(state)
            take_over(connection, self._address, directory, state, server, rows_copied=bool(SnapshotLog(directory).done))
            if not self._settings.start_at:
                seen = note_position(connection, self._address, state.epoch)
                connection.commit()
        end = log_end(connection, self._address, state.epoch)
        for schema in self._capture(connection):
            if schema.name not in state.tables:
                # A table that came while we were away: its snapshot sees all that the log says of it up to `seen`. Otherwise every
                # statement since the start counts: a TRUNCATE between the start and now must not be passed over.
                rows_from = seen.to_json() if seen is not None else None
                state.tables[schema.name] = TableState(schema, rows_from or state.start, rows_from)
                state.gone.discard(schema.name)
        if not state.tables:
            raise DefiniteError(
                f"no table matches {', '.join(self._settings.patterns)}",
                place=str(self._address),
                hint="check --tables and the user's rights",
            )
        check_tables(connection, self._address, state.tables)
        retrying(
            lambda: self._sink.prepare([table.schema for table in state.tables.values()]),
            deadline_s=_START_PATIENCE_S,
        )
        directory.save(state)
        return state, end

    def _new_state(self, connection: Connection[Any], server: ServerIdentity) -> PipeState:
        if self._settings.start_at:
            start = resolve_start(connection, self._address, self._settings.start_at)
        else:
            start = note_position(connection, self._address, epoch=0)
            connection.commit()
            start = complete_gtid(connection, self._address, start)
        options = {"zero_dates_as_null": self._settings.zero_dates_as_null}
        return PipeState(
            str(self._address), server.identity, self._sink_name, self._settings.patterns, start.to_json(), start.epoch, options
        )

    def _check_state(self, state: PipeState) -> None:
        place = str(self._settings.state)
        if state.sink != self._sink_name:
            raise DefiniteError(
                f"the state belongs to another sink, {state.sink}", place=place, hint="use the state directory of this sink, or a new one"
            )
        if tuple(state.patterns) != self._settings.patterns:
            raise DefiniteError(
                f"the state was made with --tables {' '.join(state.patterns)}",
                place=place,
                hint="give the same --tables, or use a new state",
            )
        if state.options.get("zero_dates_as_null") != self._settings.zero_dates_as_null:
            raise DefiniteError("the state was made with another --zero-dates", place=place, hint="give the same one, or use a new state")

    def _capture(self, connection: Connection[Any], only: TableName | None = None) -> list[TableSchema]:
        wanted: Callable[[TableName], bool] = self._selection if only is None else (lambda name: name == only)
        schemas = capture_schemas(connection, self._address, wanted)
        return [schema.with_nullable_dates for schema in schemas] if self._settings.zero_dates_as_null else schemas

    # -- snapshot

    def _plan_snapshot(self, connection: Connection[Any], directory: StateDirectory, state: PipeState) -> SnapshotLog:
        snapshot = SnapshotLog(directory)
        for name, table in state.tables.items():
            if str(name) not in snapshot.planned:
                chunks = [] if self._settings.start_at else plan_chunks(connection, self._address, table.schema, self._settings.chunk_rows)
                snapshot.plan(name, [chunk.to_json() for chunk in chunks])
        return snapshot

    def _take_snapshot(self, session: Any, directory: StateDirectory, state: PipeState, snapshot: SnapshotLog) -> None:
        pending = [Chunk.from_json(raw) for raw in snapshot.pending()]
        if not pending:
            self._note_seen(directory, state)
            return
        forget_seen(directory, state)
        left = Counter(str(chunk.name) for chunk in pending)
        estimates = {table: sum(chunk["estimate"] for chunk in snapshot.planned[table]) for table in left}
        done = {table: estimates[table] - sum(chunk.estimate for chunk in pending if str(chunk.name) == table) for table in left}
        self._view.snapshot_begins(estimates, done)
        started, total = time.monotonic(), 0

        def on_done(work: dict[str, Any], reports: list[Report]) -> None:
            nonlocal total
            name = TableName(work["database"], work["table"])
            rows = sum(report.changes for report in reports)
            total += rows
            snapshot.finish(name, work["number"], rows)
            left[str(name)] -= 1
            self._view.snapshot_rows(str(name), rows, finished=not left[str(name)])
            if self._stop.is_set():
                raise _Stopped

        works = [{"kind": "chunk", **chunk.to_json()} for chunk in pending]
        try:
            run_works(session, self._task(state), works, _slots(self._settings.master), on_done)
        except _Stopped:
            self._view.note("stopped during the snapshot; run again to go on")
            return
        self._note_seen(directory, state)
        self._view.snapshot_ends(total, time.monotonic() - started)

    def _note_seen(self, directory: StateDirectory, state: PipeState) -> None:
        if not state.seen:
            connection = retrying(lambda: connect(self._address))
            try:
                note_seen(connection, self._address, directory, state)
            finally:
                connection.close()

    # -- stream

    def _stream(self, session: Any, directory: StateDirectory, state: PipeState, server: ServerIdentity, target: BinlogPosition) -> None:
        if self._stop.is_set() or self._is_finished(target):
            return
        source = MySQLSource(
            self._address,
            BinlogPosition.from_json(state.start),
            directory.relay,
            self._settings.relay_bytes,
            replace(self._settings.limits, parallelism=_slots(self._settings.master)),
            server.mariadb,
            server.identity,
        )
        on_batch = functools.partial(self._on_batch, directory, state)
        stream = ChangeStream(session, source, directory.checkpoint, lambda: self._task(state), on_batch)
        try:
            while not stream.wait(0.1):
                if self._stop.is_set() or self._is_finished(target):
                    break
        finally:
            stream.stop()
        self._view.note(f"stopped at {self._reached}")

    def _is_finished(self, target: BinlogPosition) -> bool:
        return self._settings.once and self._reached is not None and self._reached >= target

    def _task(self, state: PipeState) -> Task:
        schemas = {name: table.schema for name, table in state.tables.items()}
        keys = {name: self._sink.key_columns(schema) for name, schema in schemas.items()}
        since = {name: BinlogPosition.from_json(table.rows_from) for name, table in state.tables.items() if table.rows_from is not None}
        # A position in the log of a former server says nothing of this one, which is read from the committed transactions on.
        since = {name: position for name, position in since.items() if position.epoch == state.epoch}
        reader = MySQLReader(self._address, schemas, keys, self._selection, self._options, state.epoch, since, frozenset(state.gone))
        return Task(reader, self._sink, retrying)

    def _on_batch(self, directory: StateDirectory, state: PipeState, reports: list[Report]) -> None:
        for report in reports:
            if report.kind == "statement":
                self._follow_statement(directory, state, json.loads(report.detail))
        ends = [BinlogPosition.from_json(json.loads(report.detail)) for report in reports if report.kind == "done"]
        newest = max((report.commit_ts for report in reports), default=0)
        lag_s = max(time.time() - newest / 1e6, 0.0) if newest else 0.0
        if ends:
            self._reached = max(ends)
        self._view.batch(sum(report.changes for report in reports), lag_s, str(self._reached))

    def _follow_statement(self, directory: StateDirectory, state: PipeState, work: dict[str, Any]) -> None:
        query = Query(work["database"], work["statement"])
        position = BinlogPosition.from_json(work["offset"])
        found = assess(query, self._selection, folds_case=self._folds_case)
        if found.effect is Effect.NONE:
            log.debug("passing over a statement at %s: %s", position, query.statement)
            return
        for name in found.tables:
            known = [
                table for known, table in state.tables.items() if known == name or (name.table == "*" and known.database == name.database)
            ]
            if not known:
                if found.effect in (Effect.CREATED, Effect.REPLACED):
                    self._add_table(directory, state, name, position)
                elif found.effect is Effect.MOVED:
                    self._check_absent(name, query, position)
            elif any(position > BinlogPosition.from_json(table.captured_at) for table in known):
                self._check_unchanged(found.effect, known[0].schema, query, position)

    def _add_table(self, directory: StateDirectory, state: PipeState, name: TableName, position: BinlogPosition) -> None:
        """A new table: it was empty when it was made, so its changes in the log are all of it."""
        schemas = retrying(lambda: self._capture_now(name))
        state.gone.discard(name)
        if not schemas:
            state.gone.add(name)
            directory.save(state)
            self._view.note(f"new table {name} is gone already; its changes are left out")
            return
        retrying(lambda: self._sink.prepare(schemas))
        # Not the log's end: a later statement on the table, in the log already, must not be passed over.
        state.tables[name] = TableState(schemas[0], position.to_json())
        directory.save(state)
        SnapshotLog(directory).plan(name, [])
        self._view.note(f"new table {name}")

    def _capture_now(self, name: TableName) -> list[TableSchema]:
        """A table as it is now; nothing if it is gone."""
        connection = connect(self._address)
        try:
            return self._capture(connection, name)
        finally:
            connection.close()

    def _check_absent(self, name: TableName, query: Query, position: BinlogPosition) -> None:
        """A table that came to a replicated name brought rows with it that are in no log."""
        if retrying(lambda: self._capture_now(name)):
            raise DefiniteError(
                f"table {name} came with its rows: {query.statement}",
                place=str(position),
                hint="start Headrace again with the same state: it then takes a snapshot of the table and goes on",
            )

    def _check_unchanged(self, effect: Effect, schema: TableSchema, query: Query, position: BinlogPosition) -> None:
        keeps_rows = effect in (Effect.CREATED, Effect.ALTERED)
        if keeps_rows and retrying(lambda: self._capture_now(schema.name)) == [schema]:
            return
        raise DefiniteError(
            f"table {schema.name} was changed by a statement that is not followed yet: {query.statement}",
            place=str(position),
            hint="to start over with the table as it is now, remove the state directory and the target tables, then replicate again",
        )


class _Stopped(Exception):
    """The user asked to stop during the snapshot."""


def _slots(master: str) -> int:
    """How many tasks run at once; on a cluster, a guess that Spark corrects."""
    inside = master.partition("[")[2].rstrip("]")
    if inside == "*":
        return os.cpu_count() or 2
    return int(inside.split(",")[0]) if inside.split(",")[0].isdigit() else 8
