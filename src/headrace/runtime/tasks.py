"""The task of a pipe: reads a split, writes its blocks and reports what it did.

Only statistics come back to the driver. A failed task fails its batch. The batch runs again as a whole, which is safe because sinks are
idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import TransientError
from headrace.runtime.error_transport import serialize_errors
from headrace.sources.base import Block, Json, Reader, Split
from headrace.sources.splits import MarkSplit, StatementSplit, decode_split, encode_split

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

TASK_ATTEMPT: ContextVar[int] = ContextVar("task_attempt", default=0)
"""How often the engine has started the current task before."""
TaskFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What the engine runs in a task: batches of encoded splits in, batches of reports out. Picklable."""
Retry = Callable[[Callable[[], None]], None]
"""Runs a write again while the sink is away."""
BlockShaper = Callable[[Any], Any]
"""Turns a block that was read into the block that is written, which may be empty. Picklable."""


class AnyWriter(Protocol):
    """Writes blocks of the type that the reader returns."""

    def write(self, block: Any) -> None: ...

    def close(self) -> None: ...


class AnyWriterFactory(Protocol):
    """What tasks carry of a sink (`sinks.base.WriterFactory`), whatever kind its blocks are of. Picklable."""

    def writer(self) -> AnyWriter: ...

    def for_replay(self) -> AnyWriterFactory: ...


@dataclass(frozen=True, slots=True)
class Report:
    """One result of a task, such as the changes that it wrote to a table."""

    kind: str
    subject: str
    changes: int
    bytes: int
    commit_ts: int
    detail: str


@dataclass(frozen=True, slots=True)
class Task:
    """Reads splits and writes their blocks. Picklable."""

    reader: Reader[Any, Block]
    sink: AnyWriterFactory
    retry: Retry
    shape: BlockShaper | None = None
    """Transforms blocks before they are written."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with serialize_errors():
            types = (*self.reader.split_types, MarkSplit, StatementSplit)
            reports = [
                report for batch in batches for text in batch.column(0).to_pylist() for report in self._run(decode_split(text, types))
            ]
        yield report_batch(reports)

    def _run(self, split: Split) -> list[Report]:
        if isinstance(split, StatementSplit):
            return [Report("statement", "", 0, 0, 0, encode_split(split))]
        if isinstance(split, MarkSplit):
            return [_done(split.until)]
        sink = self.sink
        if TASK_ATTEMPT.get():
            if split.once:
                # The rows of the first attempt count. The driver deletes them before it tries again.
                raise TransientError("Spark has started a task again that may run only once", hint="an executor was lost; see Spark's log")
            # The first attempt may have written blocks.
            sink = sink.for_replay()
        writer = sink.writer()
        try:
            return self._copy(split, writer)
        finally:
            writer.close()

    def _copy(self, split: Split, writer: AnyWriter) -> list[Report]:
        # A failed write ends the read as well: the transaction of a snapshot would block ALTER TABLE.
        with closing(self.reader.read(split)) as blocks:
            return self._copy_blocks(writer, blocks)

    def _copy_blocks(self, writer: AnyWriter, blocks: Generator[Block, None, Json]) -> list[Report]:
        changes: dict[str, list[int]] = {}
        while True:
            try:
                block = next(blocks)
            except StopIteration as end:
                result = end.value
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
        return [_done(result), *written]


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Splits that one task runs in order. A group of several needs a `Task`, which reports the end of each."""

    job: TaskFunction
    splits: Sequence[Split]

    def pair_reports(self, reports: Sequence[Report]) -> Iterator[tuple[Split, list[Report]]]:
        """Return the splits with the reports of each. The reports of a split begin with the report of its end."""
        if len(self.splits) == 1:
            yield self.splits[0], list(reports)
            return
        begins = [number for number, report in enumerate(reports) if report.kind == "done"]
        for split, begin, end in zip(self.splits, begins, [*begins[1:], len(reports)], strict=True):
            yield split, list(reports[begin:end])


def _done(result: Json) -> Report:
    return Report("done", "", 0, 0, 0, json.dumps(result))


def report_batch(reports: Iterable[Report]) -> pa.RecordBatch:
    """Return reports as the record batch that a task returns."""
    return pa.RecordBatch.from_pylist([{name: getattr(report, name) for name in _ARROW.names} for report in reports], schema=_ARROW)
