"""Types of events that say nothing of theirs: from the connector's topic of schema changes, else from the target table that is there.

Invariant: what an event itself says of a column's type is never replaced, only what was guessed from how JSON's values look.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.debezium.cluster import kafka_error, quiet_settings
from headrace.retry import retrying
from headrace.sources.debezium.columns import is_guessed
from headrace.sources.debezium.records import Found
from headrace.sources.debezium.schema_topic import follow, read_record

log = logging.getLogger("headrace")

_TIMEOUT_S: Final = 30.0
_PATIENCE_S: Final = 0.5
_MOST_MESSAGES: Final = 1000


@dataclass(slots=True)
class Descriptions:
    """What is known of tables besides their events."""

    in_sink: Callable[[Iterable[TableName]], Mapping[TableName, TableSchema]]
    """Target tables that are there, as schemas."""
    in_topic: Callable[[], list[bytes]] | None = None
    """All records of the topic of schema changes, if there is one."""
    _warned: set[TableName] = field(default_factory=set)

    def better(self, found: Iterable[Found]) -> list[Found]:
        """What was found, with types that are known instead of guessed ones. The topic is read once, if at all."""
        tables = functools.cache(self._of_topic)
        return [self._better(one, tables) for one in found]

    def _better(self, found: Found, tables: Callable[[], Mapping[TableName, TableSchema]]) -> Found:
        told = found.schema
        if not any(map(is_guessed, told.columns)):
            return found
        known = self._known(found, tables)
        if known is None:
            if self.in_topic is None and told.name not in self._warned:
                self._warned.add(told.name)
                log.warning(
                    "events of %s carry no schema, and there is neither a target table nor debezium.schema_topic to tell their types: "
                    "they are taken as their JSON values look",
                    told.name,
                )
            return found
        described = {column.name: column for column in known.columns}
        columns = (described.get(column.name, column) if is_guessed(column) else column for column in told.columns)
        keyed = frozenset(told.primary_key)
        whole = tuple(replace(column, nullable=False) if column.name in keyed else column for column in columns)
        return replace(found, schema=replace(told, columns=whole))

    def _known(self, found: Found, tables: Callable[[], Mapping[TableName, TableSchema]]) -> TableSchema | None:
        name = found.schema.name
        parts = found.topic.split(".")
        source = TableName(parts[-2], parts[-1]) if len(parts) > 1 else name
        known = tables().get(name) or tables().get(source)
        return known if known is not None else retrying(lambda: self.in_sink([name])).get(name)

    def _of_topic(self) -> dict[TableName, TableSchema]:
        records = [] if self.in_topic is None else self.in_topic()
        return follow((one for value in records for one in read_record(value)), {})


def read_topic(address: KafkaAddress, topic: str) -> list[bytes]:
    """All records of a topic, in its order."""

    def read() -> list[bytes]:
        try:
            return _read(address, topic)
        except KafkaException as error:
            raise kafka_error(error, address) from error

    return retrying(read)


def _read(address: KafkaAddress, topic: str) -> list[bytes]:
    consumer = Consumer(
        {**quiet_settings(address), "group.id": "headrace-looking", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
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
    finally:
        consumer.close()


def _read_partition(consumer: Consumer, place: TopicPartition) -> list[bytes]:
    low, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
    found: list[bytes] = []
    if low >= end:
        return found
    consumer.assign([place])
    deadline, reached = time.monotonic() + _TIMEOUT_S, low
    while reached < end:
        # No more than are there: a consumer that asks for more waits for them.
        messages = consumer.consume(min(_MOST_MESSAGES, end - reached), timeout=_PATIENCE_S)
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # At the end of what can be read there may be marks of transactions, which are no records.
            value, reached = (message.value(), (message.offset() or 0) + 1) if error is None else (None, end)
            if value is not None:
                found.append(value)
        if messages:
            deadline = time.monotonic() + _TIMEOUT_S
        elif time.monotonic() > deadline:
            raise TransientError(f"the topic {place.topic} gives no records", place=f"{place.topic}[{place.partition}]")
    return found
