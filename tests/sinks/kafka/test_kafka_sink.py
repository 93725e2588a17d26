"""The Kafka sink against a real broker: acknowledged messages are stored, in order, with their keys; failures are reported."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.mypipe.wire_format import Mutation, generic_schema, read_position, transaction_guids
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.kafka import delivery
from headrace.sinks.kafka.delivery import Refusals
from headrace.sinks.kafka.options import (
    Cleanup,
    Compression,
    KafkaOptions,
    KeyChanges,
    MessageFormat,
    TextAs,
    Timestamps,
    Tombstones,
    UnsignedBigintAs,
)
from headrace.sinks.kafka.sink import KafkaSink
from testkit.generators.kind_values import block_of_rows
from testkit.oracles.topics import Kept, avro_record, read_topic
from testkit.servers.broker import PrivateBroker

Change = tuple[Op, int | None, str | None]


def table(name: str | None = None, key: tuple[str, ...] = ("id",)) -> TableSchema:
    columns = (Column("id", Kind.INT32, False, source_type="int"), Column("name", Kind.STRING, source_type="varchar(50)"))
    return TableSchema(TableName("shop", name or f"t_{secrets.token_hex(4)}"), columns, key)


def block_of(schema: TableSchema, changes: list[Change], first: int = 1000, transaction: str | None = "0-1-7") -> ChangeBlock:
    count = len(changes)
    return block_of_rows(
        schema,
        [row for _, *row in changes],
        [op for op, *_ in changes],
        versions=range(first, first + count) if transaction else [first] * count,
        commit_us=[1_700_000_000_123_456] * count,
        transactions=None if transaction is None else [transaction] * count,
        order=True,
    )


def sink_of(broker: PrivateBroker, **choices: Any) -> KafkaSink:
    return KafkaSink(parse_kafka_url(broker.url()), KafkaOptions(**choices))


def write(sink: KafkaSink, *blocks: ChangeBlock) -> None:
    sink.prepare([block.schema for block in blocks])
    writer = pickle.loads(pickle.dumps(sink)).writer()
    try:
        for block in blocks:
            writer.write(block)
    finally:
        writer.close()


def decoded(message: Kept) -> tuple[str, dict[str, Any]]:
    assert message.value is not None
    mutation = Mutation(message.value[1])
    assert message.value[:4] == bytes([0, mutation, 0, mutation])
    return mutation.word, avro_record(message.value, generic_schema(mutation))


MIXED: list[Change] = [
    (Op.INSERT, 1, "one"),
    (Op.INSERT, 2, None),
    (Op.BEFORE, 1, "one"),
    (Op.UPDATE, 1, None),
    (Op.BEFORE, 2, None),
    (Op.UPDATE, 3, "moved"),
    (Op.DELETE, 1, None),
]


def test_every_change_is_a_message_under_its_key(broker: PrivateBroker) -> None:
    schema = table()
    write(sink_of(broker, partitions=3, tombstones=Tombstones.ON), block_of(schema, MIXED))
    found = read_topic(broker, f"shop_{schema.name.table}_generic")
    by_key: dict[bytes | None, list[Kept]] = {}
    for message in found:
        by_key.setdefault(message.key, []).append(message)
    assert set(by_key) == {b'{"id":1}', b'{"id":2}', b'{"id":3}'}
    assert all(len({message.partition for message in mine}) == 1 for mine in by_key.values())
    entries_by_key = {key: [decoded(one) if one.value is not None else None for one in mine] for key, mine in by_key.items()}
    shop = {
        "database": "shop",
        "table": schema.name.table,
        "txid": transaction_guids(pa.array(["0-1-7"]))[0].as_py(),
        "bytes": {},
        "longs": {},
    }
    one = {key: value for key, value in entries_by_key[b'{"id":1}'][0][1].items() if key != "tableId"}  # type: ignore[index]
    assert one == {**shop, "integers": {"id": 1}, "strings": {"name": "one"}}
    assert [entry and entry[0] for entry in entries_by_key[b'{"id":1}']] == ["insert", "update", "delete", None]
    updated = entries_by_key[b'{"id":1}'][1]
    assert updated is not None
    assert (updated[1]["old_strings"], updated[1]["new_strings"]) == ({"name": "one"}, {})
    assert [entry and entry[0] for entry in entries_by_key[b'{"id":2}']] == ["insert", "delete", None]
    assert [entry and entry[0] for entry in entries_by_key[b'{"id":3}']] == ["insert"]
    positions = {key: [read_position(message.position)[0] for message in mine] for key, mine in by_key.items()}
    assert positions == {b'{"id":1}': [1000, 1003, 1006, 1006], b'{"id":2}': [1001, 1004, 1004], b'{"id":3}': [1005]}
    nulls = [message.headers.get("headrace.nulls") for message in by_key[b'{"id":1}'][:3]]
    assert nulls == [None, b'["name"]', b'["name"]']
    assert "headrace.old_nulls" not in by_key[b'{"id":1}'][1].headers
    assert {message.headers["headrace.committed"] for message in found} == {(1_700_000_000_123_456).to_bytes(8, "big")}
    table_ids = {entry[1]["tableId"] for entries in entries_by_key.values() for entry in entries if entry}
    assert len(table_ids) == 1
    assert 0 < table_ids.pop() < 1 << 48


def test_a_block_that_is_written_again_comes_again_byte_for_byte(broker: PrivateBroker) -> None:
    schema = table()
    sink = sink_of(broker, partitions=1)
    write(sink, block_of(schema, MIXED))
    write(sink, block_of(schema, MIXED))
    found = read_topic(broker, f"shop_{schema.name.table}_generic")
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    assert [(m.key, m.value, m.headers) for m in first] == [(m.key, m.value, m.headers) for m in second]


def test_an_update_of_the_key_is_one_message_by_choice(broker: PrivateBroker) -> None:
    schema = table()
    write(sink_of(broker, key_changes=KeyChanges.UPDATE, timestamps=Timestamps.COMMIT), block_of(schema, MIXED[4:6]))
    [only] = read_topic(broker, f"shop_{schema.name.table}_generic")
    word, record = decoded(only)
    assert (word, only.key, only.timestamp_ms) == ("update", b'{"id":3}', 1_700_000_000_123)
    assert (record["old_integers"], record["new_integers"]) == ({"id": 2}, {"id": 3})
    assert only.headers["headrace.old_nulls"] == b'["name"]'


def test_rows_of_a_snapshot_are_distinguished_by_their_numbers(broker: PrivateBroker) -> None:
    schema = table(key=())
    write(sink_of(broker, partitions=4), block_of(schema, [(Op.SNAPSHOT, 1, "a"), (Op.SNAPSHOT, 1, "a")], 77, None))
    found = read_topic(broker, f"shop_{schema.name.table}_generic")
    # A table without a key is in one partition, in order.
    assert {(message.partition, message.key) for message in found} == {(found[0].partition, None)}
    assert [read_position(message.position) for message in found] == [(77, 0), (77, 1)]
    assert [decoded(message)[1]["txid"] for message in found] == [None, None]


def test_keys_go_where_javas_clients_send_them(broker: PrivateBroker) -> None:
    schema = table()
    write(sink_of(broker, partitions=7), block_of(schema, [(Op.INSERT, n, "x") for n in range(50)]))
    for message in read_topic(broker, f"shop_{schema.name.table}_generic"):
        assert message.key is not None
        assert message.partition == (murmur2(message.key) & 0x7FFFFFFF) % 7


def murmur2(data: bytes) -> int:
    """The hash of Java's clients, from its definition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize("compression", Compression)
def test_compressions(broker: PrivateBroker, compression: Compression) -> None:
    schema = table()
    write(sink_of(broker, compression=compression), block_of(schema, [(Op.INSERT, 1, "x" * 1000)]))
    assert len(read_topic(broker, f"shop_{schema.name.table}_generic")) == 1


def test_topics_are_made_as_chosen_and_only_then(broker: PrivateBroker) -> None:
    schema = table()
    topic = f"{schema.name.table}.shop"
    with pytest.raises(DefiniteError, match=f"the topic {topic} does not exist"):
        sink_of(broker, create_topics=False, topic="${table}.${db}").prepare([schema])
    sink = sink_of(broker, topic="${table}.${db}", partitions=5, replication=1, cleanup=Cleanup.COMPACT)
    sink.prepare([schema])
    sink.prepare([schema])
    assert len(broker.admin().list_topics(topic, timeout=10).topics[topic].partitions) == 5
    with pytest.raises(DefiniteError, match="replication factor") as error:
        sink_of(broker, replication=3).prepare([table()])
    assert "kafka.replication" in error.value.hint


def test_two_tables_do_not_share_a_topic_by_accident(broker: PrivateBroker) -> None:
    schemas = [table("a b"), table("a_b")]
    with pytest.raises(DefiniteError, match="would both go to the topic shop_a_b_generic"):
        sink_of(broker).prepare(schemas)
    sink_of(broker, topic="all").check_target_conflicts(schemas)


def test_a_message_that_is_too_large_is_named(broker: PrivateBroker) -> None:
    schema = table()
    large = block_of(schema, [(Op.INSERT, 1, "x"), (Op.INSERT, 2, secrets.token_hex(1_000_000)), (Op.INSERT, 3, "z")])
    with pytest.raises(DefiniteError, match="too large") as error:
        write(sink_of(broker), large)
    assert error.value.place == f'topic shop_{schema.name.table}_generic, key {{"id":2}}'
    assert "max.message.bytes" in error.value.hint
    # The writer can be used afterwards.
    write(sink_of(broker), block_of(schema, [(Op.INSERT, 4, "x")]))


def test_a_compacted_topic_takes_no_table_without_a_key(broker: PrivateBroker) -> None:
    with pytest.raises(DefiniteError) as error:
        write(sink_of(broker, cleanup=Cleanup.COMPACT), block_of(table(key=()), [(Op.INSERT, 1, "x")]))
    assert "compacted" in error.value.hint


def test_properties_that_break_the_guarantee_are_refused(broker: PrivateBroker) -> None:
    for name, value in (("acks", "1"), ("enable.idempotence", "false"), ("partitioner", "random")):
        with pytest.raises(DefiniteError, match=name):
            sink_of(broker, properties=((name, value),)).writer()
    sink_of(broker, properties=(("acks", "-1"), ("linger.ms", "1"))).writer()
    with pytest.raises(DefiniteError, match="No such configuration property"):
        write(sink_of(broker, properties=(("no.such.property", "1"),)), block_of(table(), MIXED))


def test_a_full_queue_is_waited_for(broker: PrivateBroker) -> None:
    schema = table()
    small = (("queue.buffering.max.messages", "10"), ("batch.num.messages", "5"))
    write(sink_of(broker, partitions=1, properties=small), block_of(schema, [(Op.INSERT, n, "x") for n in range(500)]))
    found = read_topic(broker, f"shop_{schema.name.table}_generic")
    assert [read_position(message.position)[0] for message in found] == list(range(1000, 1500))


def test_a_message_that_no_queue_takes_is_named(broker: PrivateBroker) -> None:
    """Otherwise the pipe would wait forever."""
    small = (("queue.buffering.max.kbytes", "64"),)
    rows = [(Op.INSERT, n, "x" * (200_000 if n == 7 else 10)) for n in range(9)]
    with pytest.raises(DefiniteError, match="larger than all that may be under way") as error:
        write(sink_of(broker, partitions=1, properties=small), block_of(table(), rows))
    assert 'key {"id":7}' in error.value.place
    assert "queue.buffering.max.kbytes" in error.value.hint


def test_interrupted_logins_are_retried_when_brokers_are_back(broker: PrivateBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Refusals] = []

    class Heard(Refusals):
        def __init__(self) -> None:
            super().__init__()
            heard.append(self)

    monkeypatch.setattr(delivery, "Refusals", Heard)
    schema = table()
    blocks = [block_of(schema, [(Op.INSERT, n, "x")], 100 + n) for n in range(3)]
    # (A distinct property, so that no producer of another test is reused.)
    sink = sink_of(broker, partitions=1, properties=(("client.id", schema.name.table),))
    write(sink, blocks[0])
    [refusals] = heard

    def cut_off() -> None:
        for _ in range(2):
            refusals.note(KafkaError(KafkaError._AUTHENTICATION))

    # While the producer was idle, and while it sends.
    cut_off()
    writer = sink.writer()
    writer.write(blocks[1])
    cut_off()
    writer.write(blocks[2])
    writer.close()
    assert len(heard) == 1
    positions = [read_position(message.position)[0] for message in read_topic(broker, f"shop_{schema.name.table}_generic")]
    assert positions == [100, 101, 102]


def test_tables_that_share_a_compacted_topic_would_replace_each_other_s_rows(broker: PrivateBroker) -> None:
    schemas = [table("a"), table("b")]
    with pytest.raises(DefiniteError, match="would replace each other") as error:
        sink_of(broker, topic="all", cleanup=Cleanup.COMPACT).prepare(schemas)
    assert "${table}" in error.value.hint
    sink_of(broker, topic="${db}.${table}", cleanup=Cleanup.COMPACT).check_target_conflicts(schemas)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"format": MessageFormat.DEBEZIUM, "registry": "http://registry:8081"}, "registry"),
        ({"format": MessageFormat.DEBEZIUM, "bigint_unsigned": UnsignedBigintAs.LONG}, "bigint_unsigned"),
        ({"format": MessageFormat.SPECIFIC, "text": TextAs.STRING}, "text"),
        ({"schemas": True}, "schemas"),
        ({"delivery_timeout_s": 0}, "delivery_timeout_s"),
        ({"partitions": -2}, "partitions"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(choices: dict[str, Any], named: str) -> None:
    with pytest.raises(DefiniteError) as error:
        KafkaOptions(**choices)
    assert error.value.place == f"kafka.{named}"
    assert error.value.hint


@pytest.fixture
def own_broker(fresh_broker: Callable[..., PrivateBroker]) -> PrivateBroker:
    return fresh_broker(accounts={"writer": "secret"})


def test_a_broker_that_is_away_is_waited_for_and_a_wrong_password_is_not(own_broker: PrivateBroker) -> None:
    schema = table()
    blocks = [block_of(schema, [(Op.INSERT, n, "x")], 100 + n) for n in range(3)]
    sink = sink_of(own_broker, delivery_timeout_s=4, partitions=1)
    sink.prepare([schema])
    writer = sink.writer()
    writer.write(blocks[0])
    own_broker.kill()
    with pytest.raises(TransientError, match="sending to Kafka failed"):
        writer.write(blocks[1])
    own_broker.start()
    writer.write(blocks[1])
    writer.write(blocks[2])
    writer.close()
    positions = [read_position(message.position)[0] for message in read_topic(own_broker, f"shop_{schema.name.table}_generic")]
    assert list(dict.fromkeys(positions)) == [100, 101, 102]
    wrong = KafkaSink(parse_kafka_url(own_broker.url().replace("secret", "wrong")), KafkaOptions(delivery_timeout_s=5))
    for doing in (lambda: wrong.prepare([schema]), lambda: wrong.writer().write(blocks[0])):
        with pytest.raises(DefiniteError, match="uthentication") as error:
            doing()
        assert "password" in error.value.hint
        assert "wrong" not in str(error.value)
