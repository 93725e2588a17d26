"""The input of a read of Debezium records: options, topics, and the driver's knowledge about tables and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.events.topic_tables import TopicMap


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table as the sink has it."""

    schema: TableSchema
    keys: tuple[str, ...] | None = None
    """The columns whose change moves a row in the sink (`TableRequirements.key_columns`). Empty: every update comes with the row before
    it. None: the primary key's, whose changes Debezium sends as two events."""
    order: TableVersioning | None = None
    """What makes versions; None until the first record told it (`Decoded.orders`)."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What a task must know to read records of any partition. Picklable."""

    options: DebeziumOptions = field(default_factory=DebeziumOptions)
    topics: TopicMap = field(default_factory=TopicMap)
    tables: Mapping[TableName, KnownTable] = field(default_factory=dict)
    tails: Mapping[tuple[str, int], LogTail] = field(default_factory=dict)
    """How the log was when the last batch of each topic's partition ended (`Decoded.tail`)."""
    emptied: Mapping[TableName, int] = field(default_factory=dict)
    """The versions at which tables were emptied last (`Decoded.truncations`), also of tables that are not known yet: images below them,
    from partitions that lag behind, are left out."""
    begun: int | None = None
    """The epoch with which the pipe began, which is that of partitions of which nothing was read yet; None: the one that is set now."""
    snapshots: Mapping[tuple[TableName, str], KeylessSnapshot] = field(default_factory=dict)
    """Of tables without a key, the snapshot whose rows are there, by topic."""
    _read: dict[tuple[str, int], dict[int, LogTail]] = field(default_factory=dict, compare=False, repr=False)
    """Tails of what was read so far, by the offset at which each was."""

    def tail_before(self, records: Records) -> LogTail | None:
        """How the log was just before these records: after what this reader has read of their partition, else after the last batch."""
        place = (records.topic, records.partition)
        first = int(records.offset[0].as_py()) if records.rows else 0
        ends = self._read.get(place, {})
        last = max((end for end in ends if end < first), default=None)
        return self.tails.get(place) if last is None else ends[last]

    def first_epoch(self, topic: str) -> int:
        """The epoch of a partition's first records: in a topic that gets more partitions, no key goes back by moving to another."""
        begun = self.options.epoch if self.begun is None else self.begun
        return max((tail.epoch for (name, _), tail in self.tails.items() if name == topic), default=begun)
