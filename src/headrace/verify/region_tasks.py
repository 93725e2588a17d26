"""The tasks of a comparison, run in threads of this process or as Spark tasks.

The servers compute the digests, and a waiting thread costs nothing, so a small comparison does not start Spark. A large one is spread over
Spark tasks, which also read and compare the rows where digests differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from headrace.model.digest import Digest
from headrace.model.json_record import JsonRecord
from headrace.runtime.interface import RuntimeSession
from headrace.runtime.reports import Report, SplitDone, serialize_errors
from headrace.sources.base import Split
from headrace.sources.splits import decode_split
from headrace.verify.region_reader import Endpoints, Findings, RegionReader
from headrace.verify.regions import Region
from headrace.verify.table_spec import TableComparison


class RegionTaskKind(StrEnum):
    SOURCE = "source"
    """Compute the source's digest."""
    SINK = "sink"
    BOTH = "both"
    NARROW = "narrow"
    """Find the rows that differ through digests of parts."""
    READ = "read"
    """Find the rows that differ in columns without a digest, by reading these."""


@dataclass(frozen=True, slots=True)
class RegionTask(JsonRecord):
    split_kind: ClassVar[str] = "region"
    once: ClassVar[bool] = False
    kind: RegionTaskKind
    table: int
    region: int
    """Index of the table and of the region, to assign the answer."""
    where: Region
    rows: int = 0
    """The region's row count, if known."""


@dataclass(frozen=True, slots=True)
class Answer:
    source: Digest | None = None
    sink: Digest | None = None
    findings: Findings | None = None


OnAnswer = Callable[[RegionTask, Answer], None]


def run_task(rows_reader: RegionReader, table: TableComparison, task: RegionTask) -> Answer:
    match task.kind:
        case RegionTaskKind.SOURCE:
            return Answer(source=rows_reader.source_digest(table, task.where.wheres))
        case RegionTaskKind.SINK:
            return Answer(sink=rows_reader.sink_digest(table, task.where.condition))
        case RegionTaskKind.BOTH:
            return Answer(rows_reader.source_digest(table, task.where.wheres), rows_reader.sink_digest(table, task.where.condition))
        case RegionTaskKind.NARROW:
            return Answer(findings=rows_reader.narrow(table, task.where, task.rows))
        case RegionTaskKind.READ:
            return Answer(findings=rows_reader.read(table, task.where, table.undigested))


class TaskRunner(Protocol):
    """Runs tasks; `on_answer` is called for each finished task, in the calling thread."""

    def run(self, tasks: Sequence[RegionTask], on_answer: OnAnswer) -> None: ...


@dataclass(frozen=True, slots=True)
class ThreadTaskRunner:
    sides: Endpoints
    tables: Sequence[TableComparison]
    slots: int

    def run(self, tasks: Sequence[RegionTask], on_answer: OnAnswer) -> None:
        own = threading.local()
        opened: list[RegionReader] = []

        def run(task: RegionTask) -> Answer:
            if not hasattr(own, "rows_reader"):
                own.rows_reader = RegionReader(self.sides)
                opened.append(own.rows_reader)
            return run_task(own.rows_reader, self.tables[task.table], task)

        try:
            with ThreadPoolExecutor(max_workers=self.slots, thread_name_prefix="headrace-look") as pool:
                waiting = {pool.submit(run, task): task for task in tasks}
                try:
                    for future in as_completed(waiting):
                        on_answer(waiting[future], future.result())
                except BaseException:
                    for future in waiting:
                        future.cancel()
                    raise
        finally:
            for rows_reader in opened:
                rows_reader.close()


@dataclass(frozen=True, slots=True)
class RegionTaskFunction:
    """Runs region tasks in a task of a runtime. Picklable."""

    sides: Endpoints
    tables: tuple[TableComparison, ...]

    def __call__(self, splits: Iterable[str]) -> Iterator[Report]:
        with serialize_errors(), RegionReader(self.sides) as rows_reader:
            for task in (decode_split(text, [RegionTask]) for text in splits):
                yield SplitDone(run_task(rows_reader, self.tables[task.table], task))


@dataclass(frozen=True, slots=True)
class RuntimeTaskRunner:
    """Runs tasks on a runtime, usually Spark."""

    session: RuntimeSession
    sides: Endpoints
    tables: Sequence[TableComparison]

    def run(self, tasks: Sequence[RegionTask], on_answer: OnAnswer) -> None:
        def on_done(split: Split, report: SplitDone) -> None:
            assert isinstance(split, RegionTask)
            on_answer(split, report.result_of(Answer))

        self.session.run_splits(RegionTaskFunction(self.sides, tuple(self.tables)), tasks, self.session.task_slots, on_done)
