"""Looks up types that events do not include: in the connector's schema history topic, else in the existing target table.

Invariant: a type from an event is never replaced, only one that was inferred from JSON values. The exception is what an event's schema
leaves open: `int64` is a BIGINT or a BIGINT UNSIGNED, whose values from 2^63 on arrive as negative numbers.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.debezium.kafka_cluster import kafka_errors, quiet_settings
from headrace.retry import retrying
from headrace.sources.debezium.events.records import DetectedSchema
from headrace.sources.debezium.schema_history_topic import apply_definitions, read_record
from headrace.sources.debezium.types.column_mapping import is_guessed, may_be_unsigned
from headrace.sources.debezium.types.definition_periods import source_name
from headrace.sources.debezium.types.inferred_fields import MILLIS_DIGITS

log = logging.getLogger("headrace")

_TIMEOUT_S: Final = 30.0
_PATIENCE_S: Final = 0.5
_MOST_MESSAGES: Final = 1000
_MODES: Final = {"times": "time.precision.mode", "decimals": "decimal.handling.mode"}
"""Settings of Headrace and the connector's settings that they repeat."""
_MOST_NAMED: Final = 10
"""The maximum number of columns that a warning names."""


@dataclass(slots=True)
class TypeLookup:
    """Schemas of tables from sources other than events."""

    in_sink: Callable[[Iterable[TableName]], Mapping[TableName, TableSchema]]
    """Returns the schemas of existing target tables."""
    in_topic: Callable[[], list[bytes]] | None = None
    """Returns all records of the schema history topic, if there is one."""
    unset: AbstractSet[str] = frozenset()
    """Those of `debezium.times` and `debezium.decimals` that the user has not set: a target alone does not show what values mean."""
    _warned: set[TableName] = field(default_factory=set)
    _doubted: set[TableName] = field(default_factory=set)
    """Tables that a warning about possibly unsigned columns has named."""

    def refine(self, found: Iterable[DetectedSchema]) -> list[DetectedSchema]:
        """Replace inferred types by known ones. The topic is read at most once."""
        tables = functools.cache(self._of_topic)
        made = [self._with_signs(self._refine(one, tables), tables) for one in found]
        # A target's Int64 does not tell the sign: it may come from earlier events.
        unsure = (one for one in made if one.unsigned and any(map(may_be_unsigned, one.schema.columns)))
        doubtful = [one.schema for one in unsure if self._in_topic(one, tables) is None]
        self.warn_of_signs(schema for schema in doubtful if schema.name not in self._doubted)
        return made

    def check_known(self, tables: Iterable[TableSchema]) -> None:
        """Warn of columns of earlier tables that may be unsigned."""
        doubtful = [schema for schema in tables if any(map(may_be_unsigned, schema.columns))]
        topic_schemas = self._of_topic() if doubtful else {}
        signed = {(name, column.name) for name, schema in topic_schemas.items() for column in schema.columns if column.kind is Kind.INT64}
        self.warn_of_signs(
            replace(schema, columns=tuple(column for column in schema.columns if (schema.name, column.name) not in signed))
            for schema in doubtful
        )

    def warn_of_signs(self, tables: Iterable[TableSchema]) -> None:
        columns = []
        for schema in tables:
            self._doubted.add(schema.name)
            columns += [f"{schema.name}.{column.name}" for column in schema.columns if may_be_unsigned(column)]
        if columns:
            log.warning(
                "the events do not show whether the 64-bit integers of %s are signed: if one is a BIGINT UNSIGNED, its values from 2^63 "
                "on are negative in the events and are written so; remedy: debezium.schema_topic, column.propagate.source.type or "
                "bigint.unsigned.handling.mode=precise of the connector, or a target column of type UInt64 (an existing table "
                "must be replicated again, with a new --state and an empty target)",
                ", ".join(columns[:_MOST_NAMED]) + (f" and {len(columns) - _MOST_NAMED} more" if len(columns) > _MOST_NAMED else ""),
            )

    def _with_signs(self, found: DetectedSchema, tables: Callable[[], Mapping[TableName, TableSchema]]) -> DetectedSchema:
        """Mark columns as unsigned that the topic or the target table knows as unsigned."""
        if not found.unsigned or not any(map(may_be_unsigned, found.schema.columns)):
            return found
        known = self._in_topic(found, tables) or self._in_target(found.schema.name)
        described = {column.name: column for column in known.columns} if known is not None else {}
        columns = tuple(
            replace(column, kind=Kind.UINT64, source_type=described[column.name].source_type)
            if may_be_unsigned(column) and column.name in described and described[column.name].kind is Kind.UINT64
            else column
            for column in found.schema.columns
        )
        return replace(found, schema=replace(found.schema, columns=columns))

    def _in_target(self, name: TableName) -> TableSchema | None:
        try:
            return retrying(lambda: self.in_sink([name])).get(name)
        except DefiniteError as error:
            # A target column of another type is no obstacle: the events have schemas.
            log.debug("signs of %s: %s", name, error.message)
            return None

    def _refine(self, found: DetectedSchema, tables: Callable[[], Mapping[TableName, TableSchema]]) -> DetectedSchema:
        sent = found.schema
        if not any(map(is_guessed, sent.columns)):
            return found
        known = self._in_topic(found, tables) or retrying(lambda: self.in_sink([sent.name])).get(sent.name)
        if known is None:
            if self.in_topic is None and sent.name not in self._warned:
                self._warned.add(sent.name)
                log.warning(
                    "events of %s carry no schema, and there is neither a target table nor debezium.schema_topic to tell their types: "
                    "they are taken as their JSON values look",
                    sent.name,
                )
            return replace(found, certain=False)
        described = {column.name: column for column in known.columns}
        if self._in_topic(found, tables) is None:
            _check_forms(found, described, self.unset)
        columns = (described.get(column.name, column) if is_guessed(column) else column for column in sent.columns)
        keyed = frozenset(sent.primary_key)
        whole = tuple(replace(column, nullable=False) if column.name in keyed else column for column in columns)
        return replace(found, schema=replace(sent, columns=whole), certain=self._in_topic(found, tables) is not None)

    def _in_topic(self, found: DetectedSchema, tables: Callable[[], Mapping[TableName, TableSchema]]) -> TableSchema | None:
        name = found.schema.name
        return tables().get(name) or tables().get(source_name(name, found.topic))

    def _of_topic(self) -> dict[TableName, TableSchema]:
        records = [] if self.in_topic is None else self.in_topic()
        return apply_definitions((one for value in records for one in read_record(value)), {})


def _check_forms(found: DetectedSchema, described: Mapping[str, Column], unset: AbstractSet[str]) -> None:
    """Refuse values whose meaning depends on the source's definition, which a target column does not show."""
    for sent in filter(is_guessed, found.schema.columns):
        column, doubt = described.get(sent.name), ""
        if column is None:
            continue
        is_wall_clock = column.form is ValueForm.TIMESTAMP and not column.type.zoned
        if sent.form is ValueForm.INTEGER and is_wall_clock and column.precision > MILLIS_DIGITS:
            setting, confirmed = "times", "as many fractional digits as"
            doubt = "whether numbers are milliseconds (DATETIME to DATETIME(3)) or microseconds (DATETIME(4) to DATETIME(6))"
        elif sent.form is ValueForm.TEXT and column.form is ValueForm.DECIMAL:
            setting, confirmed, doubt = "decimals", "the same scale as", "how many digits of a DECIMAL are after the point"
        if doubt and setting in unset:
            mode = _MODES[setting]
            raise DefiniteError(
                f"column {column.name} of the target of {found.schema.name} is {column.source_type}, and the events carry no schema: they "
                f"do not show {doubt}",
                place=f"{found.place}, column {column.name}",
                hint="let events carry their schemas (value.converter.schemas.enable=true); or give debezium.schema_topic; or set "
                f"debezium.{setting} to the connector's {mode}, which confirms that the target's column has {confirmed} the source's",
            )


def read_topic(address: KafkaAddress, topic: str) -> list[bytes]:
    """Read all records of a topic, in order."""
    return retrying(lambda: _read(address, topic))


def _read(address: KafkaAddress, topic: str) -> list[bytes]:
    settings = {**quiet_settings(address), "group.id": "headrace-looking", "enable.auto.commit": False, "enable.partition.eof": True}
    with kafka_errors(address), closing(Consumer(settings)) as consumer:
        listed = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if listed.error is not None or not listed.partitions:
            raise DefiniteError(
                f"there is no topic {topic} of schema changes",
                place=str(address),
                hint="give the connector's topic.prefix as debezium.schema_topic (include.schema.changes must be true)",
            )
        found: list[bytes] = []
        for partition in listed.partitions:
            found += _read_partition(consumer, TopicPartition(topic, partition, OFFSET_BEGINNING))
        return found


def _read_partition(consumer: Consumer, place: TopicPartition) -> list[bytes]:
    low, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
    found: list[bytes] = []
    if low >= end:
        return found
    consumer.assign([place])
    deadline, reached = time.monotonic() + _TIMEOUT_S, low
    while reached < end:
        # Request no more than are available: a consumer would wait for more.
        messages = consumer.consume(min(_MOST_MESSAGES, end - reached), timeout=_PATIENCE_S)
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # The last offsets may be transaction markers, which are no records.
            value, reached = (message.value(), (message.offset() or 0) + 1) if error is None else (None, end)
            if value is not None:
                found.append(value)
        if messages:
            deadline = time.monotonic() + _TIMEOUT_S
        elif time.monotonic() > deadline:
            raise TransientError(f"the topic {place.topic} gives no records", place=f"{place.topic}[{place.partition}]")
    return found


def topic_end(address: KafkaAddress, topic: str) -> Callable[[], int]:
    """Return a query for how many offsets a topic has; 0 if there is no such topic."""
    clients: list[Consumer] = []

    def query() -> int:
        with kafka_errors(address):
            if not clients:
                clients.append(Consumer({**quiet_settings(address), "group.id": "headrace-looking", "enable.auto.commit": False}))
            listed = clients[0].list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            places = [TopicPartition(topic, partition) for partition in listed.partitions or ()]
            return sum(clients[0].get_watermark_offsets(place, timeout=_TIMEOUT_S)[1] for place in places)

    return lambda: retrying(query)
