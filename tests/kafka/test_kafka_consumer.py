"""Consumers on a real broker, with messages written by fastavro."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

import headrace.kafka
from headrace.errors import DefiniteError, TransientError
from headrace.kafka import RowChange, What
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.consumers.message_source import TopicConsumer
from headrace.kafka.mypipe.values import ValueMapping
from headrace.kafka.mypipe.wire_format import (
    COLUMNS_HEADER,
    COMMITTED_HEADER,
    NULLS_HEADER,
    POSITION_HEADER,
    Mutation,
    columns_schema,
    generic_schema,
    generic_subject,
    specific_schema,
    specific_subject,
)
from headrace.kafka.registry import open_repository
from headrace.model.change_block import Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from testkit.documents.documents import DOCS, examples_of
from testkit.generators.mypipe_messages import GUID, generic_message, head, insert_message, message, position_header
from testkit.servers.broker import PrivateBroker

TABLE = TableSchema(
    TableName("shop", "orders"),
    (
        Column("id", Kind.INT32, nullable=False),
        Column("total", Kind.DECIMAL, precision=8, scale=2, source_type="decimal(8,2)"),
        Column("note", Kind.STRING, source_type="text"),
        Column("took", Kind.TIME, source_type="time"),
    ),
    ("id",),
)


def test_callbacks_get_mypipes_generic_messages_of_both_shapes(broker: PrivateBroker) -> None:
    topic = broker.create_topic("shop_orders_generic")
    update = {"old_integers": {"id": 2}, "new_integers": {"id": 2}, "old_strings": {"state": "a"}, "new_strings": {"state": "b"}}
    broker.produce(
        topic,
        [
            {"value": insert_message(1, old_shape=True)},
            {
                "value": insert_message(2, longs={"big": 1 << 40}, bytes={"raw": b"\0\xff"}),
                "headers": [*position_header(9), (NULLS_HEADER, b'["gone"]')],
            },
            {"value": generic_message(Mutation.UPDATE, **update), "headers": position_header(12), "key": b'{"id":2}'},
            {"value": None, "key": b'{"id":2}'},
            {"value": generic_message(Mutation.UPDATE, old_shape=True, **update)},
            {"value": generic_message(Mutation.DELETE, integers={"id": 2}), "headers": position_header(15)},
        ],
    )
    record: list[tuple[str, RowChange]] = []
    count = headrace.kafka.consume(
        topic,
        on_insert=lambda change: record.append(("insert", change)),
        on_update=lambda change: record.append(("update", change)),
        on_delete=lambda change: record.append(("delete", change)),
        servers=broker.servers,
        group="both-shapes",
        until_end=True,
    )
    assert count == 5
    assert [name for name, _ in record] == ["insert", "insert", "update", "update", "delete"]
    old, new, updated, old_update, deleted = (change for _, change in record)
    assert (old.database, old.table, old.old, old.new) == ("shop", "orders", None, {"id": 1, "state": "s1"})
    assert (old.transaction, old.position, old.place) == (None, None, "shop_orders_generic[0]@0")
    assert new.new == {"id": 2, "state": "s2", "big": 1 << 40, "raw": b"\0\xff", "gone": None}
    assert (new.transaction, new.position) == (str(GUID), 9)
    assert (updated.old, updated.new) == ({"id": 2, "state": "a"}, {"id": 2, "state": "b"})
    assert updated.key == b'{"id":2}'
    assert (old_update.old, old_update.new) == (updated.old, updated.new)
    assert (deleted.what, deleted.old, deleted.new, deleted.row) == (What.DELETE, {"id": 2}, None, {"id": 2})


def test_blocks_have_the_types_of_the_repository(broker: PrivateBroker, tmp_path: Path) -> None:
    """Generic and specific messages of one table, with the columns' types from a folder of schemas."""
    repository = open_repository(str(tmp_path / "schemas"))
    mapping = ValueMapping()
    ids = {one: repository.register(generic_subject(one), parse_schema(json.dumps(generic_schema(one)))) for one in Mutation}
    columns = repository.register("shop_orders_columns", parse_schema(json.dumps(columns_schema(TABLE))))
    described = (COLUMNS_HEADER, columns.to_bytes(2, "big"))
    maps = {"integers": {"id": 1}, "strings": {"total": "-12.50", "took": "-100:00:00.000001"}, "bytes": {"note": "é".encode()}}
    generic = broker.create_topic()
    broker.produce(
        generic,
        [
            {"value": generic_message(Mutation.INSERT, number=ids[Mutation.INSERT], **maps), "headers": [*position_header(5), described]},
            {
                "value": generic_message(
                    Mutation.UPDATE,
                    number=ids[Mutation.UPDATE],
                    **{f"old_{name}": values for name, values in maps.items()},
                    new_integers={"id": 1},
                ),
                "headers": [*position_header(8), described, (NULLS_HEADER, b'["total","note","took"]')],
            },
        ],
    )
    specific = broker.create_topic()
    schemas = {one: specific_schema(TABLE, one, mapping) for one in Mutation}
    numbers = {one: repository.register(specific_subject(TABLE.name, one), parse_schema(json.dumps(schemas[one]))) for one in Mutation}
    micros = -(100 * 3600 * 1_000_000) - 1
    row = {"id": 1, "total": (-1250).to_bytes(4, "big", signed=True), "note": "é", "took": micros}
    insert = {**head(), "txid": GUID.bytes, **row}
    update = {**head(), "txid": None, **{f"old_{name}": value for name, value in row.items()}, "new_id": 1}
    plain = {one: _without_logical_types(schemas[one]) for one in Mutation}
    broker.produce(
        specific,
        [
            {"value": message(Mutation.INSERT, plain[Mutation.INSERT], insert, numbers[Mutation.INSERT]), "headers": position_header(5)},
            {"value": message(Mutation.UPDATE, plain[Mutation.UPDATE], update, numbers[Mutation.UPDATE]), "headers": position_header(8)},
        ],
    )
    for topic in (generic, specific):
        (block,) = headrace.kafka.blocks(topic, servers=broker.servers, registry=str(tmp_path / "schemas"), until_end=True)
        assert block.schema.name == TABLE.name
        assert block.schema.row_key == ("id",)
        assert block.schema.arrow_schema == TABLE.arrow_schema
        assert block.op.to_pylist() == [Op.INSERT, Op.BEFORE, Op.UPDATE]
        assert block.version.to_pylist() == [5, 7, 8]
        assert block.images.column("took").view("int64").to_pylist() == [micros, micros, None]
        assert [str(value) for value in block.images.column("total").to_pylist()] == ["-12.50", "-12.50", "None"]
        assert block.images.column("note").to_pylist() == ["é", "é", None]


def _without_logical_types(schema: dict[str, Any]) -> dict[str, Any]:
    """The same bytes; fastavro would need Python values for them."""
    return json.loads(json.dumps(schema).replace('"logicalType"', '"wasLogicalType"'))  # type: ignore[no-any-return]


def test_a_batch_counts_when_its_callbacks_have_returned(broker: PrivateBroker) -> None:
    """An exception of a callback is raised; the next consumer of the group gets the batch again, but no committed one."""
    topic = broker.create_topic(partitions=3)
    broker.produce(topic, [{"value": insert_message(number), "key": str(number).encode()} for number in range(60)])
    seen: list[int] = []

    def fails(change: RowChange) -> None:
        if len(seen) == 25:
            raise ValueError("no more")
        seen.append(change.row["id"])

    with pytest.raises(ValueError, match="no more"):
        headrace.kafka.consume(topic, fails, servers=broker.servers, group="fails", batch=10, until_end=True)
    again: list[int] = []
    headrace.kafka.consume(topic, lambda change: again.append(change.row["id"]), servers=broker.servers, group="fails", until_end=True)
    assert set(seen) | set(again) == set(range(60))
    assert len(again) == len(set(again))
    assert 35 <= len(again) < 60
    assert headrace.kafka.consume(topic, servers=broker.servers, group="fails", until_end=True) == 0


def test_a_column_that_moves_to_another_map_in_between(broker: PrivateBroker) -> None:
    topic = broker.create_topic()
    rows: list[dict[str, Any]] = [
        {"strings": {"v": "é", "w": "x"}},
        {"bytes": {"v": b"\xff"}, "integers": {"w": 7}},
        {"integers": {"v": 5}, "longs": {"w": 1 << 40}},
    ]
    broker.produce(topic, [{"value": generic_message(Mutation.INSERT, **row)} for row in rows])
    found = [change.new for change in headrace.kafka.changes(topic, servers=broker.servers, until_end=True)]
    assert found == [{"v": "é".encode(), "w": "x"}, {"v": b"\xff", "w": "7"}, {"v": b"5", "w": str(1 << 40)}]


def test_duplicates_are_dropped_by_their_positions_across_restarts_too(broker: PrivateBroker) -> None:
    topic = broker.create_topic()
    update = {"old_integers": {"id": 1}, "new_integers": {"id": 1}}
    changes = [
        {"value": insert_message(1), "headers": position_header(10)},
        {"value": generic_message(Mutation.UPDATE, **update), "headers": position_header(12)},
        {"value": generic_message(Mutation.DELETE, integers={"id": 1}), "headers": position_header(14)},
    ]
    snapshot = {"value": insert_message(9), "headers": [(POSITION_HEADER, (4).to_bytes(8, "big") + (1).to_bytes(8, "big"))]}
    broker.produce(topic, [snapshot, snapshot, *changes[:2], *changes])
    settings: dict[str, Any] = {"servers": broker.servers, "group": "once", "drop_duplicates": True, "until_end": True}
    found = list(headrace.kafka.changes(topic, **settings))
    assert [change.position for change in found] == [4, 4, 10, 12, 14]
    assert [change.snapshot_row for change in found] == [1, 1, None, None, None]
    broker.produce(topic, [*changes, {"value": insert_message(2), "headers": position_header(20)}])
    (block,) = headrace.kafka.blocks(topic, **settings)
    assert block.version.to_pylist() == [20]
    assert len(list(headrace.kafka.changes(topic, servers=broker.servers, until_end=True))) == 11
    # A new pipe with a new source log: its positions are lower, and none of its messages is a duplicate.
    low = {"value": insert_message(3), "headers": position_header(6)}
    broker.produce(topic, [snapshot, low, low])
    assert [change.position for change in headrace.kafka.changes(topic, **settings)] == [4, 6]


def test_a_log_that_restarts_is_noticed_without_snapshot_rows(broker: PrivateBroker) -> None:
    """Its changes are committed after all seen ones: none is a duplicate."""
    topic = broker.create_topic()

    def record(number: int, position: int, committed_us: int) -> dict[str, Any]:
        return {
            "value": insert_message(number),
            "headers": [*position_header(position), (COMMITTED_HEADER, committed_us.to_bytes(8, "big"))],
        }

    # (Long transactions are committed after what began later.)
    old, new = [record(1, 100, 7000), record(2, 110, 6000), record(3, 120, 6500)], [record(4, 6, 9000), record(5, 7, 8000)]
    settings: dict[str, Any] = {"servers": broker.servers, "group": "restarted", "drop_duplicates": True, "until_end": True}
    for sent, seen in (([*old, *old], [100, 110, 120]), ([old[2], *new, *new], [6, 7]), ([new[1], record(6, 8, 9100)], [8])):
        broker.produce(topic, sent)
        assert [change.position for change in headrace.kafka.changes(topic, **settings)] == seen


@pytest.mark.parametrize(
    ("name", "header"),
    [
        (POSITION_HEADER, b"abc"),
        (COMMITTED_HEADER, b"long enough"),
        (NULLS_HEADER, b"{"),
        (NULLS_HEADER, b'{"a": 1}'),
        (NULLS_HEADER, b"[[]]"),
        (COLUMNS_HEADER, b"x"),
    ],
)
def test_an_unreadable_headrace_header_halts_with_its_place(broker: PrivateBroker, name: str, header: bytes) -> None:
    topic = broker.create_topic()
    broker.produce(
        topic, [{"value": insert_message(1)}, {"value": insert_message(2)}, {"value": insert_message(3), "headers": [(name, header)]}]
    )
    seen: list[RowChange] = []
    with pytest.raises(DefiniteError, match=f"its header {name} cannot be read") as halted:
        headrace.kafka.consume(topic, seen.append, servers=broker.servers, until_end=True)
    assert (halted.value.place, len(seen)) == (f"{topic}[0]@2", 2)
    if name == POSITION_HEADER:
        event = b'{"op":"c","before":null,"after":{"id":1},"source":{"db":"shop","table":"t"}}'
        broker.produce(topic, [{"value": event, "headers": [(name, header)]}])
        with pytest.raises(DefiniteError, match="a position of 3 bytes") as halted:
            headrace.kafka.consume(topic, seen.append, servers=broker.servers, start="3", until_end=True)
        assert halted.value.place == f"{topic}[0]@3"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\0\1\0\1\x04ab", "it ends too early"),
        (b"\0\7\0\1", "too short"),
        (b"hello", "neither JSON nor Avro"),
        (b'{"a":1}', "not a change event"),
        (b"\0\0\0\0\1\2", "no registry is given"),
    ],
)
def test_a_message_that_cannot_be_read_halts_and_says_where(broker: PrivateBroker, value: bytes, reason: str) -> None:
    topic = broker.create_topic()
    broker.produce(topic, [{"value": insert_message(1)}, {"value": value}, {"value": insert_message(2)}])
    seen: list[RowChange] = []
    with pytest.raises(DefiniteError, match=reason) as halted:
        headrace.kafka.consume(topic, seen.append, servers=broker.servers, group=f"bad-{topic}", until_end=True)
    assert halted.value.place == f"{topic}[0]@1"
    assert halted.value.hint
    assert [change.offset for change in seen] == [0]
    other_consumer = Consumer(broker.client_settings(group_id=f"bad-{topic}"))
    assert other_consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 1
    other_consumer.close()


def test_a_group_shares_a_topic_and_stops_on_request(broker: PrivateBroker) -> None:
    topic = broker.create_topic(partitions=4)
    broker.produce(topic, [{"value": insert_message(number), "partition": number % 4} for number in range(200)])
    stop, lock = threading.Event(), threading.Lock()
    seen: list[int] = []

    def note(change: RowChange) -> None:
        with lock:
            seen.append(change.row["id"])
            if len(set(seen)) == 200:
                stop.set()

    def run() -> None:
        headrace.kafka.consume(topic, note, servers=broker.servers, group="shared", stop=stop, batch=20)

    members = [threading.Thread(target=run) for _ in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
    assert not any(member.is_alive() for member in members)
    assert set(seen) == set(range(200))
    # All returned messages were committed.
    assert headrace.kafka.consume(topic, servers=broker.servers, group="shared", until_end=True) == 0


def test_debeziums_events_come_to_the_same_callbacks(broker: PrivateBroker) -> None:
    topic = broker.create_topic("prefix.shop.orders")
    source = {"db": "shop", "table": "orders", "ts_ms": 1_700_000_000_123}
    envelope = {"before": None, "after": {"id": 1}, "source": source, "op": "c", "ts_ms": 5}
    events: list[Any] = [
        envelope,
        {"schema": {"type": "struct"}, "payload": {**envelope, "op": "u", "before": {"id": 1}}},
        {**envelope, "op": "d", "before": {"id": 1}, "after": None},
        {"op": "t", "source": source, "before": None, "after": None},
        {"id": 1, "__op": "c", "__deleted": "false", "__table": "orders"},
        {"id": 1, "__deleted": "true"},
    ]
    broker.produce(topic, [{"value": json.dumps(event).encode()} for event in events])
    found = list(headrace.kafka.changes(broker.url(topic), until_end=True))
    assert [(change.what.value, change.table, change.old, change.new) for change in found] == [
        ("insert", "orders", None, {"id": 1}),
        ("update", "orders", {"id": 1}, {"id": 1}),
        ("delete", "orders", {"id": 1}, None),
        ("insert", "orders", None, {"id": 1}),
        ("delete", "", {"id": 1}, None),
    ]
    assert found[0].committed is not None
    assert found[0].committed.timestamp() == pytest.approx(1_700_000_000.123)
    with pytest.raises(DefiniteError, match="only those are read as blocks"):
        list(headrace.kafka.blocks(broker.url(topic), until_end=True))


def test_a_missing_topic_and_a_missing_cluster_are_errors(broker: PrivateBroker) -> None:
    with pytest.raises(DefiniteError, match="no_such_topic"):
        headrace.kafka.consume("no_such_topic", servers=broker.servers, group="g")
    with pytest.raises(DefiniteError, match="address of the topic is missing"):
        headrace.kafka.consume("topic")


def test_messages_that_retention_took_before_they_were_read_are_an_error(broker: PrivateBroker) -> None:
    topic = broker.create_topic()
    broker.produce(topic, [{"value": insert_message(number)} for number in range(10)])
    assert headrace.kafka.consume(topic, servers=broker.servers, group="late", limit=3, batch=3) == 3
    _forget_before(broker, topic, 8)
    with pytest.raises(DefiniteError) as halted:
        headrace.kafka.consume(topic, servers=broker.servers, group="late", until_end=True)
    assert "retention" in halted.value.hint
    assert headrace.kafka.consume(topic, servers=broker.servers, group="new", until_end=True) == 2


def _forget_before(broker: PrivateBroker, topic: str, offset: int) -> None:
    admin = broker.admin()
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(30)


def test_a_login_that_was_interrupted_once_is_retried(broker: PrivateBroker) -> None:
    topic = broker.create_topic()
    broker.produce(topic, [{"value": insert_message(number)} for number in range(2)])
    consumer = TopicConsumer(parse_kafka_url(broker.url(topic)), [topic])
    try:
        cut_off = KafkaError(KafkaError._SSL)
        consumer._handle_client_error(cut_off)
        while not consumer.is_at_end:
            consumer.poll(10, 0.5)
        consumer._handle_client_error(cut_off)
        consumer.poll(10, 0.0)
        consumer._handle_client_error(cut_off)
        with pytest.raises(DefiniteError, match="reading failed"):
            consumer.poll(10, 0.0)
    finally:
        consumer.close()


def test_a_consumer_waits_for_a_broker_that_is_killed_and_comes_back(fresh_broker: Callable[..., PrivateBroker]) -> None:
    """The broker comes back on its port, with its records and the group's offsets."""
    broker = fresh_broker()
    topic = broker.create_topic(compact=True)
    broker.produce(topic, [{"value": insert_message(number), "key": str(number).encode()} for number in range(5)])
    seen: list[int] = []
    stop = threading.Event()

    def note(change: RowChange) -> None:
        seen.append(change.row["id"])
        if len(seen) == 10:
            stop.set()

    def run() -> None:
        headrace.kafka.consume(topic, note, servers=broker.servers, group="patient", stop=stop)

    member = threading.Thread(target=run)
    member.start()
    while len(seen) < 5:
        assert member.is_alive()
        time.sleep(0.05)
    port, before = broker.port, broker.pid
    broker.kill()
    assert broker.pid is None
    broker.start()
    assert broker.port == port
    assert broker.pid not in (None, before)
    broker.produce(topic, [{"value": insert_message(number), "key": str(number).encode()} for number in range(5, 10)])
    member.join(60)
    assert not member.is_alive()
    assert sorted(set(seen)) == list(range(10))
    assert len(list(headrace.kafka.changes(topic, servers=broker.servers, until_end=True))) == 10
    assert headrace.kafka.consume(topic, servers=broker.servers, group="patient", until_end=True) == 0


class StartingCoordinator:
    """Refuses the first commits as a broker does that still reads the groups' offsets, or for another reason."""

    def __init__(self, consumer: Consumer, code: int, refusals: int) -> None:
        self._consumer, self._code, self.refusals = consumer, code, refusals

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        if self.refusals:
            self.refusals -= 1
            raise KafkaException(KafkaError(self._code))
        return self._consumer.commit(offsets=offsets, asynchronous=asynchronous)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


@pytest.mark.parametrize(
    ("code", "error"), [(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, ""), (KafkaError.REBALANCE_IN_PROGRESS, "in progress")]
)
def test_a_commit_waits_for_the_coordinator_and_for_nothing_else(broker: PrivateBroker, code: int, error: str) -> None:
    """A consumer that has lost its partitions may not commit their offsets later."""
    topic = broker.create_topic()
    broker.produce(topic, [{"value": insert_message(1)}])
    consumer = TopicConsumer(parse_kafka_url(f"kafka://{broker.servers}/{topic}"), [topic], group=f"{topic}_group")
    try:
        while not (batches := consumer.poll(10, 0.5)):
            pass
        coordinator = StartingCoordinator(consumer._consumer, code, refusals=2)
        consumer._consumer = coordinator  # type: ignore[assignment]
        with pytest.raises(TransientError, match=error) if error else contextlib.nullcontext():
            consumer.commit(batches)
    finally:
        consumer.close()
    assert coordinator.refusals == (1 if error else 0)
    assert headrace.kafka.consume(topic, servers=broker.servers, group=f"{topic}_group", until_end=True) == (1 if error else 0)


def test_the_example_of_the_document(broker: PrivateBroker) -> None:
    topic = broker.create_topic("documented")
    row = {"integers": {"id": 1}, "strings": {"state": "new"}}
    update = {
        f"{side}_{name}": values
        for side, values_of in (("old", row), ("new", {**row, "strings": {"state": "paid"}}))
        for name, values in values_of.items()
    }
    broker.produce(
        topic,
        [
            {"value": generic_message(Mutation.INSERT, **row), "headers": position_header(9)},
            {"value": generic_message(Mutation.UPDATE, **update), "headers": position_header(12)},
            {"value": generic_message(Mutation.DELETE, integers={"id": 1}, strings={"state": "paid"}), "headers": position_header(15)},
        ],
    )
    section = (DOCS / "kafka.md").read_text().partition("\n## Consuming\n")[2].partition("\n## ")[0]
    code, shown = (example.code for example in examples_of(section))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.replace("broker.example.com:9092/shop_orders_generic", f"{broker.servers}/{topic}"), {})
    assert printed.getvalue() == shown
