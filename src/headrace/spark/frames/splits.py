"""The splits of table frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.model.schema import TableSchema
from headrace.sources.base import Json, Offset
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk
from headrace.sources.mysql.splits import SegmentSplit


@dataclass(frozen=True, slots=True)
class TableLogSplit:
    """A segment of the log, and the table as it is defined there."""

    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False
    table: TableSchema
    log: SegmentSplit

    def to_json(self) -> Json:
        return {"table": self.table.to_json(), "log": self.log.to_json()}

    @classmethod
    def from_json(cls, raw: Json) -> TableLogSplit:
        return cls(TableSchema.from_json(raw["table"]), SegmentSplit.from_json(raw["log"]))


@dataclass(frozen=True, slots=True)
class TruncateSplit:
    """A statement that deleted all rows of the table."""

    split_kind: ClassVar[str] = "truncate"
    once: ClassVar[bool] = False
    table: TableSchema
    version: int

    def to_json(self) -> Json:
        return {"table": self.table.to_json(), "version": self.version}

    @classmethod
    def from_json(cls, raw: Json) -> TruncateSplit:
        return cls(TableSchema.from_json(raw["table"]), raw["version"])


@dataclass(frozen=True, slots=True)
class TableChunkSplit:
    """A chunk of the table's rows."""

    split_kind: ClassVar[str] = "chunk"
    once: ClassVar[bool] = False
    table: TableSchema
    chunk: Chunk

    def to_json(self) -> Json:
        return {"table": self.table.to_json(), "chunk": self.chunk.to_json()}

    @classmethod
    def from_json(cls, raw: Json) -> TableChunkSplit:
        return cls(TableSchema.from_json(raw["table"]), Chunk.from_json(raw["chunk"]))


@dataclass(frozen=True, slots=True)
class LogRangeSplit:
    """The log from the starting position to `stop`."""

    split_kind: ClassVar[str] = "log"
    once: ClassVar[bool] = False
    stop: Offset

    def to_json(self) -> Json:
        return {"stop": self.stop}

    @classmethod
    def from_json(cls, raw: Json) -> LogRangeSplit:
        return cls(raw["stop"])


StreamSplit = TableLogSplit | TruncateSplit
FrameSplit = TableChunkSplit | LogRangeSplit
STREAM_SPLITS: tuple[type[StreamSplit], ...] = (TableLogSplit, TruncateSplit)
FRAME_SPLITS: tuple[type[FrameSplit], ...] = (TableChunkSplit, LogRangeSplit)
