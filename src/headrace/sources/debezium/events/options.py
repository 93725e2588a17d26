"""Options of the Debezium source. Picklable; every option is a setting of the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName

_HINT: Final = "map it: topic=database.table, or a pattern with a replacement"
FIXED = frozenset({"versions"})
"""Options that cannot change at a restart: versions of one table would follow two rules."""


class TableNaming(StrEnum):
    """The source of a table's name, if neither the map nor a pattern gives it."""

    TOPIC = "topic"
    """The last two parts of the topic's name."""
    SOURCE = "source"
    """The event's source fields: database (PostgreSQL: schema) and table. One topic may then contain several tables."""


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Topics whose whole name matches `pattern` map to `table`, in which \\1 or \\g<name> refer to groups."""

    pattern: str
    table: str

    def table_of(self, topic: str) -> TableName | None:
        found = re.fullmatch(self.pattern, topic)
        return None if found is None else parse_table(found.expand(self.table))


@dataclass(frozen=True, slots=True)
class TopicMap:
    """Maps topics to tables. Picklable.

    The first match counts: an explicit map; a pattern with a replacement; the default rule, which takes the topic's name
    (`prefix.database.table`, for PostgreSQL `prefix.schema.table`) or each event's source fields. Several topics may map to one table.
    """

    tables: Mapping[str, TableName] = field(default_factory=dict)
    """By the topic's whole name."""
    patterns: tuple[TopicPattern, ...] = ()
    naming: TableNaming = TableNaming.TOPIC
    database: str = ""
    """The database of all tables named by topic or event; overrides theirs."""

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            _check(pattern)

    def table_of(self, topic: str) -> TableName | None:
        """Return the table of a topic; None if its events name it."""
        mapped = self.tables.get(topic)
        if mapped is not None:
            return mapped
        for pattern in self.patterns:
            found = pattern.table_of(topic)
            if found is not None:
                return found
        return None if self.naming is TableNaming.SOURCE else self._of_parts(topic)

    def table_of_source(self, database: str, schema: str, table: str) -> TableName:
        """Return the table that an event names; `schema` is empty if a source has none."""
        return TableName(self.database or schema or database, table)

    def _of_parts(self, topic: str) -> TableName:
        parts = topic.split(".")
        if len(parts) < 2 or not all(parts[-2:]):
            if self.database and topic:
                return TableName(self.database, parts[-1])
            raise DefiniteError(f"the name of the topic {topic!r} does not say which table its records belong to", place=topic, hint=_HINT)
        name = TableName(parts[-2], parts[-1])
        return replace(name, database=self.database) if self.database else name


def parse_table(text: str) -> TableName:
    """Parse `database.table`; a database's name contains no dot."""
    database, dot, table = text.partition(".")
    if not (database and dot and table):
        raise DefiniteError(f"{text!r} is not a table's full name", hint="write database.table")
    return TableName(database, table)


def _check(pattern: TopicPattern) -> None:
    try:
        re.compile(pattern.pattern)
    except re.error as error:
        raise DefiniteError(f"the pattern {pattern.pattern!r} for topics cannot be read: {error}", hint="correct it") from error
    template = re.sub(r"\\(g<\w+>|\d+)", "x", pattern.table)
    parse_table(template)


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
