"""Plans snapshots of tables, reads them as Spark jobs, and deletes rows that the source no longer has.

A snapshot runs before the stream or alongside it. Each finished chunk is recorded, so an interrupted snapshot continues. A row's version is
the position at which it was read, so it never hides a later change. If the target held rows before, rows that neither the snapshot nor a
later change wrote are deleted at the end.

Some tables must be read exactly at one position, because a row image that arrives twice would count twice (`TableRequirements.exact`). The
stream is paused meanwhile, rows of a failed attempt are discarded, and changes before the position are skipped. Such a table is one chunk,
or, in a consistent snapshot, chunks of one point in time.
"""

from __future__ import annotations

import functools
import glob
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.context import PipeContext, SnapshotInterrupted
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.mysql.startup import clear_snapshot_gtids, store_snapshot_gtids
from headrace.pipes.mysql.table_snapshots import TableSnapshots
from headrace.pipes.state.pipe_state import TableState
from headrace.pipes.state.resync_requests import request_resync
from headrace.retry import bind_context, current_wait, retrying
from headrace.runtime.interface import STOP_TIMEOUT_S, OnSplitDone, RuntimeSession
from headrace.runtime.reports import SplitDone, filtered_rows
from headrace.runtime.tasks import SplitGroup, Task
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import RESHAPED_TABLES
from headrace.sinks.base import BatchCommit, TableRequirements
from headrace.sources.base import Split
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, ReadSpan, estimate_rows, plan_chunks, snapshot_place
from headrace.sources.mysql.snapshot.locked_snapshot import ConsistentSnapshot, Rendezvous, SnapshotPoint
from headrace.sources.mysql.split_reader import ChunkSplit, ConsistentSplit
from headrace.stage_report import count_stage, enter_stage

Pause = Callable[[], AbstractContextManager[object]]
"""Keeps the stream from starting a batch."""

_ATTEMPTS = 8
_GROUPED = 64
"""The maximum number of small chunks in one Spark job."""
_NOTE_EVERY_S = 1.0
"""How often the positions of exact tables are saved."""
_LEAST_JOBS = 8
"""A snapshot has at least this many jobs per slot, so that all slots stay busy until its end."""


_CONSISTENT_SNAPSHOT_LOCK = threading.Lock()
"""Readers of a consistent snapshot hold Spark slots until all have arrived: two such snapshots at once could block each other."""


@dataclass(frozen=True, slots=True)
class SnapshotRunner:
    address: MySQLAddress
    context: PipeContext[SinkTables]
    snapshots: TableSnapshots
    task: Callable[[Set[TableName]], Task]
    """Returns a task that reads these tables."""
    written: Callable[[], BinlogPosition]
    """Returns the position up to which the stream may have written."""
    settle: Callable[[], None] = lambda: None
    """Applies to the rows that were read what the stream has kept for them. The stream is paused."""

    def plan(self, connection: Connection[Any]) -> None:
        """Plan the snapshots that are not planned yet, and create or complete the target tables."""
        unplanned = [
            (name, table)
            for name, table in self.context.state.tables.items()
            # A waiting table is planned with its resync request.
            if name not in self.context.state.awaiting_resync and not self.snapshots.log.is_planned(name, table.snapshot)
        ]
        self.context.targets.check_target_conflicts(self.context.written_tables)
        replaced = [table for _, table in unplanned if table.snapshot]
        for table in count_stage("replacing target tables", replaced, "tables"):
            retrying(functools.partial(self.context.targets.replace, self.context.sink_schema(table.schema)))
        self.prepare()
        # One request fetches all target tables, so that each plan finds its own in the cache.
        retrying(lambda: self.context.targets.requirements(self.context.written_tables))
        for name, table in count_stage("planning the snapshot", unplanned, "tables"):
            self._truncate_reshaped(name, table)
            self._plan_table(connection, name, table)
        reshaped = self.context.state.options.get(RESHAPED_TABLES, [])
        if reshaped and unplanned:
            planned = {str(name) for name, _ in unplanned}
            self.context.state.options[RESHAPED_TABLES] = [name for name in reshaped if name not in planned]
            self.context.directory.save(self.context.state)

    def _truncate_reshaped(self, name: TableName, table: TableState) -> None:
        """Empty a table whose transforms changed: its old and new rows may have the same version."""
        if str(name) not in self.context.state.options.get(RESHAPED_TABLES, ()) or self.context.targets.append_only:
            return
        schema, position = self.context.sink_schema(table.schema), BinlogPosition.from_json(table.captured_at)
        plan = retrying(lambda: self.context.targets.sink.schema_applier().plan_emptying(schema, position.version))
        for step in plan.steps:
            retrying(functools.partial(self.context.targets.run_step, step, [name]))
        self.context.view.note(f"{name} was emptied: its rows come again, transformed otherwise")

    def prepare(self) -> None:
        """Create or complete every target table."""
        # The targets of waiting tables are prepared when their resync is planned.
        schemas = self.context.written_tables
        enter_stage(f"preparing {len(schemas)} target tables")
        retrying(lambda: self.context.targets.prepare(schemas), deadline_s=self.context.settings.retry_timeout_s)

    def _plan_table(self, connection: Connection[Any], name: TableName, table: TableState) -> None:
        chunks: list[Chunk] = []
        had_rows = bool(table.snapshot) or table.rows_from is not None
        # A table whose earlier changes are skipped must be read, even with `--snapshot none`.
        if self.context.settings.snapshot is not SnapshotMode.NONE or had_rows:
            chunks = self._chunks(connection, table)
            self._check_empty(table)
            self._check_versions(table)
        else:
            # Existing rows that come from this log have no versions above its end.
            end = BinlogPosition.from_json(self.context.state.schemas_captured_at or table.captured_at)
            self.context.targets.check_versions(self.context.sink_schema(table.schema), end.version)
        stale_before = table.captured_at if had_rows and chunks else None
        self.snapshots.log.plan(name, table.snapshot, [chunk.to_json() for chunk in chunks], stale_before)

    def _chunks(self, connection: Connection[Any], table: TableState) -> list[Chunk]:
        # Use the source's schema: in the sink, key columns may be renamed or hashed.
        schema = table.schema
        if self._requirements(table).exact and self.context.settings.snapshot is not SnapshotMode.CONSISTENT:
            return [Chunk(schema.name.database, schema.name.table, 0, "", max(estimate_rows(connection, self.address, schema.name), 1))]
        return plan_chunks(connection, self.address, schema, self.context.settings.chunk_rows)

    def _check_empty(self, table: TableState) -> None:
        """Refuse a non-empty target whose engine sums rows: existing rows would be counted with the source's."""
        schema = self.context.sink_schema(table.schema)
        targets = self.context.targets
        if not table.snapshot and self._requirements(table).emptied and retrying(lambda: targets.holds_rows(schema)):
            raise DefiniteError(
                f"the target of {schema.name} holds rows already, and its engine adds rows up: they would be counted with the source's",
                place=f"table {schema.name}",
                hint="TRUNCATE the target table, choose another, or start without a snapshot (--snapshot none) if the rows belong there",
            )

    def _check_versions(self, table: TableState) -> None:
        """Refuse existing rows with versions above the snapshot: they would hide the source's rows."""
        if table.snapshot:
            return
        schema, position = self.context.sink_schema(table.schema), BinlogPosition.from_json(table.captured_at)
        newest = self.context.targets.check_versions(schema, position.version)
        if newest is not None:
            self.context.view.note(
                f"the target of {schema.name} holds rows already; those that the source has not stay, until headrace resync takes them away"
            )

    def _requirements(self, table: TableState) -> TableRequirements:
        return self.context.targets.requirements([self.context.sink_schema(table.schema)])[table.schema.name]

    def run(self, session: RuntimeSession, parallelism: int, pause: Pause = nullcontext) -> None:
        """Read the remaining chunks, `parallelism` at a time, then delete stale rows. `pause` keeps the stream from starting a batch."""
        pending = self.snapshots.pending()
        if pending:
            with pause():
                clear_snapshot_gtids(self.context.directory, self.context.state)
            self._read_all(session, pending, parallelism, pause)
        for name in [name for name, snapshot in self.snapshots.readable() if snapshot.stale_before is not None]:
            # No statement may alter the table between the check and the deletion.
            with pause():
                self._delete_stale(name)
        # An earlier process may have ended before this step.
        with pause():
            self.settle()
        if not self.context.state.uncheckpointed_gtids:
            with closing(retrying(self._connect)) as connection, pause():
                store_snapshot_gtids(connection, self.address, self.context.directory, self.context.state)

    def _connect(self) -> Connection[Any]:
        """Connect to the server that the state belongs to; raise if another one answers."""
        return connect(self.address, identity=self.context.state.identity)

    def _delete_stale(self, name: TableName) -> None:
        """Delete the rows that the completed snapshot did not write."""
        snapshot = self.snapshots.of(name) if name not in self.context.state.awaiting_resync else None
        if snapshot is None or snapshot.stale_before is None or snapshot.pending:
            return
        table, version = self.context.state.tables[name], BinlogPosition.from_json(snapshot.stale_before).version
        needs = self._requirements(table)
        if not (needs.emptied or needs.keeps):
            retrying(functools.partial(self.context.targets.delete_stale, self.context.sink_schema(table.schema), version))
        self.snapshots.log.mark_stale_deleted(name)

    def _read_all(self, session: RuntimeSession, pending: Sequence[Chunk], parallelism: int, pause: Pause) -> None:
        """Read chunks. A table that was altered since it was planned is postponed; the other tables continue."""
        while pending:
            try:
                self._read(session, pending, parallelism, pause)
                return
            except DefiniteError as error:
                names, left = {chunk.name for chunk in pending}, {chunk.name for chunk in self.snapshots.pending()}
                altered = self._altered(left) | {name for name in left if error.place == snapshot_place(name)}
                # A table that a statement postponed or recreated has no chunks left.
                if not altered and left == names:
                    raise
                if altered:
                    self._postpone(altered, error, pause)
                pending = self.snapshots.pending()

    def _altered(self, names: set[TableName]) -> set[TableName]:
        """Return the tables whose schemas differ from the state."""
        with closing(retrying(self._connect)) as connection:
            found = {schema.name: schema for schema in capture_schemas(connection, self.address, names.__contains__)}
        tables = self.context.state.tables
        return {name for name in names if name not in tables or found.get(name) != tables[name].schema}

    def _postpone(self, names: set[TableName], error: DefiniteError, pause: Pause) -> None:
        with pause():
            # A statement may have dropped some of them.
            names = {name for name in names if name in self.context.state.tables}
            if not names:
                return
            # Write the request before the state: a crash in between must not leave a table that waits for no request.
            request_resync(self.context.directory, tuple(glob.escape(str(name)) for name in sorted(names)))
            if not self.context.targets.append_only:
                self.context.state.awaiting_resync |= names
                self.context.directory.save(self.context.state)
            for name in names:
                self.snapshots.log.plan(name, self.snapshots.log.tables[str(name)].number, [])
        tables = ", ".join(map(str, sorted(names)))
        self.context.view.note(f"{tables} changed while being read, and will be read again: {error.message}")

    def _read(self, session: RuntimeSession, pending: Sequence[Chunk], parallelism: int, pause: Pause) -> None:
        names = {chunk.name for chunk in pending}
        tables = [self.context.state.tables.get(name) for name in names]
        exact = {table.schema.name for table in tables if table is not None and self._requirements(table).exact}
        left = Counter(str(chunk.name) for chunk in pending)
        estimates = {table: sum(chunk["estimate"] for chunk in self.snapshots.log.tables[table].chunks) for table in left}
        done = Counter(estimates)
        for chunk in pending:
            done[str(chunk.name)] -= chunk.estimate
        self.context.view.snapshot_begins(estimates, done)
        started, total = time.monotonic(), 0
        numbers = {name: self.snapshots.log.tables[str(name)].number for name in names}
        unnoted: list[tuple[Chunk, int, ReadSpan]] = []
        noted_at = started

        def finish(chunk: Chunk, count: int, span: ReadSpan) -> None:
            if not self.snapshots.log.is_planned(chunk.name, numbers[chunk.name]):
                # A statement ended this snapshot. A later one of the table may have chunks with the same numbers.
                return
            self.snapshots.log.finish(chunk.name, chunk.number, count, span.until.to_json())
            left[str(chunk.name)] = len(self.snapshots.log.tables[str(chunk.name)].pending)
            self.context.view.snapshot_rows(str(chunk.name), count, finished=not left[str(chunk.name)])

        def note_exact() -> None:
            """Save the positions of exact tables before their chunks count as done: a crash in between repeats the read."""
            nonlocal noted_at
            self._save_exact_positions({chunk.name: span.position.to_json() for chunk, _, span in unnoted}, pause)
            while unnoted:
                finish(*unnoted.pop(0))
            noted_at = time.monotonic()

        def on_done(split: Split, report: SplitDone) -> None:
            assert isinstance(split, ChunkSplit | ConsistentSplit)
            nonlocal total
            rows = {one.table: one.changes for one in report.written}
            total += sum(rows.values())
            self.context.view.filtered(filtered_rows(report.written))
            span = report.result_of(ReadSpan)
            self.context.targets.commit_batch(BatchCommit(str(span.position), span.position.version, snapshot=True))
            for chunk in split.chunks:
                # Chunks that were read together have one row count.
                read = chunk, rows.pop(str(chunk.name), 0), span
                if chunk.name in exact:
                    unnoted.append(read)
                else:
                    finish(*read)
            # The state of a pipe with thousands of tables has megabytes, so it is not saved after each table.
            if unnoted and time.monotonic() - noted_at > _NOTE_EVERY_S:
                note_exact()
            if self.context.is_stopping():
                raise SnapshotInterrupted

        merging = [chunk for chunk in pending if chunk.name not in exact]
        together = self.context.settings.snapshot is SnapshotMode.CONSISTENT
        if not (together and exact):
            self._run(session, merging, parallelism, on_done)
        if exact:

            def attempt() -> None:
                again = self._restart(exact)
                also = [chunk for chunk in self.snapshots.pending() if chunk.name not in exact] if together else []
                try:
                    self._run(session, also + again, parallelism, on_done)
                except (HeadraceError, SnapshotInterrupted):
                    note_exact()
                    raise
                note_exact()

            # The stream is paused: changes that it writes to such a table would count twice.
            with pause(), self._abandoning(exact):
                retrying(attempt, deadline_s=math.inf, attempts=_ATTEMPTS)
        self.context.view.snapshot_ends(total, time.monotonic() - started)

    @contextmanager
    def _abandoning(self, exact: Set[TableName]) -> Iterator[None]:
        """Record the exact tables whose attempt an error ends, before the stream continues. A killed process records none."""
        log = self.snapshots.log
        restarts = {name: log.tables[str(name)].restarts for name in exact}
        try:
            yield
        except Exception:
            for name in sorted(exact):
                # A table that was not restarted here still holds the rows of the attempt before.
                if log.tables[str(name)].restarts != restarts[name] and log.tables[str(name)].pending:
                    log.abandon(name)
            raise

    def _restart(self, exact: Set[TableName]) -> list[Chunk]:
        """Restart the incomplete exact tables and return their chunks, which are all read at one position."""
        again: list[Chunk] = []
        # A statement may have dropped or postponed one of them while the others were read.
        for name in sorted(exact & dict(self.snapshots.readable()).keys()):
            table, planned = self.context.state.tables[name], [Chunk.from_json(raw) for raw in self.snapshots.log.tables[str(name)].chunks]
            if not self.snapshots.log.tables[str(name)].pending:
                continue
            if len(planned) > 1 and self.context.settings.snapshot is not SnapshotMode.CONSISTENT:
                planned = [replace(planned[0], where="", estimate=sum(chunk.estimate for chunk in planned))]
            since, written = BinlogPosition.from_json(table.captured_at).version, self.written().version
            snapshot = self.snapshots.log.tables[str(name)]
            first = snapshot.attempted_from if snapshot.restarts else max(since, written)
            attempted_from = since if first is None else first
            if first is not None and not snapshot.is_abandoned:
                # The stream wrote nothing after the attempt, although Spark may have planned a batch meanwhile.
                written = attempted_from
            schema = self.context.sink_schema(table.schema)
            retrying(functools.partial(self.context.targets.discard_partial_snapshot, schema, since, attempted_from, written))
            self.snapshots.log.restart(name, [chunk.to_json() for chunk in planned], attempted_from)
            again += planned
        return again

    def _run(self, session: RuntimeSession, chunks: Sequence[Chunk], parallelism: int, on_done: OnSplitDone) -> None:
        if not chunks:
            return
        if self.context.settings.snapshot is SnapshotMode.CONSISTENT:
            self._run_consistent(session, chunks, parallelism, on_done)
        else:
            session.run_groups(self._groups(chunks, parallelism), parallelism, on_done, self._stopper())

    def _groups(self, chunks: Sequence[Chunk], parallelism: int) -> list[SplitGroup]:
        """Group chunks into Spark jobs: a job costs more than a small chunk, and each carries the schemas of its tables."""
        most = min(_GROUPED, len(chunks) // (parallelism * _LEAST_JOBS))
        groups: list[list[Chunk]] = []
        rows = 0
        for chunk in chunks:
            apart = not groups or len(groups[-1]) >= most or rows + chunk.estimate > self.context.settings.chunk_rows
            # Spark must not repeat a task that reads exact tables, so these get groups of their own.
            if apart or self._is_exact(chunk) != self._is_exact(groups[-1][-1]):
                groups.append([])
                rows = 0
            groups[-1].append(chunk)
            rows += chunk.estimate
        return [self._group(group) for group in groups]

    def _group(self, chunks: Sequence[Chunk]) -> SplitGroup:
        splits = [ChunkSplit(chunk, self._is_exact(chunk)) for chunk in chunks]
        return SplitGroup(self.task({chunk.name for chunk in chunks}), splits)

    def _is_exact(self, chunk: Chunk) -> bool:
        table = self.context.state.tables.get(chunk.name)
        return table is not None and self._requirements(table).exact

    def _stopper(self) -> Callable[[], None]:
        """Return a callback that interrupts the jobs of a stopping pipe if a server is unavailable or the jobs take long.

        Jobs may take long without waiting themselves: a pipe whose server is unavailable may hold the Spark slots.
        """
        stop_polls: list[float] = []

        def stop_if_waiting() -> None:
            if self.context.is_stopping():
                stop_polls.append(time.monotonic())
                if current_wait().current() is not None or stop_polls[-1] - stop_polls[0] > STOP_TIMEOUT_S:
                    raise SnapshotInterrupted

        return stop_if_waiting

    def _run_consistent(self, session: RuntimeSession, pending: Sequence[Chunk], parallelism: int, on_done: OnSplitDone) -> None:
        """Read all chunks at one point in time. Each reader that runs at once gets a share of the chunks."""
        readers = min(parallelism, len(pending))
        rendezvous = Rendezvous(readers)
        once = any(map(self._is_exact, pending))
        splits = [ConsistentSplit(rendezvous, reader, tuple(pending[reader::readers]), once) for reader in range(readers)]
        tables = sorted({chunk.name for chunk in pending})
        with self._exclusive_consistent_snapshot(), ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-moment") as pool:
            taken = pool.submit(bind_context(self._take_consistent_snapshot), rendezvous, tables)
            groups = [SplitGroup(self.task(set(tables)), [split]) for split in splits]
            session.run_groups(groups, readers, on_done, self._stopper())
            moment = taken.result()
        self.context.view.note(f"snapshot: all tables as of {moment.position}; they were locked for {moment.locked_s * 1e3:.1f} ms")

    @contextmanager
    def _exclusive_consistent_snapshot(self) -> Iterator[None]:
        while not _CONSISTENT_SNAPSHOT_LOCK.acquire(timeout=0.2):
            if self.context.is_stopping():
                raise SnapshotInterrupted
        try:
            yield
        finally:
            _CONSISTENT_SNAPSHOT_LOCK.release()

    def _take_consistent_snapshot(self, rendezvous: Rendezvous, tables: Sequence[TableName]) -> SnapshotPoint:
        with ConsistentSnapshot(self.address, rendezvous, tables, self.context.state.epoch, self.context.state.identity) as snapshot:
            return snapshot.take(lambda: not self.context.is_stopping())

    def _save_exact_positions(self, read: Mapping[TableName, dict[str, Any]], pause: Pause) -> None:
        """Save the positions at which tables were read, so that the stream skips their earlier changes."""
        with pause():
            tables = self.context.state.tables
            noted = {name: position for name, position in read.items() if name in tables and not self._sends_earlier_changes(name)}
            for name, position in noted.items():
                tables[name].rows_from = position
            if noted:
                self.context.directory.save(self.context.state)
            for name, position in noted.items():
                self.snapshots.log.set_stale_before(name, position)

    def _sends_earlier_changes(self, name: TableName) -> bool:
        """Whether earlier changes must be sent: an append-only target retains rows of failed attempts, also deleted ones."""
        return self.context.targets.append_only and (
            self.context.state.tables[name].concurrent_resync or self.snapshots.log.tables[str(name)].restarts > 1
        )
