"""Offset ranges of a topic, read from a real broker: pieces, gaps of every kind, and deleted records.

A batch that decompresses to much more than its size comes from librdkafka's mock broker: its limit is an error with a working remedy.
"""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.consumers.message_source import TopicConsumer
from headrace.pipes.debezium.bad_records import handle_bad_records
from headrace.pipes.debezium.record_task import CARRIED_BYTES, RecordTaskReport, read_refused_records
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium import offset_range_reader
from headrace.sources.debezium.events.options import DebeziumOptions, MalformedPolicy
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.offset_range_reader import UNREACHABLE, OffsetRange, read_offset_range
from headrace.sources.debezium.reader import DebeziumReader
from testkit.oracles.topics import read_topic
from testkit.pipelines.pipeline import run_command
from testkit.servers.broker import PrivateBroker

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


def _all(broker: PrivateBroker, wanted: OffsetRange) -> list[Records]:
    return list(read_offset_range(parse_kafka_url(broker.url()), wanted))


def _offsets(pieces: list[Records]) -> list[int]:
    return [offset for piece in pieces for offset in piece.offset.to_pylist()]


def test_ranges_are_complete_and_contiguous(broker: PrivateBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_range_reader, "BLOCK_ROWS", 5000)
    topic = broker.create_topic(partitions=2)
    # Debezium's headers of every record are not read.
    itself = [(f"__debezium.context.{name}", b"x") for name in ("taskId", "runId")]
    headers = {9000: [("a", b"1"), ("a", None)], 9001: [*itself, ("", b""), ("__debezium.newkey", b"{}")], 9002: itself}
    expected = {9000: headers[9000], 9001: headers[9001][2:]}
    sent = [
        {
            "value": None if n % 7 == 0 else b"v%d" % n,
            "key": None if n % 11 == 0 else b"k%d" % n,
            "partition": 0,
            "timestamp": 1_700_000_000_000 + n,
            **({"headers": headers[n]} if n in headers else {}),
        }
        for n in range(12_000)
    ]
    broker.produce(topic, sent)
    for start, end in ((0, 7), (7, 8001), (8001, 12_000), (3, 4)):
        pieces = _all(broker, OffsetRange(topic, 0, start, end))
        assert _offsets(pieces) == list(range(start, end))
        assert [piece.start for piece in pieces] == [piece.offset[0].as_py() for piece in pieces]
        rows = [row for piece in pieces for row in zip(piece.key.to_pylist(), piece.value.to_pylist(), strict=True)]
        assert rows == [(one["key"], one["value"]) for one in sent[start:end]]
        stamps = [stamp for piece in pieces for stamp in piece.timestamp.to_pylist()]
        assert stamps == [(1_700_000_000_000 + n) * 1000 for n in range(start, end)]
        found = {
            piece.offset[n].as_py(): [(header["key"], header["value"]) for header in row]
            for piece in pieces
            if piece.headers is not None
            for n, row in enumerate(piece.headers.to_pylist())
            if row is not None
        }
        assert found == (expected if start <= 9000 < end else {})
    assert len(_all(broker, OffsetRange(topic, 0, 0, 12_000))) == 3
    # Stopping in the middle does not affect the next range.
    reading = read_offset_range(parse_kafka_url(broker.url()), OffsetRange(topic, 0, 0, 12_000))
    assert isinstance(reading, Generator)
    next(reading)
    reading.close()
    assert _offsets(_all(broker, OffsetRange(topic, 0, 100, 200))) == list(range(100, 200))
    # A range that begins where the last one ended.
    broker.produce(topic, [{"value": b"new", "partition": 0}])
    assert _offsets(_all(broker, OffsetRange(topic, 0, 200, 12_001)))[-1] == 12_000


def test_holes(broker: PrivateBroker) -> None:
    """Aborted transactions and commit markers are offsets without records."""
    topic = broker.create_topic()
    producer = Producer(broker.client_settings(transactional_id=f"t-{topic}"))
    producer.init_transactions(30)
    for n, keep in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for m in range(3):
            producer.produce(topic, value=b"%d %d" % (n, m))
        # Unsent records of an aborted transaction are never sent.
        producer.flush(30)
        if keep:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    # Three records and a marker each; the last transaction leaves no offset.
    assert _offsets(_all(broker, OffsetRange(topic, 0, 0, 16))) == [0, 1, 2, 8, 9, 10]
    assert _offsets(_all(broker, OffsetRange(topic, 0, 2, 6))) == [2]
    assert _offsets(_all(broker, OffsetRange(topic, 0, 6, 10))) == [8, 9]
    assert _offsets(_all(broker, OffsetRange(topic, 0, 12, 16))) == []


def test_missing_records_and_unreachable_brokers(fresh_broker: Callable[..., PrivateBroker], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = fresh_broker(accounts={"reader": "secret"})
    topic = broker.create_topic(retention_ms=1, segment_ms=100, file_delete_delay_ms=1)
    broker.produce(topic, [{"value": b"old", "timestamp": 1}])
    with pytest.raises(DefiniteError, match="Kafka no longer has records") as caught:
        _all(broker, OffsetRange(topic, 0, 5, 9))
    assert caught.value.place == f"{topic}[0]@5"
    monkeypatch.setattr(offset_range_reader, "_QUIET_S", 3.0)
    with pytest.raises(DefiniteError, match="denies access") as refused:
        list(read_offset_range(parse_kafka_url(broker.url().replace("secret", "wrong")), OffsetRange(topic, 0, 0, 1)))
    assert "wrong" not in str(refused.value)
    with pytest.raises(DefiniteError, match=r"no\.such\.property"):
        list(read_offset_range(parse_kafka_url(f"{broker.url()}&no.such.property=1"), OffsetRange(topic, 0, 0, 1)))
    broker.kill()
    begun = time.monotonic()
    with pytest.raises(TransientError) as away:
        _all(broker, OffsetRange(topic, 0, 0, 1))
    assert away.value.message.startswith(UNREACHABLE)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("topics", "code", "said"), [("nobody.writes.*", 0, "no topic of "), ("nobody.writes.this", 2, "no topic matches ")]
)
def test_no_topic_to_read_once(broker: PrivateBroker, tmp_path: Path, topics: str, code: int, said: str) -> None:
    """A pattern may match later topics; an unknown name is probably misspelt."""
    done = run_command(
        "replicate", broker.url(), f"chdb:{tmp_path / 'sink'}", "--topics", topics, "--once", "--state", str(tmp_path / "state")
    )
    assert done.code == code, done.output
    assert said in done.output
    assert "nobody" in done.output


def test_records_that_cannot_be_read_are_kept_whole_however_large(broker: PrivateBroker) -> None:
    """A task reports positions only; all records together would exceed Spark's limit."""
    topic, letters = broker.create_topic(f"srv.shop.t{secrets.token_hex(4)}"), broker.create_topic()
    bad = [b"{%d " % number + b"x" * (600 << 10) for number in range(4)]
    broker.produce(topic, [{"key": b"k", "value": value, "headers": [("h", b"1")]} for value in bad])
    done = RecordTaskReport()
    for records in read_offset_range(parse_kafka_url(broker.url()), OffsetRange(topic, 0, 0, 4)):
        done.add(records, DebeziumReader().read(records))
    assert len(pickle.dumps(done.report())) < 2 * CARRIED_BYTES
    refused = read_refused_records([done.result])
    assert [(one.offset, one.is_whole) for one in refused] == [(0, True), (1, False), (2, False), (3, False)]

    def keep(where: str) -> int:
        choices = DebeziumOptions(on_malformed=MalformedPolicy.TOPIC, dead_letter_topic=where)
        return handle_bad_records(
            refused, choices, ClickHouseSink(ClickHouseTarget("127.0.0.1", 1)).own_tables(), parse_kafka_url(broker.url()), "pipe"
        )

    assert keep(letters) == 4
    kept = read_topic(broker, letters)
    assert [(one.key, one.value, one.headers["h"]) for one in kept] == [(b"k", value, b"1") for value in bad]
    assert [one.headers["headrace.error.offset"] for one in kept] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(DefiniteError, match="sending records that cannot be read to the topic") as error:
        keep(broker.create_topic(max_message_bytes=1000))
    assert "max.message.bytes" in error.value.hint
