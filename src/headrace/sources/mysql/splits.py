"""The splits of MySQL sources: segments of the log, and chunks of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.model.schema import TableName
from headrace.sources.base import Json, Offset
from headrace.sources.mysql.segments.segment_reader import Segment
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk
from headrace.sources.mysql.snapshot.locked_snapshot import Rendezvous
from headrace.sources.splits import MarkSplit, StatementSplit


@dataclass(frozen=True, slots=True)
class OrderedShare:
    """All of a batch, for tables whose blocks must come in the order of the log, and which share of those tables a task reads."""

    segments: tuple[Segment, ...]
    share: int
    of: int

    def to_json(self) -> Json:
        return {"segments": [segment.to_json() for segment in self.segments], "share": self.share, "of": self.of}

    @classmethod
    def from_json(cls, raw: Json) -> OrderedShare:
        return cls(tuple(map(Segment.from_json, raw["segments"])), raw["share"], raw["of"])


@dataclass(frozen=True, slots=True)
class SegmentSplit:
    """A segment of the log."""

    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False
    segment: Segment
    until: Offset
    """The end of the batch."""
    ordered: OrderedShare | None = None
    created_with_rows: tuple[TableName, ...] = ()
    """Tables whose rows are not read: statements of the batch create them from a SELECT, and the driver takes a snapshot of them."""

    def to_json(self) -> Json:
        return {
            "segment": self.segment.to_json(),
            "until": self.until,
            "ordered": None if self.ordered is None else self.ordered.to_json(),
            "created_with_rows": [[name.database, name.table] for name in self.created_with_rows],
        }

    @classmethod
    def from_json(cls, raw: Json) -> SegmentSplit:
        ordered = None if raw["ordered"] is None else OrderedShare.from_json(raw["ordered"])
        created = tuple(TableName(*name) for name in raw["created_with_rows"])
        return cls(Segment.from_json(raw["segment"]), raw["until"], ordered, created)


@dataclass(frozen=True, slots=True)
class ChunkSplit:
    """A chunk of a lock-free snapshot."""

    split_kind: ClassVar[str] = "chunk"
    chunk: Chunk
    once: bool = False

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return (self.chunk,)

    def to_json(self) -> Json:
        return {"chunk": self.chunk.to_json(), "once": self.once}

    @classmethod
    def from_json(cls, raw: Json) -> ChunkSplit:
        return cls(Chunk.from_json(raw["chunk"]), raw["once"])


@dataclass(frozen=True, slots=True)
class ConsistentSplit:
    """The chunks that one reader of a consistent snapshot reads, all in the same transaction."""

    split_kind: ClassVar[str] = "consistent"
    rendezvous: Rendezvous
    reader: int
    chunks: tuple[Chunk, ...]
    once: bool = False

    def to_json(self) -> Json:
        chunks = [chunk.to_json() for chunk in self.chunks]
        return {"rendezvous": self.rendezvous.to_json(), "reader": self.reader, "chunks": chunks, "once": self.once}

    @classmethod
    def from_json(cls, raw: Json) -> ConsistentSplit:
        return cls(Rendezvous.from_json(raw["rendezvous"]), raw["reader"], tuple(map(Chunk.from_json, raw["chunks"])), raw["once"])


MySQLSplit = SegmentSplit | ChunkSplit | ConsistentSplit
"""What a reader reads."""
PlannedSplit = SegmentSplit | MarkSplit | StatementSplit
"""What a planner of the log returns."""
