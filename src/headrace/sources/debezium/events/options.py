"""Options of the Debezium source. Picklable; every option is a setting of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.sources.debezium.events.topic_tables import TableNaming, TopicMap, TopicPattern, parse_table


class Format(StrEnum):
    """The encoding of records."""

    AUTO = "auto"
    """Detected per record: Avro by its first byte, JSON with or without a schema."""
    JSON = "json"
    AVRO = "avro"


class EventShape(StrEnum):
    """The shape of values."""

    AUTO = "auto"
    ENVELOPE = "envelope"
    FLAT = "flat"
    """The row itself, the output of `ExtractNewRecordState`."""


class VersionSource(StrEnum):
    """What orders the changes of a row."""

    SOURCE = "source"
    """The position in the source's log; topics without it are rejected."""
    OFFSET = "offset"
    """The record's offset; the number of partitions must not change."""
    AUTO = "auto"
    """`source` if events contain it, else `offset`; fixed for a table by its first record."""


class UnavailablePolicy(StrEnum):
    """Handling of a value that did not change and that the source did not log."""

    KEEP = "keep"
    HALT = "halt"


class MalformedPolicy(StrEnum):
    """Handling of a record that cannot be read."""

    HALT = "halt"
    DEAD_LETTER = "dead_letter"
    """Stored in the sink's table `headrace.errors`."""
    TOPIC = "topic"
    """Forwarded unchanged to `dead_letter_topic`."""


class SecondSnapshot(StrEnum):
    """Handling of a second snapshot of a table without a key: its rows cannot be distinguished from the first one's."""

    HALT = "halt"
    REPLACE = "replace"
    """The new rows replace all older ones."""


FIXED = frozenset({"versions"})
"""Options that cannot change at a restart: versions of one table would follow two rules."""


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """Options of reading topics."""

    format: Format = Format.AUTO
    shape: EventShape = EventShape.AUTO
    registry: str = ""
    """The schema registry's address, for Avro: http://host:8081."""
    schema_id_bytes: int = 4
    """Length of the schema id before an Avro body: 4; 8 for Apicurio's own converters before version 3."""
    versions: VersionSource = VersionSource.AUTO
    epoch: int = 0
    """To be raised by one when the source server was replaced by one with new log numbers."""
    unavailable: UnavailablePolicy = UnavailablePolicy.KEEP
    placeholder: str = "__debezium_unavailable_value"
    """The placeholder of such a value: the connector's `unavailable.value.placeholder`."""
    on_malformed: MalformedPolicy = MalformedPolicy.HALT
    dead_letter_topic: str = ""
    """The topic of such records, with on_malformed = "topic"."""
    second_snapshot: SecondSnapshot = SecondSnapshot.HALT
    schema_topic: str = ""
    """The connector's topic of schema changes (its `topic.prefix`), for events without a schema and for BIGINT UNSIGNED columns."""
    decimals: str = "precise"
    """For events without a schema: the connector's `decimal.handling.mode` (precise, string or double)."""
    numeric: str = "string"
    """The type of PostgreSQL's `numeric` without precision: string (all digits), or decimal(P,S), which rejects values with more."""
    times: str = "adaptive_time_microseconds"
    """For events without a schema: the connector's `time.precision.mode`."""
    binaries: str = "bytes"
    """For events without a schema: the connector's `binary.handling.mode` (bytes (base64), base64-url-safe or hex)."""
    flat_prefix: str = "__"
    """For flat rows: the prefix of fields about the event (`add.fields.prefix`)."""
    topics: tuple[tuple[str, str], ...] = ()
    """The tables of topics, by the topics' whole names: "shop.inventory.orders" = "inventory.orders". Several topics may map to one."""
    topic_patterns: tuple[tuple[str, str], ...] = ()
    """The same by regular expressions; \\1 refers to a group; the first match wins."""
    naming: TableNaming = TableNaming.TOPIC
    """The table of other topics: the last two parts of the topic's name, or the source fields of each event."""
    database: str = ""
    """The database of all tables, instead of the one in topic or event."""

    @property
    def topic_map(self) -> TopicMap:
        """The mapping of topics to tables."""
        tables = {topic: parse_table(table) for topic, table in self.topics}
        return TopicMap(tables, tuple(TopicPattern(pattern, table) for pattern, table in self.topic_patterns), self.naming, self.database)
