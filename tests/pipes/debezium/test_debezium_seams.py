"""The interplay of driver, reader and sink in a pipe from topics.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`).
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress, parse_kafka_url
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.debezium.kafka_cluster import ClusterTopics, query_topics
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.debezium.type_lookup import TypeLookup, read_topic, topic_end
from headrace.settings.settings_file import parse_settings
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium.events.options import DebeziumOptions, SecondSnapshot, TableNaming, UnavailablePolicy, VersionSource
from headrace.sources.debezium.events.records import DetectedSchema
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.verify.watched_pipe import KnownPipe, find_watermark, known_pipe
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord, as_batches, load_records
from testkit.servers.broker import PrivateBroker

Open = Callable[..., LocalTopicPipe]


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> Open:
    """Opens the pipe of the test's state directory."""

    def opened(choices: DebeziumOptions | None = None, **more: Any) -> LocalTopicPipe:
        return LocalTopicPipe(tmp_path / f"state_{sink.target.database}", sink, choices, **more)

    return opened


def event(
    row: dict[str, Any] | None, offset: int, place: str = "bin.000007:100", *, op: str = "c", topic: str = "srv.shop.goods", **more: Any
) -> KafkaRecord:
    """A record of a MySQL connector, without a schema."""
    file, _, pos = place.partition(":")
    source = {"connector": "mysql", "db": "shop", "table": "goods", "snapshot": "false", "server_id": 1, "file": file, "pos": int(pos)}
    value = {"before": row if op == "d" else None, "after": None if op in "dt" else row, "source": {**source, "row": 0}, "op": op}
    key = json.dumps({"id": row["id"]}).encode() if row is not None else None
    return KafkaRecord(topic, more.get("partition", 0), offset, 1, key, json.dumps(value).encode(), ())


def flat(row: dict[str, Any] | None, key: int, offset: int) -> KafkaRecord:
    value = None if row is None else json.dumps(row).encode()
    return KafkaRecord("srv.shop.goods", 0, offset, 1, json.dumps({"id": key}).encode(), value, ())


def test_a_log_that_restarted_within_the_first_batch_is_read_once_the_epoch_is_raised(open_pipe: Open) -> None:
    """Twice: each higher epoch is for one new log."""
    logs = [("bin.000030:9", "a"), ("other.000001:9", "b"), ("third.000001:9", "c")]
    batch = [event({"id": 1, "name": name}, offset, place) for offset, (place, name) in enumerate(logs)]
    for epoch in (0, 1):
        with pytest.raises(DefiniteError, match="are now called"):
            open_pipe(DebeziumOptions(epoch=epoch)).run(batch)
    pipe = open_pipe(DebeziumOptions(epoch=2))
    pipe.run(batch)
    assert pipe.rows("shop.goods", "id, name") == [[1, "c"]]


@pytest.mark.parametrize("place", ["bin.000001:200", "bin.000009:200"])
def test_a_raised_epoch_counts_where_the_log_goes_back_a_little(open_pipe: Open, place: str) -> None:
    """Only the user can distinguish it from a restarted connector."""
    open_pipe().run([event({"id": 1, "name": "old"}, 0, "bin.000009:500")])
    pipe = open_pipe(DebeziumOptions(epoch=1))
    pipe.run([event({"id": 1, "name": "last of the old log"}, 1, "bin.000009:900"), event({"id": 1, "name": "new"}, 2, place)])
    pipe.run([event({"id": 1, "name": "newer"}, 3, "bin.000009:300")])
    assert pipe.rows("shop.goods", "id, name") == [[1, "newer"]]


def test_an_epoch_is_only_ever_raised(open_pipe: Open) -> None:
    """Also where versions come from offsets, which never go back."""
    pipe = open_pipe(DebeziumOptions(versions=VersionSource.OFFSET, epoch=1))
    state, now = pipe.batches.context.state, ClusterTopics("cluster", KafkaPosition(), KafkaPosition(), ())
    state.options["settings"] = {"debezium": {"versions": "offset", "epoch": 2}}
    with pytest.raises(DefiniteError, match="the epoch is 1, and was 2 before"):
        pipe._pipe._checked(state, now)


def test_an_emptied_table_of_several_topics_halts(open_pipe: Open) -> None:
    choices = DebeziumOptions(topics=(("eu.shop.goods", "shop.goods"), ("us.shop.goods", "shop.goods")))
    pipe = open_pipe(choices)
    pipe.run(
        [event({"id": 1, "name": "eu"}, 0, "bin.000090:9", topic="eu.shop.goods"), event({"id": 2, "name": "us"}, 0, topic="us.shop.goods")]
    )
    with pytest.raises(DefiniteError, match="several topics"):
        pipe.run([event(None, 1, "bin.000091:9", op="t", topic="eu.shop.goods")])
    assert pipe.rows("shop.goods", "id, name", "id") == [[1, "eu"], [2, "us"]]


def test_an_emptied_table_that_events_of_several_topics_name_halts(open_pipe: Open) -> None:
    """For any names of topics."""
    pipe = open_pipe(DebeziumOptions(naming=TableNaming.SOURCE))
    pipe.run([event({"id": 1, "name": "eu"}, 0, "bin.000090:9", topic="eu"), event({"id": 2, "name": "us"}, 0, topic="us.other.name")])
    with pytest.raises(DefiniteError, match=r"several topics \(eu, us\.other\.name\)"):
        pipe.run([event({"id": 0}, 1, "bin.000091:9", op="t", topic="eu")])
    assert pipe.rows("shop.goods", "id, name", "id") == [[1, "eu"], [2, "us"]]


def copied(name: str, offset: int, place: str, mark: str = "", partition: int = 0) -> KafkaRecord:
    """A row of a table without a key: from a snapshot, with its marker, or inserted."""
    record = event({"id": 0, "name": name}, offset, place, op="r" if mark else "c", partition=partition)
    value = json.loads(record.value or b"")
    value["source"]["snapshot"] = mark or "false"
    return replace(record, key=None, value=json.dumps(value).encode())


FIRST, MORE = "first_in_data_collection", "true"
BEGUN = [copied("a", 0, "bin.000001:100", FIRST), copied("a", 1, "bin.000001:100", MORE), copied("b", 2, "bin.000001:200")]
AGAIN = [copied("a", 3, "bin.000001:300", FIRST), copied("b", 4, "bin.000001:300", MORE), copied("c", 5, "bin.000001:400")]


def test_a_second_snapshot_of_a_table_without_a_key_halts_or_replaces_by_choice(open_pipe: Open) -> None:
    pipe = open_pipe()
    pipe.run(BEGUN)
    # (After a crash the same snapshot is read again.)
    pipe.number -= 1
    pipe.run(BEGUN)
    assert pipe.rows("shop.goods", "name") == [["a"], ["a"], ["b"]]
    with pytest.raises(DefiniteError, match=r"second snapshot of it, at bin\.000001:300") as halted:
        pipe.run(AGAIN)
    assert halted.value.place == "srv.shop.goods[0]@3"
    assert "second_snapshot=replace" in halted.value.hint
    assert pipe.rows("shop.goods", "name") == [["a"], ["a"], ["b"]]
    pipe = open_pipe(DebeziumOptions(second_snapshot=SecondSnapshot.REPLACE))
    pipe.run(AGAIN)
    # Older changes of another partition are already in the snapshot.
    pipe.run([copied("a", 0, "bin.000001:100", MORE, 1), copied("late", 1, "bin.000001:250", partition=1)])
    assert pipe.rows("shop.goods", "name") == [["a"], ["b"], ["c"]]


def test_two_snapshots_in_the_first_batch(open_pipe: Open) -> None:
    pipe = open_pipe(DebeziumOptions(second_snapshot=SecondSnapshot.REPLACE))
    pipe.run([*BEGUN, *AGAIN])
    assert pipe.rows("shop.goods", "name") == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("choice", SecondSnapshot)
def test_a_snapshot_that_is_begun_twice_at_one_place_halts(open_pipe: Open, choice: SecondSnapshot) -> None:
    """A connector that is killed during a snapshot, without other writes."""
    pipe = open_pipe(DebeziumOptions(second_snapshot=choice))
    pipe.run(BEGUN[:2])
    with pytest.raises(DefiniteError, match="started its snapshot twice"):
        pipe.run([copied("a", 3, "bin.000001:100", FIRST)])


def test_tombstones_delete_without_the_rows_that_identify_them(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a partition with only tombstones does not prove that deletions have no other events."""
    monkeypatch.setattr("testkit.pipelines.topic_pipe.as_batches", lambda found: [*as_batches(found[:2]), *as_batches(found[2:])])
    pipe = open_pipe()
    pipe.run([*(flat({"id": key, "name": "a"}, key, key) for key in (1, 2)), flat(None, 1, 3)])
    assert pipe.rows("shop.goods", "id") == [[2]]


def test_a_row_whose_deletion_event_was_compacted_away_is_deleted(open_pipe: Open) -> None:
    """Kafka removed the deletion event while the pipe was stopped; the row 2 was inserted again."""
    pipe = open_pipe()
    pipe.run([event({"id": key, "name": "old"}, key, f"bin.000007:{key}00") for key in (1, 2, 3)])
    pipe = open_pipe()
    gone = [KafkaRecord("srv.shop.goods", 0, offset, 1, json.dumps({"id": key}).encode(), None, ()) for key, offset in ((1, 5), (2, 7))]
    pipe.run([*gone, event({"id": 2, "name": "new"}, 8, "bin.000007:900")])
    assert pipe.rows("shop.goods", "id, name", "id") == [[2, "new"], [3, "old"]]


@pytest.mark.parametrize("with_key", [False, True])
def test_a_topic_that_gets_partitions_halts_where_offsets_order_the_changes_of_a_row(open_pipe: Open, with_key: bool) -> None:
    def changed(name: str, offset: int, partition: int) -> KafkaRecord:
        one = event({"id": 1, "name": name}, offset, partition=partition)
        return one if with_key else replace(one, key=None)

    pipe = open_pipe(DebeziumOptions(versions=VersionSource.OFFSET))
    pipe.run([changed("old", 1_000_000, 0), changed("old", 7, 1)])
    pipe.run([changed("older", 1_000_001, 0)])
    if not with_key:
        # Such a table is a multiset: no row has older changes.
        pipe.run([changed("new", 0, 2)])
        assert len(pipe.rows("shop.goods", "id")) == 4
        return
    for _ in range(2):
        with pytest.raises(DefiniteError, match=r"had 2 partitions, and has 3, and offsets order the changes of shop\.goods") as halted:
            pipe.run([changed("new", 0, 2)])
        assert (halted.value.place, "another --state" in halted.value.hint) == ("srv.shop.goods", True)
        pipe = open_pipe(DebeziumOptions(versions=VersionSource.OFFSET))
    assert pipe.rows("shop.goods", "id, name") == [[1, "older"]]


def test_a_topic_may_get_partitions_if_events_contain_the_log_position(open_pipe: Open) -> None:
    pipe = open_pipe()
    pipe.run([event({"id": 1, "name": "old"}, 1_000_000)])
    pipe.run([event({"id": 1, "name": "new"}, 0, "bin.000007:900", partition=1)])
    assert pipe.rows("shop.goods", "id, name") == [[1, "new"]]


@pytest.mark.parametrize("unavailable", UnavailablePolicy)
def test_a_value_that_was_not_logged_of_a_column_that_is_left_out_is_not_missed(open_pipe: Open, unavailable: UnavailablePolicy) -> None:
    toasted = [one for one in load_records("postgres-schema") if one.topic.endswith(".toasted")]
    pipe = open_pipe(DebeziumOptions(unavailable=unavailable), exclude_columns=("public.toasted.big", "public.toasted.bytes"))
    pipe.run(toasted[:1])
    pipe.run(toasted[1:2])
    assert pipe.rows("public.toasted") == [[1, 2]]


def test_a_value_that_was_not_logged_stays_when_another_column_is_excluded(open_pipe: Open) -> None:
    toasted = [one for one in load_records("postgres-schema") if one.topic.endswith(".toasted")]
    pipe = open_pipe(exclude_columns=("public.toasted.bytes",))
    pipe.run(toasted[:1])
    pipe.run(toasted[1:2])
    assert pipe.rows("public.toasted", "id, n, length(big)") == [[1, 2, 3000]]


def test_the_topic_of_schema_changes_is_read_at_once_and_once(broker: PrivateBroker) -> None:
    """Every new table waits for it."""
    topic = f"changes_{secrets.token_hex(4)}"
    broker.create_topic(topic, partitions=1)
    broker.produce(topic, [{"key": None, "value": b"%d" % number, "headers": []} for number in range(3)])
    begun = time.monotonic()
    assert read_topic(KafkaAddress(broker.servers), topic) == [b"0", b"1", b"2"]
    assert time.monotonic() - begun < 10
    end, missing = topic_end(KafkaAddress(broker.servers), topic), topic_end(KafkaAddress(broker.servers), f"{topic}_missing")
    assert (end(), missing()) == (3, 0)
    broker.produce(topic, [{"key": None, "value": b"3", "headers": []}])
    assert end() == 4
    asked: list[bytes] = []

    def records() -> list[bytes]:
        asked.append(b"")
        return []

    descriptions = TypeLookup(lambda _: {}, records)
    columns = (Column("id", Kind.INT64, False, source_type="int64 as it looks"),)
    found = [DetectedSchema(TableSchema(TableName("shop", name), columns, ("id",)), f"srv.shop.{name}", 0, 0) for name in ("a", "b")]
    # The topic describes neither, so their types stay as the values look.
    assert descriptions.refine(found) == [replace(one, certain=False) for one in found]
    assert len(asked) == 1


def test_a_wrong_password_is_not_taken_for_a_broker_that_is_away(fresh_broker: Callable[..., PrivateBroker]) -> None:
    broker = fresh_broker(accounts={"reader": "secret"})
    properties = "?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
    assert query_topics(parse_kafka_url(f"kafka://reader:secret@{broker.servers}{properties}"), "x").cluster
    with pytest.raises(DefiniteError, match="denies access") as refused:
        query_topics(parse_kafka_url(f"kafka://reader:wrong@{broker.servers}{properties}"), "x")
    assert "password" in refused.value.hint
    assert "wrong" not in str(refused.value)


def test_a_comparison_does_not_wait_for_offsets_of_topics(open_pipe: Open, sink: ClickHouseSink, tmp_path: Path) -> None:
    """`headrace verify` with the --state or the --pipe of a pipe from topics: its position is not one of the source's log."""
    open_pipe().run([event({"id": 1, "name": "a"}, 0)])
    name, address = f"state_{sink.target.database}", parse_mysql_url("mysql://reader@127.0.0.1:3306/shop")
    assert find_watermark(sink, address, "", known_pipe(str(tmp_path / name)), 1.0) is None
    assert find_watermark(sink, address, name, KnownPipe(), 1.0) is None


def described(
    b: dict[str, Any] | None, row: dict[str, Any], offset: int, pos: int, partition: int = 0, *, connector: str = "mysql"
) -> KafkaRecord:
    """A record with its schema: `id`, and `b` as it is given."""
    whole = {"type": "int32", "optional": False, "field": "id"}
    fields = [whole, *([] if b is None else [{**b, "field": "b"}])]
    texts = [{"type": "string", "optional": True, "field": name} for name in ("connector", "db", "schema", "table", "file", "snapshot")]
    source = {
        "type": "struct",
        "optional": False,
        "field": "source",
        "fields": [*texts, *_numbers("pos", "row", "lsn", "ts_us", "server_id")],
    }
    sides = [{"type": "struct", "optional": True, "field": side, "fields": fields} for side in ("before", "after")]
    value = {
        "type": "struct",
        "optional": False,
        "name": "srv.shop.goods.Envelope",
        "fields": [*sides, source, {**texts[0], "field": "op"}],
    }
    key = {"schema": {"type": "struct", "optional": False, "fields": [whole]}, "payload": {"id": row["id"]}}
    payload = json.loads(event(row, 0, f"bin.000007:{pos}").value or b"")
    payload["source"]["ts_us"] = pos
    if connector == "postgresql":
        payload["source"] = {"connector": connector, "db": "any", "schema": "shop", "table": "goods", "lsn": pos, "ts_us": pos}
    record = json.dumps({"schema": value, "payload": payload})
    return KafkaRecord("srv.shop.goods", partition, offset, 1, json.dumps(key).encode(), record.encode(), ())


def _numbers(*names: str) -> list[dict[str, Any]]:
    return [{"type": "int64", "optional": True, "field": name} for name in names]


@pytest.mark.slow(
    "cuts2",
    "cuts3",
    because=(
        "test_rows_from_before_a_column_hold_its_first_default[apart0-cuts0], "
        "test_rows_from_before_a_column_hold_its_first_default[apart0-cuts1]"
    ),
)
@pytest.mark.parametrize("cuts", [[3], [1, 1, 1], [1, 2], [2, 1]])
@pytest.mark.parametrize("apart", [(), (1,), (2,), (1, 2)])
def test_rows_from_before_a_column_hold_its_first_default(open_pipe: Open, cuts: list[int], apart: tuple[int, ...]) -> None:
    """With any batches and partitions, and any later change of the column."""
    kinds = [None, {"type": "int32", "optional": False, "default": 5}, {"type": "int64", "optional": True}]
    rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "b": 6}, {"id": 3, "b": None}]
    # The newest event is in the partition that is read first.
    records = [described(kinds[at], rows[at], at, 100 * (at + 1), 0 if at in apart else 1) for at in range(3)]
    pipe = open_pipe()
    for cut in cuts:
        taken, records = records[:cut], records[cut:]
        pipe.run(sorted(taken, key=lambda one: one.partition))
    assert pipe.rows("shop.goods", "id, b", "id") == [[1, 5], [2, 6], [3, None]]


@pytest.mark.parametrize(("connector", "held"), [("mysql", 0), ("postgresql", None)])
@pytest.mark.parametrize("apart", [True, False])
def test_what_older_rows_hold_in_a_required_column_without_a_default(open_pipe: Open, connector: str, held: object, apart: bool) -> None:
    """MySQL fills it with zeros. PostgreSQL adds such a column to an empty table only, or with a default that was dropped later: no event
    has it."""
    required = {"type": "int32", "optional": False}
    rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "b": 6}, {"id": 3}]
    records = [described(required if "b" in row else None, row, at, 100 * (at + 1), connector=connector) for at, row in enumerate(rows)]
    pipe = open_pipe()
    for batch in [[one] for one in records] if apart else [records]:
        pipe.run(batch)
    assert pipe.rows("shop.goods", "id, b", "id") == [[1, held], [2, 6], [3, held]]


def test_transforms_of_events(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event without the old row deletes the row if the filter does not accept the new one."""
    monkeypatch.setenv("SALT", "pepper")
    text = """
    [transforms."shop.goods"]
    filter = "price > 10"
    computed = { big = "price > 100", word = "upper(name)" }
    hash = { id = "sha256" }
    mask = { name = "first 1" }
    rename = { price = "cost" }
    hash_salt = "env:SALT"
    """
    settings = parse_settings(text, "pipe.toml").plain

    def row(number: int, name: str | None, price: int | None) -> dict[str, Any]:
        return {"id": number, "name": name, "price": price}

    def hashed(number: int) -> str:
        return hashlib.sha256(f"pepper{number}".encode()).hexdigest()

    pipe = open_pipe(settings=settings)
    excluded: Counter[str] = Counter()
    monkeypatch.setattr(pipe.batches.context.view, "filtered", excluded.update)
    first = [event(row(1, "ann", 50), 0, "b.1:10"), event(row(2, "bob", 5), 1, "b.1:20"), event(row(3, "cy", 500), 2, "b.1:30")]
    pipe.run(first)
    shown = "id, name, cost, big, word"
    assert pipe.rows("shop.goods", shown, "cost") == [[hashed(1), "a**", 50, 0, "ANN"], [hashed(3), "c*", 500, 1, "CY"]]
    second = [
        event(row(1, "ann", 7), 3, "b.1:40", op="u"),
        event(row(2, "bob", 70), 4, "b.1:50", op="u"),
        event(row(3, "cyd", 900), 5, "b.1:60", op="u"),
        event(row(4, None, 11), 6, "b.1:70"),
        event(row(5, None, 1), 7, "b.1:80"),
        # A deletion may have only the key.
        event(row(4, None, None), 8, "b.1:90", op="d"),
        event(row(5, None, None), 9, "b.1:95", op="d"),
    ]
    expected = [[hashed(2), "b**", 70, 0, "BOB"], [hashed(3), "c**", 900, 1, "CYD"]]
    assert excluded == {"shop.goods": 1}
    pipe.run(second, commit=False)
    # Row 5, and nothing that may have been in the sink.
    assert excluded == {"shop.goods": 2}
    again = open_pipe(settings=settings)
    again.run(second)
    assert again.rows("shop.goods", shown, "cost") == expected
    # A new column is accepted; a value that a hash or a filter needs must not be missing.
    again.run([event({**row(6, "fy", 60), "note": "new"}, 10, "b.1:99")])
    assert [hashed(6), "new"] in again.rows("shop.goods", "id, note")
    placeholder = "__debezium_unavailable_value"
    with pytest.raises(DefiniteError, match="leaves out the value of name, which did not change, and transforms need it"):
        again.run([event(row(6, placeholder, 61), 11, "b.1:120", op="u")])
    other = parse_settings(text.replace("> 10", "> 20"), "pipe.toml").plain
    with pytest.raises(DefiniteError, match="other transforms") as caught:
        open_pipe(settings=other)._pipe._checked(
            again.batches.context.state, ClusterTopics("cluster", KafkaPosition(), KafkaPosition(), ())
        )
    assert "start over" in caught.value.hint


def test_an_expression_that_fails_at_an_event_names_its_topic(open_pipe: Open) -> None:
    settings = parse_settings("[transforms.\"shop.goods\".computed]\nn = 'CAST(name AS INTEGER)'", "pipe.toml").plain
    with pytest.raises(DefiniteError, match="Could not convert") as caught:
        open_pipe(settings=settings).run([event({"id": 1, "name": "ann"}, 0, "b.1:10")])
    assert "goods[0]" in caught.value.place
