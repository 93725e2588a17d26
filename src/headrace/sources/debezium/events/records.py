"""Input and output of decoding Debezium's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.options import DebeziumOptions, TopicMap
from headrace.sources.debezium.events.source_marks import MarkKey, Marks, SourceMark


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
    start: int | None = None
    """The offset from which they were read: a higher first offset shows that Kafka removed records. None: unknown."""

    @property
    def rows(self) -> int:
        return len(self.value)

    def place(self, row: int) -> str:
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

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


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

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Truncation:
    """A truncation: rows with a lower version are deleted."""

    table: TableName
    version: int


@dataclass(frozen=True, slots=True)
class DecodedRecords:
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


@dataclass(frozen=True, slots=True)
class DefinitionPeriod:
    """The time in which a table has one definition. It ends at the position of the next one."""

    file: str
    pos: int
    server_id: int
    """0 if the definition is of a snapshot."""
    misread: frozenset[str]
    """The columns whose values in this time have another meaning than the known one."""
    ddl: str


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table as the sink has it."""

    schema: TableSchema
    keys: tuple[str, ...] | None = None
    """The columns whose change moves a row in the sink (`TableRequirements.key_columns`). Empty: every update comes with the row before
    it. None: the primary key's, whose changes Debezium sends as two events."""
    order: TableVersioning | None = None
    """The versioning rule; None until the first record fixes it (`DecodedRecords.orders`)."""
    counts: bool = False
    """Whether the target counts rows, so that events that come again are dropped (`events.source_marks`)."""
    periods: Mapping[TableName, tuple[DefinitionPeriod, ...]] = field(default_factory=dict)
    """By the table's name in the source: its definitions, if some give events without a schema another meaning than the schema does."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The input of a task that reads records of any partition. Picklable."""

    options: DebeziumOptions = field(default_factory=DebeziumOptions)
    topics: TopicMap = field(default_factory=TopicMap)
    tables: Mapping[TableName, KnownTable] = field(default_factory=dict)
    tails: Mapping[tuple[str, int], LogTail] = field(default_factory=dict)
    """The state of the log at the end of each partition's last batch (`DecodedRecords.tail`)."""
    emptied: Mapping[TableName, int] = field(default_factory=dict)
    """The version of each table's last truncation (`DecodedRecords.truncations`), also for tables that are not known yet. Older images,
    from partitions that lag, are ignored."""
    begun: int | None = None
    """The epoch with which the pipe started, used for partitions without stored state; None: the current option."""
    snapshots: Mapping[tuple[TableName, str], KeylessSnapshot] = field(default_factory=dict)
    """For tables without a key: the snapshot whose rows the sink holds, by topic."""
    marks: Marks = field(default_factory=dict)
    """The marks of tables whose target counts rows, after the last batch (`DecodedRecords.marks`)."""
    _read: dict[tuple[str, int], dict[int, LogTail]] = field(default_factory=dict, compare=False, repr=False)
    """Tails of the records read so far, by offset."""
    _passed: dict[MarkKey, dict[int, SourceMark]] = field(default_factory=dict, compare=False, repr=False)
    """Marks of the records read so far, by offset."""

    def tail_before(self, records: Records) -> LogTail | None:
        """Return the state of the log before these records: after the last read of this reader, else after the last batch."""
        place = (records.topic, records.partition)
        first = int(records.offset[0].as_py()) if records.rows else 0
        ends = self._read.get(place, {})
        last = max((end for end in ends if end < first), default=None)
        return self.tails.get(place) if last is None else ends[last]

    def marks_before(self, records: Records) -> dict[MarkKey, SourceMark]:
        """Return the marks before these records: of their partition after the last read of this reader, of others after the last batch."""
        found = dict(self.marks)
        for key, ends in self._passed.items():
            last = max((end for end in ends if end < int(records.offset[0].as_py())), default=None)
            if key[1:] == (records.topic, records.partition) and last is not None:
                found[key] = ends[last]
        return found

    def first_epoch(self, topic: str) -> int:
        """Return the epoch of a partition's first records. In a topic that gets more partitions, no key goes back to an older epoch."""
        begun = self.options.epoch if self.begun is None else self.begun
        return max((tail.epoch for (name, _), tail in self.tails.items() if name == topic), default=begun)
