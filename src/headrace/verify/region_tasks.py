"""Pieces of work of a comparison, run in this process's threads or as Spark tasks.

The servers do the summing up; a thread that waits for them costs nothing, so a comparison of few rows is not worth starting Spark for. A
large one is spread over Spark's tasks, which also read and compare the rows where digests differ.
"""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import pyarrow as pa

from headrace.model.digest import Digest
from headrace.sources.base import Work
from headrace.spark.runtime.error_transport import carried
from headrace.spark.runtime.tasks import Report, report_batch
from headrace.spark.runtime.worker_logs import mark_log
from headrace.verify.region_reader import Findings, Looker, Sides
from headrace.verify.regions import Region
from headrace.verify.table_spec import ComparedTable


class LookKind(StrEnum):
    """What is done with a region."""

    SOURCE = "source"
    """Sum up the source's side."""
    SINK = "sink"
    BOTH = "both"
    NARROW = "narrow"
    """Find the rows that differ through digests of parts."""
    READ = "read"
    """Find the rows that differ in columns without a digest, by reading these."""


@dataclass(frozen=True, slots=True)
class Look:
    """One piece of work."""

    kind: LookKind
    table: int
    region: int
    """Their numbers, for whoever puts the answers together."""
    where: Region
    rows: int = 0
    """How many the region has, where it is known."""

    def to_json(self) -> Work:
        return {"kind": self.kind.value, "table": self.table, "region": self.region, "where": self.where.to_json(), "rows": self.rows}

    @classmethod
    def from_json(cls, raw: Work) -> Look:
        return cls(LookKind(raw["kind"]), raw["table"], raw["region"], Region.from_json(raw["where"]), raw["rows"])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a look found."""

    source: Digest | None = None
    sink: Digest | None = None
    findings: Findings | None = None


OnAnswer = Callable[[Look, Answer], None]


def take(looker: Looker, table: ComparedTable, look: Look) -> Answer:
    """Look once."""
    match look.kind:
        case LookKind.SOURCE:
            return Answer(source=looker.source_digest(table, look.where.wheres))
        case LookKind.SINK:
            return Answer(sink=looker.sink_digest(table, look.where.condition))
        case LookKind.BOTH:
            return Answer(looker.source_digest(table, look.where.wheres), looker.sink_digest(table, look.where.condition))
        case LookKind.NARROW:
            return Answer(findings=looker.narrow(table, look.where, look.rows))
        case LookKind.READ:
            return Answer(findings=looker.read(table, look.where, table.undigested))


class Lookers(Protocol):
    """Whoever takes many looks; `on_answer` hears of each as it ends, in the calling thread."""

    def run(self, looks: Sequence[Look], on_answer: OnAnswer) -> None: ...


@dataclass(frozen=True, slots=True)
class ThreadLookers:
    """In this process."""

    sides: Sides
    tables: Sequence[ComparedTable]
    slots: int

    def run(self, looks: Sequence[Look], on_answer: OnAnswer) -> None:
        own = threading.local()
        opened: list[Looker] = []

        def run(look: Look) -> Answer:
            if not hasattr(own, "looker"):
                own.looker = Looker(self.sides)
                opened.append(own.looker)
            return take(own.looker, self.tables[look.table], look)

        try:
            with ThreadPoolExecutor(max_workers=self.slots, thread_name_prefix="headrace-look") as pool:
                waiting = {pool.submit(run, look): look for look in looks}
                try:
                    for future in as_completed(waiting):
                        on_answer(waiting[future], future.result())
                except BaseException:
                    for future in waiting:
                        future.cancel()
                    raise
        finally:
            for looker in opened:
                looker.close()


_ANSWER: Final = "answer"


@dataclass(frozen=True, slots=True)
class LookTask:
    """What runs in a Spark task. Picklable."""

    sides: Sides
    tables: tuple[ComparedTable, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark_log()
        with carried():
            looks = [Look.from_json(json.loads(work)) for batch in batches for work in batch.column(0).to_pylist()]
            with Looker(self.sides) as looker:
                reports = [_report(take(looker, self.tables[look.table], look)) for look in looks]
        yield report_batch(reports)


@dataclass(frozen=True, slots=True)
class SparkLookers:
    """As Spark tasks."""

    session: Any
    sides: Sides
    tables: Sequence[ComparedTable]
    slots: int

    def run(self, looks: Sequence[Look], on_answer: OnAnswer) -> None:
        from headrace.spark.runtime.micro_batch import run_works

        def on_done(work: Work, reports: list[Report]) -> None:
            on_answer(Look.from_json(work), _answer(reports))

        run_works(self.session, LookTask(self.sides, tuple(self.tables)), [look.to_json() for look in looks], self.slots, on_done)


def _report(answer: Answer) -> Report:
    # The answers of our own tasks: nobody else can put anything there.
    return Report(_ANSWER, "", 0, 0, 0, base64.b64encode(pickle.dumps(answer)).decode())


def _answer(reports: Sequence[Report]) -> Answer:
    [report] = [report for report in reports if report.kind == _ANSWER]
    found = pickle.loads(base64.b64decode(report.detail))
    assert isinstance(found, Answer)
    return found
