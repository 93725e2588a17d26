"""What may be chosen about reading Debezium's topics. Picklable; every choice is a setting of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.sources.debezium.events.topic_tables import TableNaming, TopicMap, TopicPattern, parse_table


class Format(StrEnum):
    """How records are written."""

    AUTO = "auto"
    """As each record looks: Avro by its first byte, JSON with or without a schema."""
    JSON = "json"
    AVRO = "avro"


class EventShape(StrEnum):
    """What a value is."""

    AUTO = "auto"
    ENVELOPE = "envelope"
    FLAT = "flat"
    """The row itself, as `ExtractNewRecordState` leaves it."""


class VersionSource(StrEnum):
    """What makes a change newer than another of the same row."""

    SOURCE = "source"
    """The place in the source's own log, where events carry it; a topic whose events do not is refused."""
    OFFSET = "offset"
    """The record's offset: needs a topic that keeps its number of partitions."""
    AUTO = "auto"
    """`source` where events carry it, `offset` where they do not; fixed for a table by its first record."""


class UnavailablePolicy(StrEnum):
    """What becomes of a value that did not change and that the source did not log."""

    KEEP = "keep"
    HALT = "halt"


class MalformedPolicy(StrEnum):
    """What becomes of a record that cannot be read."""

    HALT = "halt"
    DEAD_LETTER = "dead_letter"
    """Kept in the sink's table `headrace.errors`."""
    TOPIC = "topic"
    """Sent on, as it is, to `dead_letter_topic`."""


class SecondSnapshot(StrEnum):
    """What becomes of a table without a key when the connector takes a snapshot of it again: nothing tells its rows from the first's."""

    HALT = "halt"
    REPLACE = "replace"
    """The new rows replace all older ones."""


FIXED = frozenset({"versions"})
"""What may not be another when a pipe starts again: versions of one table would be made by two rules."""


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """How topics are read."""

    format: Format = Format.AUTO
    shape: EventShape = EventShape.AUTO
    registry: str = ""
    """The schema registry's address, for Avro: http://host:8081."""
    schema_id_bytes: int = 4
    """How long the id of a schema is before an Avro body: 4; 8 as Apicurio's own converters wrote it until its version 3."""
    versions: VersionSource = VersionSource.AUTO
    epoch: int = 0
    """Raised by one when the source server was replaced by one whose log numbers begin anew."""
    unavailable: UnavailablePolicy = UnavailablePolicy.KEEP
    placeholder: str = "__debezium_unavailable_value"
    """What stands for such a value: the connector's `unavailable.value.placeholder`."""
    on_malformed: MalformedPolicy = MalformedPolicy.HALT
    dead_letter_topic: str = ""
    """Where such records go, with on_malformed = "topic"."""
    second_snapshot: SecondSnapshot = SecondSnapshot.HALT
    schema_topic: str = ""
    """The connector's topic of schema changes (its `topic.prefix`), for events without a schema and for BIGINT UNSIGNED columns."""
    decimals: str = "precise"
    """Of events without a schema, the connector's `decimal.handling.mode`: precise, string or double."""
    numeric: str = "string"
    """What PostgreSQL's `numeric` without digits becomes: string (all its digits), or decimal(P,S), which refuses values with more."""
    times: str = "adaptive_time_microseconds"
    """Of events without a schema, the connector's `time.precision.mode`."""
    binaries: str = "bytes"
    """Of events without a schema, the connector's `binary.handling.mode`: bytes (base64), base64-url-safe or hex."""
    flat_prefix: str = "__"
    """Of flat rows, what is before the names of fields about the event (`add.fields.prefix`)."""
    topics: tuple[tuple[str, str], ...] = ()
    """The tables of topics, by the topics' whole names: "shop.inventory.orders" = "inventory.orders". Several topics may lead to one."""
    topic_patterns: tuple[tuple[str, str], ...] = ()
    """The same by regular expressions, in which \\1 stands for a group; the first that matches counts."""
    naming: TableNaming = TableNaming.TOPIC
    """What names the table of a topic that neither of these does: its last two parts, or what each event says of its source."""
    database: str = ""
    """The database of all tables that topics or events name."""

    @property
    def topic_map(self) -> TopicMap:
        """Which table a topic's records belong to."""
        tables = {topic: parse_table(table) for topic, table in self.topics}
        return TopicMap(tables, tuple(TopicPattern(pattern, table) for pattern, table in self.topic_patterns), self.naming, self.database)
