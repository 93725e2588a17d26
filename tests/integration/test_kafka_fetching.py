"""Ranges of a topic's records, fetched whole from a real broker: pieces, holes of every kind, and records that are gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import parse_kafka_url
from headrace.sources.debezium import fetching
from headrace.sources.debezium.fetching import AWAY, OffsetRange, fetch
from headrace.sources.debezium.records import Records
from testkit.broker import PrivateBroker
from testkit.pipeline import run_command


def _all(broker: PrivateBroker, wanted: OffsetRange) -> list[Records]:
    return list(fetch(parse_kafka_url(broker.url()), wanted))


def _offsets(pieces: list[Records]) -> list[int]:
    return [offset for piece in pieces for offset in piece.offset.to_pylist()]


def test_ranges_are_whole_and_go_on(broker: PrivateBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BLOCK_ROWS", 5000)
    topic = broker.create_topic(partitions=2)
    # What Debezium says of itself with every record is left where it is.
    itself = [(f"__debezium.context.{name}", b"x") for name in ("taskId", "runId")]
    headers = {9000: [("a", b"1"), ("a", None)], 9001: [*itself, ("", b""), ("__debezium.newkey", b"{}")], 9002: itself}
    told = {9000: headers[9000], 9001: headers[9001][2:]}
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
        assert found == (told if start <= 9000 < end else {})
    assert len(_all(broker, OffsetRange(topic, 0, 0, 12_000))) == 3
    # Whoever stops in the middle does not spoil the next range.
    pieces = fetch(parse_kafka_url(broker.url()), OffsetRange(topic, 0, 0, 12_000))
    next(pieces)
    pieces.close()
    assert _offsets(_all(broker, OffsetRange(topic, 0, 100, 200))) == list(range(100, 200))
    # A range that begins where the last one ended.
    broker.produce(topic, [{"value": b"new", "partition": 0}])
    assert _offsets(_all(broker, OffsetRange(topic, 0, 200, 12_001)))[-1] == 12_000


def test_holes(broker: PrivateBroker) -> None:
    """Transactions that were given up, and marks of those that were not, are offsets without records."""
    topic = broker.create_topic()
    producer = Producer(broker.client_settings(transactional_id=f"t-{topic}"))
    producer.init_transactions(30)
    for n, keep in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for m in range(3):
            producer.produce(topic, value=b"%d %d" % (n, m))
        # What is not sent yet is not sent at all if the transaction is given up.
        producer.flush(30)
        if keep:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    # Three records and a mark each; the last transaction leaves nothing at all.
    assert _offsets(_all(broker, OffsetRange(topic, 0, 0, 16))) == [0, 1, 2, 8, 9, 10]
    assert _offsets(_all(broker, OffsetRange(topic, 0, 2, 6))) == [2]
    assert _offsets(_all(broker, OffsetRange(topic, 0, 6, 10))) == [8, 9]
    assert _offsets(_all(broker, OffsetRange(topic, 0, 12, 16))) == []


def test_what_is_gone_and_who_is_away(fresh_broker: Callable[..., PrivateBroker], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = fresh_broker(accounts={"reader": "secret"})
    topic = broker.create_topic(retention_ms=1, segment_ms=100, file_delete_delay_ms=1)
    broker.produce(topic, [{"value": b"old", "timestamp": 1}])
    with pytest.raises(DefiniteError, match="gone from Kafka") as caught:
        _all(broker, OffsetRange(topic, 0, 5, 9))
    assert caught.value.place == f"{topic}[0]@5"
    monkeypatch.setattr(fetching, "_QUIET_S", 3.0)
    with pytest.raises(DefiniteError, match="does not let us in") as refused:
        list(fetch(parse_kafka_url(broker.url().replace("secret", "wrong")), OffsetRange(topic, 0, 0, 1)))
    assert "wrong" not in str(refused.value)
    with pytest.raises(DefiniteError, match=r"no\.such\.property"):
        list(fetch(parse_kafka_url(f"{broker.url()}&no.such.property=1"), OffsetRange(topic, 0, 0, 1)))
    broker.kill()
    begun = time.monotonic()
    with pytest.raises(TransientError) as away:
        _all(broker, OffsetRange(topic, 0, 0, 1))
    assert away.value.message.startswith(AWAY)
    assert time.monotonic() - begun < 30


def test_no_topic_to_read_once(broker: PrivateBroker, tmp_path: Path) -> None:
    done = run_command(
        "replicate", broker.url(), f"chdb:{tmp_path / 'sink'}", "--topics", "nobody.writes.*", "--once", "--state", str(tmp_path / "state")
    )
    assert done.code == 2, done.output
    assert "no topic matches nobody" in done.output
