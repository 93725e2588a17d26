"""Pipes from topics: topic globs, start positions, stored positions, deleted records, Spark's errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import KafkaError

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.model.schema import TableName
from headrace.pipes.debezium.batch_runner import RecordBatchRunner
from headrace.pipes.debezium.kafka_cluster import ClusterTopics, check_offsets
from headrace.pipes.debezium.pipe_notes import FILE, DebeziumPipeNotes
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.debezium.record_task import select_ranges
from headrace.pipes.debezium.schema_evolution import check_policy
from headrace.pipes.debezium.topic_settings import TopicSettings, check_chosen, parse_start, topic_pattern
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.runtime.checkpoint import initial_offset
from headrace.runtime.reports import decode_error, encode_error
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning, VersionRule
from headrace.sources.debezium.offset_range_reader import (
    UNREACHABLE,
    KafkaUnavailable,
    OffsetRange,
    classify_transient_error,
    reading_error,
)
from headrace.spark.runtime.record_stream import plan_offset_ranges, translate_kafka_error

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


def test_start_options() -> None:
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
    assert initial_offset(tmp_path) is None
    (tmp_path / "sources/0").mkdir(parents=True)
    (tmp_path / "sources/0/0").write_text('0v1\n{"t":{"0":4}}')
    assert initial_offset(tmp_path) == {"t": {"0": 4}}


@pytest.mark.parametrize(
    ("reached", "low", "high", "known", "said"),
    [
        (5, 0, 9, "a", ""),
        (5, 6, 9, "a", "from 5 to 6 were removed before they were read"),
        (5, 0, 4, "a", "ends at 4"),
        (5, 0, 9, "b", "deleted and recreated"),
    ],
)
def test_records_that_are_gone(reached: int, low: int, high: int, known: str, said: str) -> None:
    now = ClusterTopics("c", KafkaPosition({TOPIC: {0: low}}), KafkaPosition({TOPIC: {0: high}}), ((TOPIC, "a"),))
    if not said:
        check_offsets(KafkaPosition({TOPIC: {0: reached}}), now, {TOPIC: known}, ADDRESS)
        return
    with pytest.raises(DefiniteError, match=said) as refused:
        check_offsets(KafkaPosition({TOPIC: {0: reached}}), now, {TOPIC: known}, ADDRESS)
    assert "snapshot" in refused.value.hint


def test_a_deleted_topic() -> None:
    with pytest.raises(DefiniteError, match="there no more"):
        check_offsets(KafkaPosition({TOPIC: {0: 1}}), ClusterTopics("c", KafkaPosition(), KafkaPosition(), ()), {}, ADDRESS)


def test_errors_of_sparks_source() -> None:
    assert isinstance(translate_kafka_error("java: org.apache.kafka.common.errors.TimeoutException: Timed out", ADDRESS), KafkaUnavailable)
    lost = translate_kafka_error("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read records with secret in them", ADDRESS)
    assert isinstance(lost, DefiniteError)
    assert "retention" in lost.hint
    assert "secret" not in str(lost)
    assert translate_kafka_error("java.lang.OutOfMemoryError", ADDRESS) is None


def test_a_batch_that_is_read_again_begins_with_what_was_known_before(tmp_path: Path) -> None:
    notes = DebeziumPipeNotes.load(StateDirectory(tmp_path))
    assert notes.note_orders({TableName("a", "b"): TableVersioning(VersionRule.LSN)})
    assert not notes.note_orders({TableName("a", "b"): TableVersioning(VersionRule.OFFSET)})
    notes.note_batch(0, {("t", 0): LogTail("binlog", 1)})
    notes.note_batch(1, {("t", 0): LogTail("binlog", 2)})
    again = DebeziumPipeNotes.load(StateDirectory(tmp_path))
    assert again.orders == {TableName("a", "b"): TableVersioning(VersionRule.LSN)}
    assert again.tails_for(1) == {("t", 0): LogTail("binlog", 1)}
    assert again.tails_for(2) == {("t", 0): LogTail("binlog", 2)}
    again.note_batch(1, {("t", 0): LogTail("binlog", 2)})
    assert again.tails_for(1) == {("t", 0): LogTail("binlog", 1)}


def test_records_in_the_dead_letter_topic_are_counted_once(tmp_path: Path) -> None:
    """In all runs, however often a batch is repeated; a state without the count begins with 0."""
    notes = DebeziumPipeNotes.load(StateDirectory(tmp_path))
    notes.note_batch(0, {}, sent=2)
    notes.note_batch(1, {})
    for _ in range(2):
        notes = DebeziumPipeNotes.load(StateDirectory(tmp_path))
        notes.note_batch(2, {}, sent=3)
        assert notes.sent == 5
    notes.note_batch(3, {}, sent=1)
    assert DebeziumPipeNotes.load(StateDirectory(tmp_path)).sent == 6
    old = {key: value for key, value in (StateDirectory(tmp_path).read(FILE) or {}).items() if key not in ("sent", "sent_before")}
    StateDirectory(tmp_path).replace(FILE, old)
    assert DebeziumPipeNotes.load(StateDirectory(tmp_path)).sent == 0


def test_policies_that_need_the_source_are_rejected() -> None:
    for words in ({"truncate_table": "keep"}, {"add_column": "resync"}):
        with pytest.raises(DefiniteError, match="pipe from Kafka"):
            check_policy(SchemaPolicy.from_dict(words))
    with pytest.raises(DefiniteError, match="several tasks"):
        TopicSettings("x", min_partitions=8).check()


def test_waits_of_tasks_for_kafka_and_for_the_sink_are_distinguished() -> None:
    away = decode_error(encode_error(reading_error(KafkaError(KafkaError._TRANSPORT), "here")))
    assert isinstance(away, TransientError)
    assert isinstance(classify_transient_error(away), KafkaUnavailable)
    sink = TransientError("ClickHouse cannot be reached")
    assert classify_transient_error(sink) is sink
    denied = reading_error(KafkaError(KafkaError._AUTHENTICATION), "here")
    assert isinstance(denied, DefiniteError)


def test_an_error_of_the_sink_is_not_its_own_cause() -> None:
    runner, sink, kafka = mock.Mock(), TransientError("ClickHouse cannot be reached"), TransientError(f"{UNREACHABLE}: x")
    causes = {}
    for error in (sink, kafka):
        selected = mock.patch("headrace.pipes.debezium.batch_runner.select_ranges", return_value=([mock.Mock()], []))
        with selected, pytest.raises(TransientError) as caught:
            RecordBatchRunner._read(runner, mock.Mock(side_effect=error), [], 0, {})
        causes[type(caught.value)] = caught.value.__cause__
    assert causes == {TransientError: None, KafkaUnavailable: kafka}


def test_a_batch_s_ranges(tmp_path: Path) -> None:
    for place, offsets in (("sources/0/0", '0v1\n{"t":{"0":4,"1":0}}'), ("offsets/0", _planned('{"t":{"0":10,"1":0}}'))):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(offsets)
    (tmp_path / "offsets/1").write_text(_planned('{"t":{"0":20,"1":7},"u":{"0":3}}'))
    assert plan_offset_ranges(tmp_path, 0) == [OffsetRange("t", 0, 4, 10)]
    whole = [OffsetRange("t", 0, 10, 20), OffsetRange("t", 1, 0, 7), OffsetRange("u", 0, 0, 3)]
    assert plan_offset_ranges(tmp_path, 1) == plan_offset_ranges(tmp_path, 1, at_least=2) == whole
    cut = plan_offset_ranges(tmp_path, 1, at_least=5)
    assert len(cut) >= 5
    for one in whole:
        pieces = [(piece.start, piece.end) for piece in cut if (piece.topic, piece.partition) == (one.topic, one.partition)]
        assert [piece[0] for piece in pieces] == [one.start, *(piece[1] for piece in pieces[:-1])]
        assert pieces[-1][1] == one.end


@pytest.mark.parametrize(
    ("now", "said"),
    [('{"t":{"0":9,"1":7}}', "ends at 9"), ('{"t":{"0":10}}', "is there no more"), ('{"u":{"0":3}}', "is there no more")],
)
def test_a_topic_that_goes_away_or_back_while_it_is_read_halts(tmp_path: Path, now: str, said: str) -> None:
    """Otherwise the records of a topic that was created again would be skipped."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text(_planned('{"t":{"0":10,"1":7}}'))
    (tmp_path / "offsets/1").write_text(_planned(now))
    with pytest.raises(DefiniteError, match=said) as halted:
        plan_offset_ranges(tmp_path, 1)
    assert halted.value.place.startswith("t[")
    assert "new snapshot" in halted.value.hint


def _planned(offsets: str) -> str:
    return f"v1\n{{}}\n{offsets}"


def test_topics_of_tables_that_are_not_chosen_are_not_fetched() -> None:
    wanted, other = OffsetRange("srv.shop.goods", 0, 3, 9), OffsetRange("srv.shop.logs", 1, 0, 70)
    ranges, selection = select_ranges([wanted, other], lambda topic: topic == wanted.topic)
    assert ranges == [wanted]
    [(why, count)] = selection.ignored.items()
    assert count == 70
    assert "srv.shop.logs" in why
