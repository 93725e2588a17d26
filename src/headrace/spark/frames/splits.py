"""The splits of table frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableSchema
from headrace.sources.base import Offset
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk
from headrace.sources.mysql.splits import SegmentSplit


@dataclass(frozen=True, slots=True)
class TableLogSplit(JsonRecord):
    """A segment of the log, and the table as it is defined there."""

    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False
    table: TableSchema
    log: SegmentSplit


@dataclass(frozen=True, slots=True)
class TruncateSplit(JsonRecord):
    """A statement that deleted all rows of the table."""

    split_kind: ClassVar[str] = "truncate"
    once: ClassVar[bool] = False
    table: TableSchema
    version: int


@dataclass(frozen=True, slots=True)
class TableChunkSplit(JsonRecord):
    """A chunk of the table's rows."""

    split_kind: ClassVar[str] = "chunk"
    once: ClassVar[bool] = False
    table: TableSchema
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class LogRangeSplit(JsonRecord):
    """The log from the starting position to `stop`."""

    split_kind: ClassVar[str] = "log"
    once: ClassVar[bool] = False
    stop: Offset


StreamSplit = TableLogSplit | TruncateSplit
FrameSplit = TableChunkSplit | LogRangeSplit
STREAM_SPLITS: tuple[type[StreamSplit], ...] = (TableLogSplit, TruncateSplit)
FRAME_SPLITS: tuple[type[FrameSplit], ...] = (TableChunkSplit, LogRangeSplit)
