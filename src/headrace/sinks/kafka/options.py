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
    """The format of message values."""

    GENERIC = "generic"
    """mypipe's InsertMutation, UpdateMutation and DeleteMutation: a row's values in Avro maps by their type."""
    SPECIFIC = "specific"
    """One Avro record type per table; needs a schema repository."""
    DEBEZIUM = "debezium"
    """Debezium's change events, in JSON."""


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Tombstones(StrEnum):
    """Whether a message without a value follows each deletion, so that compaction removes the key."""

    AUTO = "auto"
    """With format debezium; not with generic and specific."""
    ON = "on"
    OFF = "off"


class KeyChanges(StrEnum):
    """How an update that changes a row's key is sent (formats generic and specific)."""

    SPLIT = "split"
    """A deletion with the old key and an insertion with the new key."""
    UPDATE = "update"
    """One update with the new key, as mypipe sends it; the old key's partition gets no message."""


class MutationSchemas(StrEnum):
    """The schemas of InsertMutation, UpdateMutation and DeleteMutation (format generic)."""

    CURRENT = "current"
    """With `txid` and the map `bytes`, as mypipe's current master."""
    OLDER = "older"
    """Without `txid` and `bytes`, as mypipe's first releases: `strings` holds text as it is and binary values as hexadecimal digits."""


class TextAs(StrEnum):
    """The map of TINYTEXT, TEXT, MEDIUMTEXT and LONGTEXT columns (format generic)."""

    BYTES = "bytes"
    """UTF-8 in `bytes`, as mypipe sends them."""
    STRING = "string"


class UnsignedBigintAs(StrEnum):
    """How BIGINT UNSIGNED columns are encoded."""

    EXACT = "exact"
    """Generic: decimal digits in `strings`. Specific: an Avro decimal of 20 digits. All values fit."""
    LONG = "long"
    """As a long; a value above 9223372036854775807 halts the pipe."""


class Incompatible(StrEnum):
    """What happens when the schema of an altered table is incompatible with the previous one (format specific)."""

    HALT = "halt"
    NEW = "new"
    """The schema is registered nevertheless. (A registry over HTTP decides itself: set the compatibility of the subject.)"""


class Truncates(StrEnum):
    """Whether TRUNCATE TABLE is sent as a message with op `t` (format debezium)."""

    SKIP = "skip"
    """Debezium's default (`skipped.operations=t`)."""
    SEND = "send"


class Timestamps(StrEnum):
    """The timestamp of messages, which determines retention."""

    SENT = "sent"
    """The time of sending."""
    COMMIT = "commit"
    """The commit time of the change; retention by time may delete old changes at once."""


class Cleanup(StrEnum):
    """The cleanup policy of created topics."""

    BROKER = "broker"
    """The broker's default."""
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
"""Options that may change at a restart: they do not change the messages."""
_ABOUT: Final = {
    **dict.fromkeys(("registry", "key_changes", "bigint_unsigned", "incompatible"), (MessageFormat.GENERIC, MessageFormat.SPECIFIC)),
    **dict.fromkeys(("mutation_schemas", "text"), (MessageFormat.GENERIC,)),
    **dict.fromkeys(("schemas", "truncates"), (MessageFormat.DEBEZIUM,)),
}
"""The formats that use a setting, if not all do."""
_LEAST: Final = {"partitions": 0, "replication": 0, "delivery_timeout_s": 1}
_ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST: Final = 249


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How changes are written to Kafka."""

    format: MessageFormat = MessageFormat.GENERIC
    topic: str = ""
    """The pattern of topic names, with ${db}, ${table} and ${prefix}; empty: as mypipe and Debezium name topics."""
    prefix: str = "headrace"
    """Debezium's topic prefix: ${prefix} in topic names, and the source name in events."""
    registry: str = MEMORY
    """Where Avro schemas are stored: `memory` (generic messages only), a folder, or the http address of a registry."""
    partitions: int = 0
    """Partitions of created topics; 0: the broker's default."""
    replication: int = 0
    """Replication factor of created topics; 0: the broker's default."""
    cleanup: Cleanup = Cleanup.BROKER
    """The cleanup policy of created topics; `broker`: the broker's default."""
    create_topics: bool = True
    """Whether missing topics are created."""
    compression: Compression = Compression.LZ4
    """Compression of message batches."""
    timestamps: Timestamps = Timestamps.SENT
    tombstones: Tombstones = Tombstones.AUTO
    key_changes: KeyChanges = KeyChanges.SPLIT
    mutation_schemas: MutationSchemas = MutationSchemas.CURRENT
    text: TextAs = TextAs.BYTES
    bigint_unsigned: UnsignedBigintAs = UnsignedBigintAs.EXACT
    incompatible: Incompatible = Incompatible.HALT
    schemas: bool = False
    """Whether Debezium events contain their schema."""
    truncates: Truncates = Truncates.SKIP
    delivery_timeout_s: int = 60
    """Seconds until an unacknowledged message counts as failed and is sent again."""
    properties: tuple[tuple[str, str], ...] = ()
    """More producer properties, by librdkafka's names."""

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
        """Whether each table has its own topic."""
        pattern = self.topic or TOPIC_FORMATS[self.format]
        return "${db}" in pattern and "${table}" in pattern

    @property
    def has_tombstones(self) -> bool:
        if self.tombstones is Tombstones.AUTO:
            return self.format is MessageFormat.DEBEZIUM
        return self.tombstones is Tombstones.ON
