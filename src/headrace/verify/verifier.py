"""Compares every table of a source with its copy on a live pipe: by digests, then by rows where those differ.

The order: wait until the pipe has reached the end of the source's log; compute the digests of every region on both sides; find the rows
that differ in regions that differ (`region_reader`); recheck those rows until it is certain that they differ and are not only behind
(`recheck`); repair them if requested (`repair`). The first two passes run as tasks in threads or on Spark (`region_tasks`); the rest
concerns few rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.digest import Digest
from headrace.model.projection import Projection
from headrace.model.schema import TableSchema, ZeroDates
from headrace.model.table_selection import Selection
from headrace.runtime.interface import Runtime
from headrace.shutdown import temporary_directory
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect, is_mariadb, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import log_end, note_position
from headrace.stage_report import count_stage, enter_stage
from headrace.transforms.block_transform import BlockTransformer
from headrace.transforms.options import Transforms, read_salts
from headrace.transforms.transform_plan import TransformPlan, plan_transform
from headrace.verify.recheck import Rechecker, RecheckResult
from headrace.verify.region_reader import Endpoints, Findings, RegionReader
from headrace.verify.region_tasks import Answer, RegionTask, RegionTaskKind, RuntimeTaskRunner, TaskRunner, ThreadTaskRunner
from headrace.verify.regions import CHUNK_ROWS, Region, Sample, plan_regions
from headrace.verify.repair import Repairer, refusal
from headrace.verify.result import TableResult, Verdict
from headrace.verify.row_compare import Comparison, distinct
from headrace.verify.table_spec import TableComparison, describe
from headrace.verify.view import LineView, VerifyView
from headrace.verify.watermark import PipePosition, Watermark, has_reached, stands_at

_SPARK_ROWS: Final = 5_000_000
_VISIBLE_WITHIN_S: Final = 30.0
_COMMITTED_S: Final = 1.0
_POLL_S: Final = 0.05
_STILL_READ: Final = "its rows are still being read; verify it when that is done"
_PRELOAD: Final = ("headrace.verify.region_tasks",)


class SparkUse(StrEnum):
    """Where regions are compared."""

    AUTO = "auto"
    """On Spark if there are many rows; starting Spark takes longer than comparing few."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    projection: Projection = field(default_factory=Projection)
    zero_dates: ZeroDates = ZeroDates.HALT
    chunk_rows: int = CHUNK_ROWS
    sample: Sample | None = None
    repair: bool = False
    recheck: bool = True
    """Whether differing rows are rechecked after a while when no pipe is watched."""
    spark: SparkUse = SparkUse.AUTO
    master: str = "local[2]"
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    slots: int = min(os.cpu_count() or 2, 4)
    transforms: Transforms = field(default_factory=Transforms)
    """The pipe's transforms."""

    def transform_plan(self, schema: TableSchema) -> TransformPlan:
        """Return the sink's schema of a source table and its transform plan."""
        return plan_transform(self.transforms.of(schema.name), self.projection.project(schema.with_zero_dates(self.zero_dates)))


def _spark_runtime() -> Runtime:
    # A small comparison does not load Spark.
    from headrace.spark.spark_runtime import SparkRuntime

    return SparkRuntime()


def verify_tables(
    address: MySQLAddress,
    sink: ClickHouseSink,
    selection: Selection,
    options: VerifyOptions | None = None,
    *,
    watermark: Watermark[BinlogPosition] | None = None,
    view: VerifyView | None = None,
    runtime: Callable[[], Runtime] = _spark_runtime,
) -> Iterator[TableResult]:
    """Compare the selected tables; yield each result as soon as it is certain."""
    chosen = options or VerifyOptions()
    with closing(connect(address)) as connection:
        transform_plans = [chosen.transform_plan(schema) for schema in capture_schemas(connection, address, selection)]
    if not transform_plans:
        raise DefiniteError(f"no table matches {selection}", place=str(address), hint="check --tables and the user's rights")
    transformed = any(not plan.is_plain for plan in transform_plans)
    transformer = BlockTransformer(chosen.transforms, read_salts(chosen.transforms)) if transformed else None
    sides = Endpoints(address, sink, chosen.zero_dates, transformer)
    yield from _Verification(sides, chosen, watermark, view or LineView(), runtime).run(transform_plans)


class _Verification:
    def __init__(
        self,
        sides: Endpoints,
        options: VerifyOptions,
        watermark: Watermark[BinlogPosition] | None,
        view: VerifyView,
        runtime: Callable[[], Runtime],
    ) -> None:
        self._sides, self._options, self._watermark, self._view, self._runtime = sides, options, watermark, view, runtime
        self._pipe_position: PipePosition[BinlogPosition] | None = None
        self._source_end: BinlogPosition | None = None
        self._started = time.monotonic()

    def run(self, transform_plans: Sequence[TransformPlan]) -> Iterator[TableResult]:
        self._await_pipe()
        present: list[TransformPlan] = []
        for plan in count_stage("looking for target tables", transform_plans, "tables"):
            missing = self._unready(plan)
            if missing is None:
                present.append(plan)
            else:
                yield missing
        tables = [describe(plan.schema, self._sides.sink, self._sides.zero_dates, None if plan.is_plain else plan) for plan in present]
        with closing(connect(self._sides.address)) as connection:
            regions = [
                plan_regions(connection, self._sides.address, self._sides.sink, table, self._options.chunk_rows, self._options.sample)
                for table in count_stage("planning the comparison", tables, "tables")
            ]
        with ExitStack() as stack:
            runner = self._task_runner(stack, tables, sum(region.estimate for found in regions for region in found))
            first = self._first_pass(runner, tables, regions)
            rows_reader = stack.enter_context(RegionReader(self._sides))
            for number, table in enumerate(tables):
                enter_stage(f"looking for differences in {table.schema.name}")
                yield self._conclude(runner, rows_reader, number, table, regions[number], first[number])

    def _await_pipe(self) -> None:
        if self._watermark is None:
            return
        self._source_end = self._log_end()
        enter_stage("waiting until the pipe has reached the end of the source's log")
        self._pipe_position = self._watermark.await_position(self._source_end)
        if not has_reached(self._pipe_position, self._source_end):
            self._view.note(f"verify: {self._lag()}; rows that differ may only be behind")

    def _lag(self) -> str:
        assert self._watermark is not None
        pipe_position = self._watermark.ask()
        running = "" if pipe_position.is_running else " and does not run now"
        return f"the pipe {self._watermark.pipe} stands at {pipe_position.position}{running}, the source's log ends at {self._log_end()}"

    def _stands(self) -> str:
        if self._watermark is None:
            return ""
        pipe_position = self._watermark.ask()
        return stands_at(pipe_position, str(pipe_position.position))

    def _result(self, schema: TableSchema, comparison: Comparison, **found: Any) -> TableResult:
        """Return a table's result with the pipe's position when the comparison began."""
        at = self._pipe_position
        if at is None:
            return TableResult(schema, comparison, **found)
        return TableResult(schema, comparison, **found, compared_at=str(at.position), pipe_stopped=not at.is_running)

    def _unready(self, plan: TransformPlan) -> TableResult | None:
        """Return the result for a table that cannot be compared: it is not in the sink, or its snapshot is not complete."""
        schema = plan.schema
        behind = self._pipe_position is not None and not has_reached(self._pipe_position, self._source_end or self._pipe_position.position)
        if self._pipe_position is not None and str(schema.name) in self._pipe_position.incomplete:
            return TableResult(schema, Comparison(), is_behind=True, notes=(_STILL_READ,), pipe_position=self._stands())
        try:
            if self._sides.sink.digests().is_there(schema):
                return None
        except DefiniteError as error:
            if not behind:
                raise
            # The source's table was altered, and the pipe has not reached the statement yet.
            return TableResult(schema, Comparison(), is_behind=True, notes=(error.message, self._lag()), pipe_position=self._stands())
        note = f"there is no table {self._sides.sink.target_table(schema).qualified} in the sink"
        if behind:
            return TableResult(schema, Comparison(), is_behind=True, notes=(note, self._lag()), pipe_position=self._stands())
        with RegionReader(self._sides) as rows_reader:
            if plan.filter:
                rows, excluded = rows_reader.count_source(plan)
                return self._result(schema, Comparison(rows, max(rows, 1), missing=rows), notes=(note,), excluded=excluded)
            rows = rows_reader.source_digest(TableComparison(plan.source), ("",)).rows
        return self._result(schema, Comparison(rows, max(rows, 1), missing=rows), notes=(note,))

    def _task_runner(self, stack: ExitStack, tables: Sequence[TableComparison], rows: int) -> TaskRunner:
        options = self._options
        if options.spark is SparkUse.NEVER or (options.spark is SparkUse.AUTO and rows < _SPARK_ROWS):
            return ThreadTaskRunner(self._sides, tables, options.slots)
        self._view.note(f"verify: about {rows} rows, compared as Spark tasks on {options.master}")
        scratch = Path(stack.enter_context(temporary_directory("headrace-verify-")))
        session = self._runtime().session(options.master, scratch, spark_log=False, preload=_PRELOAD, more=options.spark_settings)
        return RuntimeTaskRunner(stack.enter_context(session), self._sides, tables)

    def _first_pass(self, runner: TaskRunner, tables: Sequence[TableComparison], regions: Sequence[Sequence[Region]]) -> list[list[Answer]]:
        """Return both digests of every region, or the findings of reading it."""
        tasks = [
            task for t, table in enumerate(tables) for r, region in enumerate(regions[t]) for task in _first_tasks(table, t, r, region)
        ]
        answers = [[Answer() for _ in found] for found in regions]
        names = [str(table.schema.name) for table in tables]
        self._view.begins({name: sum(region.estimate for region in found) for name, found in zip(names, regions, strict=True)})

        def on_answer(task: RegionTask, answer: Answer) -> None:
            answers[task.table][task.region] = _added(answers[task.table][task.region], answer)
            if task.kind in (RegionTaskKind.SOURCE, RegionTaskKind.BOTH) or not tables[task.table].by_digest:
                self._view.advanced(names[task.table], task.where.estimate)

        try:
            runner.run(tasks, on_answer)
        finally:
            self._view.ends()
        return answers

    def _conclude(
        self,
        runner: TaskRunner,
        rows_reader: RegionReader,
        number: int,
        table: TableComparison,
        regions: Sequence[Region],
        first: Sequence[Answer],
    ) -> TableResult:
        findings: dict[int, list[Findings]] = {r: [answer.findings] for r, answer in enumerate(first) if answer.findings is not None}
        rows = [_rows(answer) for answer in first]
        unlike = [r for r, answer in enumerate(first) if answer.source != answer.sink]

        def on_answer(task: RegionTask, answer: Answer) -> None:
            assert answer.findings is not None
            findings.setdefault(task.region, []).append(answer.findings)

        if unlike:
            runner.run([RegionTask(RegionTaskKind.NARROW, number, r, regions[r], _most_rows(first[r])) for r in unlike], on_answer)
        rechecked = self._recheck(rows_reader, table, regions, first, findings)
        rechecked, repaired, notes = self._repair(rows_reader, table, rechecked)
        behind = (self._lag(),) if rechecked.behind else ()
        unread = sum(one.unread for found in findings.values() for one in found)
        return self._result(
            table.schema,
            replace(rechecked.comparison, rows=sum(rows)),
            behind=rechecked.behind,
            changing=rechecked.changing,
            unread=unread,
            repaired=repaired,
            notes=(*table.notes, *notes, *behind),
            seconds=time.monotonic() - self._started,
            missing=rechecked.missing,
            extra=rechecked.extra,
            pipe_position=self._stands() if rechecked.behind else "",
            excluded=_excluded(regions, first) if table.has_filter else None,
        )

    def _recheck(
        self,
        rows_reader: RegionReader,
        table: TableComparison,
        regions: Sequence[Region],
        first: Sequence[Answer],
        findings: dict[int, list[Findings]],
    ) -> RecheckResult:
        nothing = table.shown.arrow_schema.empty_table().select(list(table.schema.row_key or table.columns))
        differing = {r: found for r, found in findings.items() if any(one.comparison.total for one in found)}
        rechecker = self._rechecker(rows_reader)
        if table.keyed:
            keys = distinct(pa.concat_tables([nothing, *(one.keys for found in differing.values() for one in found)]))
            return rechecker.recheck(table, keys) if keys.num_rows else RecheckResult(Comparison(), nothing)
        parts = [rechecker.recheck_region(table, regions[r], _most_rows(first[r])) for r in differing]
        return RecheckResult(
            sum((part.comparison for part in parts), Comparison()),
            nothing,
            sum(part.changing for part in parts),
            sum(part.behind for part in parts),
            sum(part.missing for part in parts),
            sum(part.extra for part in parts),
        )

    def _rechecker(self, rows_reader: RegionReader) -> Rechecker:
        return Rechecker(rows_reader, self._watermark, self._log_end, self._await_visible, patient=self._options.recheck)

    def _repair(
        self, rows_reader: RegionReader, table: TableComparison, rechecked: RecheckResult
    ) -> tuple[RecheckResult, int, tuple[str, ...]]:
        """Repair the rows; return what still differs, how many rows were repaired, and notes."""
        if not self._options.repair or not rechecked.comparison.total:
            return rechecked, 0, ()
        refused = refusal(table, self._sides, self._watermark)
        if refused or self._watermark is None:
            return rechecked, 0, (f"not repaired: {refused}",)
        repairer = Repairer(self._sides, table, self._watermark)
        version = repairer.rewrite(rechecked.keys)
        after = self._rechecker(rows_reader).recheck(table, rechecked.keys)
        repaired = rechecked.keys.num_rows - after.keys.num_rows
        again = replace(
            after,
            changing=rechecked.changing + after.changing,
            behind=rechecked.behind + after.behind,
            missing=rechecked.missing + after.missing,
            extra=rechecked.extra + after.extra,
        )
        return again, repaired, (f"not repaired: {repairer.why_not(after.keys, version)}",) if after.keys.num_rows else ()

    def _await_visible(self) -> None:
        """Wait until the source's readers see everything that its log holds now."""
        end, address = self._log_end(), self._sides.address
        deadline = time.monotonic() + _VISIBLE_WITHIN_S
        while time.monotonic() < deadline:
            with closing(connect(address)) as connection:
                if not is_mariadb(connection) and str(query(connection, address, "SELECT @@global.gtid_mode")[0][0]).upper() != "ON":
                    # Without GTIDs only a global lock would tell; a commit takes milliseconds.
                    time.sleep(_COMMITTED_S)
                    return
                if note_position(connection, address, end.epoch) >= end:
                    return
            time.sleep(_POLL_S)

    def _log_end(self) -> BinlogPosition:
        assert self._watermark is not None
        with closing(connect(self._sides.address)) as connection:
            return log_end(connection, self._sides.address, self._watermark.ask().position.epoch)


def _first_tasks(table: TableComparison, number: int, place: int, region: Region) -> list[RegionTask]:
    read = [RegionTask(RegionTaskKind.READ, number, place, region)] if table.read or not table.by_digest else []
    if not table.by_digest:
        return read
    if len(region.wheres) == len(region.conditions) == 1:
        return [*read, RegionTask(RegionTaskKind.BOTH, number, place, region)]
    # The sink computes the whole at once, or a few large parts, with its own threads; the source range by range.
    share = max(region.estimate // len(region.wheres), 1)
    parts = [RegionTask(RegionTaskKind.SOURCE, number, place, Region((where,), "", share)) for where in region.wheres]
    sink = [RegionTask(RegionTaskKind.SINK, number, place, Region((), condition, 0)) for condition in region.conditions]
    return [*read, *sink, *parts]


def _added(one: Answer, other: Answer) -> Answer:
    return Answer(_sum(one.source, other.source), _sum(one.sink, other.sink), other.findings or one.findings)


def _sum(one: Digest | None, other: Digest | None) -> Digest | None:
    return other if one is None else one if other is None else one + other


def _rows(answer: Answer) -> int:
    if answer.source is not None:
        return answer.source.rows
    return answer.findings.comparison.rows if answer.findings is not None else 0


def _excluded(regions: Sequence[Region], first: Sequence[Answer]) -> int:
    """The number of source rows that the filter excludes. Regions of a hashed key read the same source rows, which count once."""
    found = {region.wheres: answer.findings.excluded for region, answer in zip(regions, first, strict=True) if answer.findings}
    return sum(found.values())


def _most_rows(answer: Answer) -> int:
    """The region's row count on the side that has more."""
    return max(_rows(answer), answer.sink.rows if answer.sink is not None else 0)


__all__ = ["Sample", "SparkUse", "TableResult", "Verdict", "VerifyOptions", "verify_tables"]
