"""Reads topics by confluent-kafka's consumer, and mypipe's messages by fastavro: it does not use Headrace."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from testkit.servers.broker import PrivateBroker

_WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Kept:
    """One message."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    timestamp_ms: int

    @property
    def position(self) -> bytes:
        return self.headers["headrace.position"]


def read_topic(broker: PrivateBroker, topic: str) -> list[Kept]:
    """All messages of a topic, partition by partition."""
    consumer = Consumer({**broker.client_settings(), "group.id": "oracle", "enable.auto.commit": False, "enable.partition.eof": False})
    try:
        places = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, timeout=_WAIT_S).topics[topic].partitions]
        ends = {place.partition: _end(consumer, place) for place in places}
        consumer.assign(places)
        return sorted(_read(consumer, ends), key=lambda kept: (kept.partition, kept.offset))
    finally:
        consumer.close()


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """The end of a partition. A topic that was created a moment ago may not have its leader yet."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=_WAIT_S)[1])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _read(consumer: Consumer, ends: dict[int, int]) -> list[Kept]:
    found: list[Kept] = []
    left = {partition for partition, end in ends.items() if end}
    while left:
        # Wait for one message; take those that have arrived with it.
        first = consumer.poll(_WAIT_S)
        assert first is not None, f"the topic ends at {ends}, but nothing comes after {len(found)} messages"
        messages = [first, *consumer.consume(10_000, timeout=0)]
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            headers = {name: bytes(value) for name, value in message.headers() or ()}
            if message.offset() >= ends[message.partition()] - 1:
                left.discard(message.partition())
            found.append(Kept(message.partition(), message.offset(), message.key(), message.value(), headers, message.timestamp()[1]))
    return found


def avro_record(message: bytes, schema: Any) -> dict[str, Any]:
    """Decode the record after the four bytes of mypipe's head; no bytes may follow. Logical types stay numbers and bytes."""
    body = io.BytesIO(message[4:])
    record = fastavro.schemaless_reader(body, fastavro.parse_schema(_plain(json.loads(json.dumps(schema)))), None)
    assert body.read() == b"", "bytes after the record"
    assert isinstance(record, dict)
    return record


def _plain(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items() if name != "logicalType"}
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema
