"""Input and output of decoding Debezium's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.source_marks import MarkKey, SourceMark


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition of a topic, in the order of their offsets, as columns."""

    topic: str
    partition: int
    offset: pa.Int64Array
    key: pa.BinaryArray
    value: pa.BinaryArray
    """NULL for tombstones."""
    timestamp: pa.Int64Array
    """Time of creation or of append, by the topic's configuration, in microseconds since 1970."""
    headers: pa.ListArray | None = None
    """Lists of structs of `key` (text) and `value` (bytes); None if no record has any."""

    @property
    def rows(self) -> int:
        return len(self.value)

    def place(self, row: int) -> str:
        """Return a record's position for messages."""
        return f"{self.topic}[{self.partition}]@{self.offset[row].as_py()}"

    def reject(self, row: int, reason: str, hint: str) -> RejectedRecord:
        """Return a record that cannot be read, with all of its content."""
        headers = [] if self.headers is None else self.headers[row].as_py() or []
        return RejectedRecord(
            self.topic,
            self.partition,
            self.offset[row].as_py(),
            reason,
            hint,
            self.key[row].as_py(),
            self.value[row].as_py(),
            tuple((header["key"], header["value"]) for header in headers),
        )


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that cannot be read, with the reason."""

    topic: str
    partition: int
    offset: int
    reason: str
    hint: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_whole: bool = True
    """Whether key, value and headers are included; otherwise they must be read from the record's position."""


@dataclass(frozen=True, slots=True)
class DetectedSchema:
    """A table whose events differ from the known schema: the driver adapts the sink, then the batch is read again."""

    schema: TableSchema
    topic: str
    partition: int
    offset: int
    """The first record with this schema."""
    told_at: int = 0
    """The source's commit time, in microseconds since 1970; older schemas of a table are applied first."""
    zeroes: bool = False
    """Whether the source fills a new required column without a default with zero values."""
    unsigned: bool = True
    """Whether the source may have unsigned integers."""
    countable: bool = True
    """Whether events are envelopes with a position in a binary log, which a target that counts rows needs."""
    certain: bool = True
    """Whether all types are the source's: none was inferred from values or from the target."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """A truncation: rows with a lower version are deleted."""

    table: TableName
    version: int


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The result of reading records."""

    blocks: tuple[ChangeBlock, ...] = ()
    kept: tuple[Mapping[str, pa.BooleanArray], ...] = ()
    """Per block: columns of which some images have no value because it did not change, with a mask. The old value stays."""
    found: tuple[DetectedSchema, ...] = ()
    """Tables whose records were held back until the sink is adapted."""
    refused: tuple[RejectedRecord, ...] = ()
    truncations: tuple[Truncation, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Number of records without a row change, by kind: "tombstone", "message", "heartbeat", "transaction"…"""
    orders: Mapping[TableName, TableVersioning] = field(default_factory=dict)
    """Versioning rules fixed by the first records of tables. The driver stores them, and halts if two tasks differ."""
    tail: LogTail | None = None
    """The state of the source's log at the last event, for the partition's next batch; None if no event contains it."""
    snapshots: tuple[KeylessSnapshot, ...] = ()
    """The snapshots of keyless tables from which rows were read."""
    marks: Mapping[MarkKey, SourceMark] = field(default_factory=dict)
    """The marks after these records, of tables whose target counts rows."""
