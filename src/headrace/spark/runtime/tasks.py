"""What runs in a task: read a piece of work, write its blocks, report what was done.

Nothing but statistics comes back. A failed task fails its batch, and the batch runs again as a whole, which the sink's idempotency allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext

from headrace.errors import TransientError
from headrace.sources.base import Block, Reader, Split
from headrace.spark.runtime.error_transport import serialize_errors
from headrace.spark.runtime.worker_logs import mark_log_lines

REPORT_SCHEMA = "kind string, subject string, changes long, bytes long, commit_ts long, detail string"
_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("subject", pa.string()),
        ("changes", pa.int64()),
        ("bytes", pa.int64()),
        ("commit_ts", pa.int64()),
        ("detail", pa.string()),
    ]
)

TaskFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What Spark runs in a task: pieces of work in, reports out. Picklable."""
Retry = Callable[[Callable[[], None]], None]
"""Runs a write again while the sink is away."""
BlockShaper = Callable[[Any], Any]
"""A block of the reader's to the block that is written, which may be empty. Picklable."""


class AnyWriter(Protocol):
    """Writes blocks of the reader's kind."""

    def write(self, block: Any) -> None: ...

    def close(self) -> None: ...


class AnyWriterFactory(Protocol):
    """What tasks carry of a sink (`sinks.base.WriterFactory`), whatever kind its blocks are of. Picklable."""

    def writer(self) -> AnyWriter: ...

    def for_replay(self) -> AnyWriterFactory: ...


@dataclass(frozen=True, slots=True)
class Report:
    """One line of what a task did: changes written to a table, or a statement passed on to the driver."""

    kind: str
    subject: str
    changes: int
    bytes: int
    commit_ts: int
    detail: str


@dataclass(frozen=True, slots=True)
class Task:
    """Picklable."""

    reader: Reader[Block]
    sink: AnyWriterFactory
    retry: Retry
    shape: BlockShaper | None = None
    """What becomes of blocks before they are written, if they do not pass as they are."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark_log_lines()
        with serialize_errors():
            reports = [report for batch in batches for split in batch.column(0).to_pylist() for report in self._run(json.loads(split))]
        yield report_batch(reports)

    def _run(self, split: Split) -> list[Report]:
        if split["kind"] == "statement":
            return [Report("statement", "", 0, 0, 0, json.dumps(split))]
        if split["kind"] == "mark":
            return [_done(split)]
        sink = self.sink
        if _is_restarted():
            if split.get("once"):
                # What the first attempt wrote counts; the driver takes it away before it tries again.
                raise TransientError("Spark has started a task again that may run only once", hint="an executor was lost; see Spark's log")
            # Blocks of the first attempt may be there.
            sink = sink.for_replay()
        writer = sink.writer()
        try:
            return self._copy(split, writer)
        finally:
            writer.close()

    def _copy(self, split: Split, writer: AnyWriter) -> list[Report]:
        # What cannot be written ends the reading too: a snapshot's transaction would keep its tables from being altered.
        with closing(self.reader.read(split)) as blocks:
            return self._copy_blocks(split, writer, blocks)

    def _copy_blocks(self, split: Split, writer: AnyWriter, blocks: Generator[Block, None, Split | None]) -> list[Report]:
        changes: dict[str, list[int]] = {}
        while True:
            try:
                block = next(blocks)
            except StopIteration as end:
                found = end.value
                break
            if self.shape is not None:
                block = self.shape(block)
                if not block.changes:
                    continue
            self.retry(lambda block=block: writer.write(block))  # type: ignore[misc]
            totals = changes.setdefault(block.subject, [0, 0, 0])
            totals[0] += block.changes
            totals[1] += block.nbytes
            totals[2] = max(totals[2], block.newest)
        written = [Report("changes", table, rows, size, newest, "") for table, (rows, size, newest) in changes.items()]
        return [_done(split, found), *written]


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Pieces of work that one task does in order. Each of several must be reported by `Task`."""

    job: TaskFunction
    splits: Sequence[Split]

    def pair_reports(self, reports: Sequence[Report]) -> Iterator[tuple[Split, list[Report]]]:
        """The works with the reports of each. The reports of a work begin with that of its end."""
        if len(self.splits) == 1:
            yield self.splits[0], list(reports)
            return
        begins = [number for number, report in enumerate(reports) if report.kind == "done"]
        for split, begin, end in zip(self.splits, begins, [*begins[1:], len(reports)], strict=True):
            yield split, list(reports[begin:end])


def _is_restarted() -> bool:
    """Whether Spark runs this task for a second time."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _done(split: Split, found: Split | None = None) -> Report:
    return Report("done", "", 0, 0, 0, json.dumps(split.get("until") if found is None else found))


def report_batch(reports: Iterable[Report]) -> pa.RecordBatch:
    """Reports as a task hands them to Spark."""
    return pa.RecordBatch.from_pylist([{name: getattr(report, name) for name in _ARROW.names} for report in reports], schema=_ARROW)
