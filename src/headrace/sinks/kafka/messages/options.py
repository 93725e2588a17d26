"""Options of the Kafka sink. Plain data: picklable and comparable.

Every field is a setting of the same name under `kafka.`. The docstring of a field is its documentation for users.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError
from headrace.kafka.registry import MEMORY
from headrace.model.schema import TableName


class MessageFormat(StrEnum):
    """What a message's value is."""

    GENERIC = "generic"
    """mypipe's InsertMutation, UpdateMutation and DeleteMutation: a row's values in Avro maps by their type."""
    SPECIFIC = "specific"
    """A record of the table's own, in Avro; needs a schema repository."""
    DEBEZIUM = "debezium"
    """Debezium's change events, in JSON."""


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Tombstones(StrEnum):
    """Whether a deletion is followed by a message without a value, so that a compacted topic forgets the key."""

    AUTO = "auto"
    """As the format's readers expect: with Debezium's events, not with mypipe's."""
    ON = "on"
    OFF = "off"


class KeyChanges(StrEnum):
    """What an update that gives a row another key becomes (formats generic and specific)."""

    SPLIT = "split"
    """A deletion under the old key and an insertion under the new one: each key's messages tell its whole story."""
    UPDATE = "update"
    """One update under the new key, as mypipe sends it: the old key's partition hears nothing of it."""


class TextAs(StrEnum):
    """The map of TINYTEXT, TEXT, MEDIUMTEXT and LONGTEXT columns (format generic)."""

    BYTES = "bytes"
    """As mypipe has them: UTF-8 in `bytes`."""
    STRING = "string"


class UnsignedBigintAs(StrEnum):
    """How BIGINT UNSIGNED columns are carried."""

    EXACT = "exact"
    """Generic: their digits, in `strings`. Specific: an Avro decimal of 20 digits. All numbers fit."""
    LONG = "long"
    """As a long; a number above 9223372036854775807 halts."""


class Incompatible(StrEnum):
    """What happens when an altered table's schema cannot be read in place of the one before it (format specific)."""

    HALT = "halt"
    NEW = "new"
    """It is registered all the same, and readers must cope. (A registry over HTTP decides by itself: set the subject's compatibility.)"""


class Truncates(StrEnum):
    """Whether a message tells that a table was emptied, with the op `t` (format debezium)."""

    SKIP = "skip"
    """As with Debezium's default, `skipped.operations=t`."""
    SEND = "send"


class Timestamps(StrEnum):
    """The time of a message, by which a topic forgets old ones."""

    SENT = "sent"
    """When it was sent."""
    COMMIT = "commit"
    """When the change was committed: a topic that forgets by time drops changes that were old already."""


class Cleanup(StrEnum):
    """What a topic that is made keeps."""

    BROKER = "broker"
    """As the broker's default says."""
    DELETE = "delete"
    COMPACT = "compact"


TOPIC_FORMATS: Final = {
    MessageFormat.GENERIC: "${db}_${table}_generic",
    MessageFormat.SPECIFIC: "${db}_${table}_specific",
    MessageFormat.DEBEZIUM: "${prefix}.${db}.${table}",
}
CHANGEABLE: Final = frozenset(
    (
        "partitions",
        "replication",
        "cleanup",
        "create_topics",
        "compression",
        "incompatible",
        "truncates",
        "delivery_timeout_s",
        "properties",
    )
)
"""Options that may change when a pipe starts again: they do not change the messages."""
_ABOUT: Final = {
    "registry": (MessageFormat.GENERIC, MessageFormat.SPECIFIC),
    "key_changes": (MessageFormat.GENERIC, MessageFormat.SPECIFIC),
    "bigint_unsigned": (MessageFormat.GENERIC, MessageFormat.SPECIFIC),
    "incompatible": (MessageFormat.GENERIC, MessageFormat.SPECIFIC),
    "text": (MessageFormat.GENERIC,),
    "schemas": (MessageFormat.DEBEZIUM,),
    "truncates": (MessageFormat.DEBEZIUM,),
}
"""The formats that a setting is about, where it is not about all."""
_LEAST: Final = {"partitions": 0, "replication": 0, "delivery_timeout_s": 1}
_ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST: Final = 249


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How changes go to Kafka."""

    format: MessageFormat = MessageFormat.GENERIC
    topic: str = ""
    """The topics' names, with ${db}, ${table} and ${prefix}; empty: as mypipe and Debezium name them."""
    prefix: str = "headrace"
    """What Debezium calls the topic prefix: ${prefix} in topics' names, and the source's name in its events."""
    registry: str = MEMORY
    """Where Avro schemas are kept: nowhere but in memory (generic messages only), in a folder, or the http address of a registry."""
    partitions: int = 0
    """Of topics that are made; 0: as the broker's default says."""
    replication: int = 0
    """Of topics that are made; 0: as the broker's default says."""
    cleanup: Cleanup = Cleanup.BROKER
    """What topics that are made keep."""
    create_topics: bool = True
    """Whether topics that are missing are made."""
    compression: Compression = Compression.LZ4
    """Of messages, batch by batch."""
    timestamps: Timestamps = Timestamps.SENT
    tombstones: Tombstones = Tombstones.AUTO
    key_changes: KeyChanges = KeyChanges.SPLIT
    text: TextAs = TextAs.BYTES
    bigint_unsigned: UnsignedBigintAs = UnsignedBigintAs.EXACT
    incompatible: Incompatible = Incompatible.HALT
    schemas: bool = False
    """Whether Debezium's events carry their schema."""
    truncates: Truncates = Truncates.SKIP
    delivery_timeout_s: int = 60
    """For how long a message may be under way before the write counts as failed, and is tried again."""
    properties: tuple[tuple[str, str], ...] = ()
    """Further properties of the producer, by librdkafka's names."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, formats = getattr(self, one.name), _ABOUT.get(one.name, tuple(MessageFormat))
            if self.format not in formats and value != one.default:
                raise DefiniteError(
                    f"{one.name} means nothing for messages in the format {self.format}",
                    place=f"kafka.{one.name}",
                    hint=f"leave it out, or choose the format it is about: kafka.format = {' or '.join(formats)}",
                )
            if one.name in _LEAST and value < _LEAST[one.name]:
                raise DefiniteError(f"{value} is below {_LEAST[one.name]}", place=f"kafka.{one.name}", hint="give a larger number")

        if self.truncates is Truncates.SEND and self.cleanup is Cleanup.COMPACT:
            raise DefiniteError(
                "a compacted topic takes no messages without a key, and the message that a table was emptied has none",
                place="kafka.truncates",
                hint="leave it out, or choose another kafka.cleanup",
            )

    def topic_of(self, table: TableName) -> str:
        """The table's topic."""
        pattern = self.topic or TOPIC_FORMATS[self.format]
        name = pattern.replace("${prefix}", self.prefix).replace("${db}", table.database).replace("${table}", table.table)
        # Kafka allows no other characters; as Debezium does.
        clean = "".join(letter if letter in _ALLOWED else "_" for letter in name)
        if not clean or clean in (".", "..") or len(clean) > _LONGEST:
            raise DefiniteError(
                f"{clean[:60]!r} cannot be a topic's name", place=f"table {table}", hint="choose another pattern with kafka.topic"
            )
        return clean

    @property
    def is_apart(self) -> bool:
        """Whether each table is meant to have a topic of its own."""
        pattern = self.topic or TOPIC_FORMATS[self.format]
        return "${db}" in pattern and "${table}" in pattern

    @property
    def has_tombstones(self) -> bool:
        if self.tombstones is Tombstones.AUTO:
            return self.format is MessageFormat.DEBEZIUM
        return self.tombstones is Tombstones.ON
