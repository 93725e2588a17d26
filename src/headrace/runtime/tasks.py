"""The task of a pipe: reads a split, writes its blocks and reports what it did.

Only statistics come back to the driver. A failed task fails its batch. The batch runs again as a whole, which is safe because sinks are
idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headrace.errors import TransientError
from headrace.runtime.reports import (
    MarkReached,
    Report,
    SplitDone,
    StatementReached,
    TableWrites,
    finished_splits,
    serialize_errors,
    sum_writes,
)
from headrace.sources.base import Block, Reader, Split
from headrace.sources.splits import MarkSplit, StatementSplit, decode_split, split_kind

TASK_ATTEMPT: ContextVar[int] = ContextVar("task_attempt", default=0)
"""How often the engine has started the current task before."""
TaskFunction = Callable[[Iterable[str]], Iterator[Report]]
"""What the engine runs in a task: encoded splits in, reports out. Picklable."""
Retry = Callable[[Callable[[], None]], None]
"""Runs a write again while the sink is away."""
BlockTransform = Callable[[Any], Any]
"""Turns a block that was read into the block that is written, which may be empty. Picklable."""


class AnyWriter(Protocol):
    """Writes blocks of the type that the reader returns."""

    def write(self, block: Any) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class DeferringWriter(Protocol):
    """A writer that does part of its work for all blocks of a split together."""

    def complete(self) -> None:
        """Finish the work for all blocks that were written: the split counts as written when this returns. Repeatable."""


class AnyWriterFactory(Protocol):
    """What tasks carry of a sink (`sinks.base.WriterFactory`), whatever kind its blocks are of. Picklable."""

    def writer(self) -> AnyWriter: ...

    def for_replay(self) -> AnyWriterFactory: ...


@dataclass(frozen=True, slots=True)
class Task:
    """Reads splits and writes their blocks. Picklable."""

    reader: Reader[Any, Block, object]
    sink: AnyWriterFactory
    retry: Retry
    transform: BlockTransform | None = None
    """Transforms blocks before they are written."""

    def __call__(self, splits: Iterable[str]) -> Iterator[Report]:
        with serialize_errors():
            for text in splits:
                yield self._run(decode_split(text, self.reader.split_types))

    def _run(self, split: Split) -> Report:
        sink = self.sink
        if TASK_ATTEMPT.get():
            if split.once:
                # The rows of the first attempt count. The driver deletes them before it tries again.
                raise TransientError("Spark has started a task again that may run only once", hint="an executor was lost; see Spark's log")
            # The first attempt may have written blocks.
            sink = sink.for_replay()
        writer = sink.writer()
        try:
            done = self._copy(split, writer)
            if isinstance(writer, DeferringWriter):
                self.retry(writer.complete)
            return done
        finally:
            writer.close()

    def _copy(self, split: Split, writer: AnyWriter) -> SplitDone:
        # A failed write ends the read as well: the transaction of a snapshot would block ALTER TABLE.
        with closing(self.reader.read(split)) as blocks:
            return self._copy_blocks(writer, blocks)

    def _copy_blocks(self, writer: AnyWriter, blocks: Generator[Block, None, object]) -> SplitDone:
        written: list[TableWrites] = []
        while True:
            try:
                block = next(blocks)
            except StopIteration as end:
                return SplitDone(end.value, sum_writes(written))
            filtered = 0
            if self.transform is not None:
                changes, block = block.changes, self.transform(block)
                filtered = changes - block.changes
                if filtered == changes:
                    written.append(TableWrites(block.subject, 0, 0, 0, filtered))
                    continue
            self.retry(lambda block=block: writer.write(block))  # type: ignore[misc]
            written.append(TableWrites(block.subject, block.changes, block.nbytes, block.newest, filtered))


def separate_driver_splits(splits: Iterable[str]) -> tuple[list[str], list[Report]]:
    """Return the splits of a batch that need a task, and the reports of those that only the driver processes."""
    for_tasks: list[str] = []
    reports: list[Report] = []
    for text in splits:
        kind = split_kind(text)
        if kind == StatementSplit.split_kind:
            reports.append(StatementReached(decode_split(text, [StatementSplit])))
        elif kind == MarkSplit.split_kind:
            reports.append(MarkReached(decode_split(text, [MarkSplit]).until))
        else:
            for_tasks.append(text)
    return for_tasks, reports


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Splits that one task runs in order. The task reports the end of each."""

    job: TaskFunction
    splits: Sequence[Split]

    def pair_reports(self, reports: Sequence[Report]) -> Iterator[tuple[Split, SplitDone]]:
        """Return each split with its report."""
        return zip(self.splits, finished_splits(reports), strict=True)
