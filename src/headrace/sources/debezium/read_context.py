"""The input of a read of Debezium records: options, topics, and the driver's knowledge about tables and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.events.source_marks import MarkKey, Marks, SourceMark
from headrace.sources.debezium.events.topic_tables import TopicMap


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
