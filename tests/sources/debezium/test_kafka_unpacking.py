"""Batches that decompress to much more than their size, from librdkafka's mock broker: its limit is an error with a working remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.consumers.message_source import TopicConsumer
from headrace.sources.debezium.offset_range_reader import OffsetRange, read_offset_range

_BYTES = 110 << 20
"""More than `receive.message.max.bytes`."""


@pytest.fixture(scope="module")
def bomb() -> Iterator[str]:
    """The address of a topic whose one batch, of a few kilobytes, decompresses to `_BYTES`."""
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    [broker] = mock.list_topics(timeout=30).brokers.values()
    servers = f"{broker.host}:{broker.port}"
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 1_000_000_000, "compression.codec": "zstd"})
    producer.produce("bomb", bytes(_BYTES), partition=0)
    assert producer.flush(120) == 0
    yield f"kafka://{servers}/bomb"
    del mock


def _polled(url: str) -> int:
    with closing(TopicConsumer(parse_kafka_url(url), ["bomb"])) as consumer:
        while not (found := consumer.poll(1, 5.0)):
            assert not consumer.is_at_end
        return len(found[0].messages[0].value() or b"")


def _fetched(url: str) -> int:
    [records] = read_offset_range(parse_kafka_url(url), OffsetRange("bomb", 0, 0, 1))
    return len(records.value[0].as_py())


@pytest.mark.parametrize("read", [_polled, _fetched])
def test_a_batch_that_unpacks_to_too_much_is_an_error_and_the_remedy_works(bomb: str, read: object) -> None:
    assert callable(read)
    with pytest.raises(DefiniteError) as caught:
        read(bomb)
    assert "write ?receive.message.max.bytes=BYTES" in caught.value.hint
    assert read(f"{bomb}?receive.message.max.bytes=200000000") == _BYTES
