"""Streams a binlog into a sink: one Spark stream, its tasks, and the driver's work after each batch."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from headrace.errors import DefiniteError
from headrace.model.cascades import CascadePlan
from headrace.model.packed_mapping import PackedMapping
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import Pending
from headrace.pipes.lifecycle.sink_schema import hidden_in, transformer_for
from headrace.pipes.lifecycle.sink_tables import SinkTables, targets_of
from headrace.pipes.mysql.cascade_runner import CascadeRunner
from headrace.pipes.mysql.schema_follower import SchemaChangeFollower
from headrace.pipes.mysql.startup import committed_position, written_position
from headrace.pipes.state.event_skips import EventSkips
from headrace.retry import current_wait, retrying
from headrace.runtime.interface import LOOP_S, BatchStream, RuntimeSession
from headrace.runtime.reports import MarkReached, Report, SplitDone, StatementReached
from headrace.runtime.tasks import Task
from headrace.sinks.base import BatchCommit
from headrace.sources.base import Source
from headrace.sources.mysql.binlog.commit_times import BacklogFile, log_place
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import TableReadPlan, skip_tables
from headrace.sources.mysql.segments.skipped_events import is_passed, statement_place
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.split_reader import MySQLReader, SegmentRead
from headrace.sources.splits import StatementSplit


@dataclass(slots=True)
class StreamRunner:
    address: MySQLAddress | None
    """The server that snapshots are read from; None for binlog files."""
    context: PipeContext[SinkTables]
    follower: SchemaChangeFollower
    reporter: ProgressReporter
    skips: EventSkips
    cascades: CascadeRunner | None = None
    """Applies foreign keys to child tables; None for binlog files."""
    reached: BinlogPosition = field(init=False)
    planned: BinlogPosition = field(init=False)
    """The position up to which an earlier run may have written."""
    waited: frozenset[TableName] = frozenset()
    """Tables that awaited a resync when the view last got the list of tables."""
    _positions: dict[TableName, tuple[Mapping[str, Any], BinlogPosition]] = field(default_factory=dict, init=False)
    """The parsed positions at which tables were captured."""
    _last_task: tuple[tuple[object, ...], Task] | None = field(default=None, init=False)
    """The task of the last batch, and what it was made from."""
    backlog: BacklogFile = field(init=False)
    """What the relay has received."""

    def __post_init__(self) -> None:
        directory, state = self.context.directory, self.context.state
        self.reached, self.planned = committed_position(directory, state), written_position(directory, state)
        self.backlog = BacklogFile(directory.path / "relay" / f"backlog-{secrets.token_hex(8)}")
        self.reporter.backlog = self.pending

    def pending(self) -> Pending | None:
        """Return the changes that are not visible in the sink yet; None until the relay has read from the source."""
        found = self.backlog.read()
        if found is None:
            return None
        since_us = found.pending_since(log_place(self.reached.file, self.reached.offset), time.time_ns() // 1000)
        return Pending(None if since_us is None else since_us / 1e6)

    @property
    def written(self) -> BinlogPosition:
        """The position up to which the stream may have written."""
        return max(self.reached, self.planned)

    def run(self, session: RuntimeSession, source: Source, ended: Callable[[], bool], meanwhile: Callable[[BatchStream], None]) -> None:
        """Stream until `ended`; `meanwhile` is called in every loop."""
        stream = session.stream_changes(source, self.context.directory.checkpoint, self._task, self._on_batch)
        try:
            with self.reporter.heartbeats():
                while not stream.wait(LOOP_S) and not ended():
                    meanwhile(stream)
                    self.context.view.waiting(current_wait().current())
                    self.context.view.pending(self.pending())
        finally:
            stream.stop()
            self.context.view.pending(self.pending())
            self.backlog.path.unlink(missing_ok=True)
        self.context.view.note(f"stopped at {self.reached}")

    def snapshot_task(self, names: Collection[TableName]) -> Task:
        """Return a task that reads these tables with their current schemas. Other tables are left out: a pipe may have thousands."""
        schemas = {name: table.schema for name, table in self.context.state.tables.items() if name in names}
        return self._task_for(schemas, reached=self.written)

    def _task(self) -> Task:
        """Return the task of the next batch. Tables have the schemas that they had where the last batch ended."""
        # Starting a batch proves that the previous one is committed.
        self.skips.drop_passed(lambda place: is_passed(place, self.reached))
        schemas = self._schemas()
        repeats = self.reached < self.planned
        cascades = self.cascades.begin(schemas, self.reached, is_committed=not repeats) if self.cascades is not None else None
        made_from = self._inputs(schemas, cascades, repeats=repeats)
        if self._last_task is None or self._last_task[0] != made_from:
            self._last_task = made_from, self._task_for(schemas, cascades, repeats=repeats)
        return self._last_task[1]

    def _inputs(self, schemas: Mapping[TableName, TableSchema], cascades: CascadePlan | None, *, repeats: bool) -> tuple[object, ...]:
        """Return everything that a task depends on. Equal inputs are nearly always identical objects, which compare fast."""
        state, targets = self.context.state, self.context.targets
        return (
            tuple(schemas.items()),
            tuple((table.rows_from, table.hidden) for table in state.tables.values()),
            (frozenset(state.awaiting_resync), frozenset(state.ignored), dict(state.dropped_tables)),
            (tuple(state.selection["added"]), state.epoch, self.skips.pending),
            (cascades, targets.sink, targets.applies_cascades, targets.cascade_parents, repeats),
        )

    def settle_cascades(self) -> None:
        """Apply the kept changes of parents to rows that were read since. If a batch is to be repeated, that follows the batch."""
        if self.cascades is not None and not self.reached < self.planned:
            self.cascades.begin(self._schemas(), self.reached, is_committed=True)
            self.cascades.apply()

    def _apply_statement(self, query: Query, position: BinlogPosition, left_out: TableName | None) -> None:
        """Apply a statement to the sink, or skip it if the user asked for that."""
        if self.cascades is not None:
            self.cascades.before_statement(query, position)
        place = statement_place(position)
        if place in self.skips.pending:
            self.follower.skip(query, position, left_out)
            self.skips.record_skipped([{"place": place, "table": query.database, "content": query.statement}])
            return
        try:
            self.follower.apply(query, position, left_out)
        except DefiniteError as error:
            raise DefiniteError(error.message, place=error.place, hint=error.hint, event=error.event or place) from error

    def _schemas(self) -> dict[TableName, TableSchema]:
        """Return the schemas of all tables where the last batch ended."""
        defined = self.follower.history.as_of(self.reached)
        return {name: self._defined(name, defined) for name in self.context.state.tables}

    def _defined(self, name: TableName, defined: SchemaCatalog) -> TableSchema:
        table = self.context.state.tables[name]
        known = self._positions.get(name)
        if known is None or known[0] is not table.captured_at:
            known = self._positions[name] = table.captured_at, BinlogPosition.from_json(table.captured_at)
        return table.schema if known[1] > self.reached or name not in defined.tables else defined.tables[name]

    def _task_for(
        self,
        schemas: dict[TableName, TableSchema],
        cascades: CascadePlan | None = None,
        *,
        repeats: bool = False,
        reached: BinlogPosition | None = None,
    ) -> Task:
        """Return a task that reads these tables. `repeats`: an earlier run may have written some of its blocks.

        `reached`: the position up to which the stream may have written, for a task that reads a snapshot.
        """
        logged = cascades.logged if cascades is not None else {}
        state = self.context.state
        # Nothing is read for waiting tables: their targets may not have their columns.
        schemas = {name: schema for name, schema in schemas.items() if name not in state.awaiting_resync}
        found = state.dropped_tables | {name: table.rows_from for name, table in state.tables.items() if name in schemas}
        starts = {name: BinlogPosition.from_json(position) for name, position in found.items() if position is not None}
        # A position in a former server's log means nothing in this log, which starts at the committed transactions.
        starts = {name: position for name, position in starts.items() if position.epoch == state.epoch}
        # Names that were dropped in a former server's log are skipped entirely: the statement comes again in this log.
        lost = {name for name, place in state.dropped_tables.items() if BinlogPosition.from_json(place).epoch != state.epoch}
        resolver = self.context.schemas
        transform_plans = {name: resolver.transform_plan(schema, hidden_in(state, name)) for name, schema in schemas.items()}
        written = [plan.schema for plan in transform_plans.values()]
        needs = self.context.targets.requirements(written)
        plans = {name: TableReadPlan(None, skip_before=start) for name, start in starts.items()}
        for name, need in needs.items():
            schema, key = schemas[name].with_zero_dates(self.context.settings.zero_dates), transform_plans[name].moving(need.key_columns)
            if key:
                # Without a key every update comes with its before image.
                key = tuple(dict.fromkeys((*key, *logged.get(name, ()))))
            plans[name] = TableReadPlan(schema, key, starts.get(name), ordered=need.ordered, exact=need.exact)
        reader = MySQLReader(
            self.address,
            PackedMapping(skip_tables(plans, state.awaiting_resync | state.ignored | lost)),
            self.context.selection,
            ReadOptions(
                zero_dates=self.context.settings.zero_dates,
                transactions=any(need.transactions for need in needs.values()),
                foreign_key_checks=frozenset(logged),
                projection=state.projection(self.context.settings.projection),
            ),
            state.epoch,
            reached,
            self.skips.pending,
            state.identity,
        )
        retry = functools.partial(retrying, deadline_s=self.context.settings.retry_timeout_s)
        sink = self.context.targets.sink.with_tables(written)
        if cascades:
            sink = sink.with_cascades(cascades)
        return Task(
            reader, sink.for_replay() if repeats else sink, retry, transformer_for(self.context.settings, transform_plans.values(), needs)
        )

    def _on_batch(self, reports: list[Report]) -> None:
        ends: list[BinlogPosition] = []
        skipped: list[Mapping[str, str]] = []
        statements: list[StatementSplit] = []
        for report in reports:
            match report:
                case SplitDone():
                    result = report.result_of(SegmentRead)
                    ends.append(BinlogPosition.from_json(result.until))
                    skipped += result.skipped
                case MarkReached():
                    ends.append(BinlogPosition.from_json(report.until))
                case StatementReached():
                    statements.append(report.statement)
                case _:
                    assert_never(report)
        self.skips.record_skipped(skipped)
        if ends:
            if self.cascades is not None:
                self.cascades.apply()
            self.context.targets.commit_batch(BatchCommit(str(max(ends)), max(ends).version))
        for split in statements:
            self._apply_statement(Query.from_json(split.query), BinlogPosition.from_json(split.offset), split.created_with_rows)
        # A resync recreates a target without a statement.
        if statements or self.waited != self.context.state.awaiting_resync:
            self.waited = frozenset(self.context.state.awaiting_resync)
            self.context.view.tables(targets_of(self.context.targets, self.context.written_tables))
        if ends:
            self.reached = max(ends)
            self.context.view.pending(self.pending())
        self.reporter.batch_written(self.reached, reports, self.context.view)
