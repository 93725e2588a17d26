"""What a pipe from topics is told and tells: topics by globs, where to begin, positions, records that are gone, Spark's errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.model.schema import TableName
from headrace.pipes.debezium.cluster import Standing, check_offsets
from headrace.pipes.debezium.evolving import check_policy
from headrace.pipes.debezium.notes import Notes
from headrace.pipes.debezium.position import KafkaPosition, initial_position
from headrace.pipes.debezium.settings import TopicSettings, check_chosen, parse_start, topic_pattern
from headrace.pipes.policy import SchemaPolicy
from headrace.sources.debezium.versions import Order, Rule, Tail
from headrace.spark.records import ARROW_ROWS, BLOCK_ROWS, KafkaAway, RecordStream, gathered, kafka_failure, records_of
from headrace.spark.stream import SparkFailed
from headrace.spark.tasks import Report

ADDRESS = KafkaAddress("127.0.0.1:1", user="reader", password="secret")
TOPIC = "shop.inventory.orders"


def test_topics_by_globs_names_and_patterns() -> None:
    pattern = topic_pattern(["shop.inventory.*"], r"crm\.\w+\.x", "one,two.three")
    for topic, matches in {
        TOPIC: True,
        "crm.a.x": True,
        "one": True,
        "two.three": True,
        "shopXinventory.a": False,
        "crm.a.xy": False,
    }.items():
        assert bool(re.fullmatch(pattern, topic)) is matches, topic
    with pytest.raises(DefiniteError, match="no topics are named"):
        topic_pattern([], "", "")
    with pytest.raises(DefiniteError, match="cannot be read"):
        topic_pattern([], "(", "")


def test_a_topic_that_was_read_is_not_left_out_later() -> None:
    check_chosen(topic_pattern(["shop.a.*"], "", ""), ["shop.a.t", "shop.a.u"])
    with pytest.raises(DefiniteError, match=r"shop\.b\.t was read so far") as refused:
        check_chosen(topic_pattern(["shop.a.*"], "", ""), ["shop.a.t", "shop.b.t"])
    assert "--exclude" in refused.value.hint


def test_where_to_begin() -> None:
    assert parse_start("latest") == {"startingOffsets": "latest"}
    assert parse_start("1970-01-01T00:00:01Z")["startingTimestamp"] == "1000"
    assert json.loads(parse_start('{"t": {"0": 5, "1": -2}}')["startingOffsets"]) == {"t": {"0": 5, "1": -2}}
    for wrong in ("yesterday", "{", '{"t": {"a": 1}}'):
        with pytest.raises(DefiniteError) as refused:
            parse_start(wrong)
        assert "earliest" in refused.value.hint


def test_positions(tmp_path: Path) -> None:
    position = KafkaPosition.from_json({TOPIC: {"1": 7, "0": 3}})
    assert str(position) == f"{TOPIC}[0]@3, {TOPIC}[1]@7"
    assert position.version == 10
    assert position.covers(KafkaPosition({TOPIC: {0: 3}}))
    assert not position.covers(KafkaPosition({TOPIC: {0: 4}}))
    assert initial_position(tmp_path) is None
    (tmp_path / "sources/0").mkdir(parents=True)
    (tmp_path / "sources/0/0").write_text('0v1\n{"t":{"0":4}}')
    assert initial_position(tmp_path) == KafkaPosition({"t": {0: 4}})


@pytest.mark.parametrize(
    ("reached", "low", "high", "known", "said"),
    [
        (5, 0, 9, "a", ""),
        (5, 6, 9, "a", "from 5 to 6 were removed before they were read"),
        (5, 0, 4, "a", "ends at 4"),
        (5, 0, 9, "b", "deleted and made anew"),
    ],
)
def test_records_that_are_gone(reached: int, low: int, high: int, known: str, said: str) -> None:
    now = Standing("c", KafkaPosition({TOPIC: {0: low}}), KafkaPosition({TOPIC: {0: high}}), ((TOPIC, "a"),))
    if not said:
        check_offsets(KafkaPosition({TOPIC: {0: reached}}), now, {TOPIC: known}, ADDRESS)
        return
    with pytest.raises(DefiniteError, match=said) as refused:
        check_offsets(KafkaPosition({TOPIC: {0: reached}}), now, {TOPIC: known}, ADDRESS)
    assert "snapshot" in refused.value.hint


def test_a_topic_that_is_there_no_more() -> None:
    with pytest.raises(DefiniteError, match="there no more"):
        check_offsets(KafkaPosition({TOPIC: {0: 1}}), Standing("c", KafkaPosition(), KafkaPosition(), ()), {}, ADDRESS)


def test_errors_of_sparks_source() -> None:
    assert isinstance(kafka_failure("java: org.apache.kafka.common.errors.TimeoutException: Timed out", ADDRESS), KafkaAway)
    lost = kafka_failure("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read records with secret in them", ADDRESS)
    assert isinstance(lost, DefiniteError)
    assert "retention" in lost.hint
    assert "secret" not in str(lost)
    assert kafka_failure("java.lang.OutOfMemoryError", ADDRESS) is None


def test_our_own_errors_are_not_taken_for_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may show what a row holds, such as the name of an error."""
    stream = object.__new__(RecordStream)
    stream._address = ADDRESS

    def failing(*_: object) -> list[Report]:
        raise failure

    monkeypatch.setattr("headrace.spark.records.run_task", failing)
    failure: DefiniteError = DefiniteError("the value 'java.util.concurrent.TimeoutException' is too long")
    with pytest.raises(DefiniteError, match="is too long"):
        stream._over(None, None)  # type: ignore[arg-type]
    failure = SparkFailed("Spark failed: java.util.concurrent.TimeoutException")
    with pytest.raises(KafkaAway):
        stream._over(None, None)  # type: ignore[arg-type]


def test_a_batch_that_is_read_again_begins_with_what_was_known_before(tmp_path: Path) -> None:
    notes = Notes.load(tmp_path)
    assert notes.note_orders({TableName("a", "b"): Order(Rule.LSN)})
    assert not notes.note_orders({TableName("a", "b"): Order(Rule.OFFSET)})
    notes.note_batch(0, {("t", 0): Tail("binlog", 1)})
    notes.note_batch(1, {("t", 0): Tail("binlog", 2)})
    again = Notes.load(tmp_path)
    assert again.orders == {TableName("a", "b"): Order(Rule.LSN)}
    assert again.tails_for(1) == {("t", 0): Tail("binlog", 1)}
    assert again.tails_for(2) == {("t", 0): Tail("binlog", 2)}
    again.note_batch(1, {("t", 0): Tail("binlog", 2)})
    assert again.tails_for(1) == {("t", 0): Tail("binlog", 1)}


def test_what_needs_the_source_is_refused() -> None:
    for words in ({"truncate_table": "keep"}, {"add_column": "resync"}):
        with pytest.raises(DefiniteError, match="pipe from Kafka"):
            check_policy(SchemaPolicy.of_words(words))
    with pytest.raises(DefiniteError, match="several tasks"):
        TopicSettings("x", min_partitions=8).check()


def _batch(topic: str, partition: int, offsets: range) -> pa.RecordBatch:
    rows = len(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * rows),
            "partition": pa.array([partition] * rows, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([1_000_000] * rows, pa.timestamp("us", "UTC")),
            "key": pa.array([b"k"] * rows),
            "value": pa.array([b"v"] * rows),
            "headers": pa.nulls(rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )


def test_sparks_batches_are_put_together_and_cut_by_partition() -> None:
    small = [_batch("t", 0, range(start, start + ARROW_ROWS)) for start in range(0, BLOCK_ROWS + ARROW_ROWS, ARROW_ROWS)]
    sizes = [batch.num_rows for batch in gathered([*small, _batch("t", 1, range(3))])]
    assert sum(sizes) == len(small) * ARROW_ROWS + 3
    assert len(sizes) == 2
    mixed = pa.concat_batches([_batch("t", 0, range(2)), _batch("t", 1, range(3)), _batch("u", 1, range(1))])
    assert [(one.topic, one.partition, one.rows, one.headers) for one in records_of(mixed)] == [
        ("t", 0, 2, None),
        ("t", 1, 3, None),
        ("u", 1, 1, None),
    ]
