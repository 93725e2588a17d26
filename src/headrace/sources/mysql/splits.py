"""The splits of MySQL sources: segments of the log, and chunks of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.sources.base import Offset
from headrace.sources.mysql.segments.segment_reader import Segment
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk
from headrace.sources.mysql.snapshot.locked_snapshot import Rendezvous
from headrace.sources.splits import MarkSplit, StatementSplit


@dataclass(frozen=True, slots=True)
class OrderedShare(JsonRecord):
    """All of a batch, for tables whose blocks must come in the order of the log, and which share of those tables a task reads."""

    segments: tuple[Segment, ...]
    share: int
    of: int


@dataclass(frozen=True, slots=True)
class SegmentSplit(JsonRecord):
    """A segment of the log."""

    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False
    segment: Segment
    until: Offset
    """The end of the batch."""
    ordered: OrderedShare | None = None
    created_with_rows: tuple[TableName, ...] = ()
    """Tables whose rows are not read: statements of the batch create them from a SELECT, and the driver takes a snapshot of them."""


@dataclass(frozen=True, slots=True)
class ChunkSplit(JsonRecord):
    """A chunk of a lock-free snapshot."""

    split_kind: ClassVar[str] = "chunk"
    chunk: Chunk
    once: bool = False

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return (self.chunk,)


@dataclass(frozen=True, slots=True)
class ConsistentSplit(JsonRecord):
    """The chunks that one reader of a consistent snapshot reads, all in the same transaction."""

    split_kind: ClassVar[str] = "consistent"
    rendezvous: Rendezvous
    reader: int
    chunks: tuple[Chunk, ...]
    once: bool = False


MySQLSplit = SegmentSplit | ChunkSplit | ConsistentSplit
"""What a reader reads."""
PlannedSplit = SegmentSplit | MarkSplit | StatementSplit
"""What a planner of the log returns."""
