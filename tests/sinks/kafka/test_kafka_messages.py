"""Blocks to mypipe's messages, compared with a plain model: messages, keys, values, headers and order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.mypipe.wire_format import Mutation, generic_schema
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.sinks.kafka.delivery import Messages
from headrace.sinks.kafka.mypipe.encoder import encode_keys
from headrace.sinks.kafka.options import KafkaOptions, KeyChanges, MessageFormat, Tombstones
from headrace.sinks.kafka.sink import KafkaSink
from testkit.generators.kind_values import block_of_rows, table_of_all
from testkit.oracles.topics import avro_record

WIDTH = 10
SCHEMA = TableSchema(
    TableName("shop", "wide"),
    (Column("id", Kind.INT32, False), *(Column(f"c{n}", Kind.INT64 if n % 2 else Kind.STRING) for n in range(WIDTH))),
    ("id",),
)
Row = tuple[Any, ...]
Image = tuple[Op, Row]


def block_of(images: list[Image]) -> ChangeBlock:
    count = len(images)
    moments = [n * 1_000_000 for n in range(count)]
    rows, ops = [row for _, row in images], [op for op, _ in images]
    return block_of_rows(SCHEMA, rows, ops, versions=range(500, 500 + count), commit_us=moments)


def messages_of(block: ChangeBlock, **choices: Any) -> Messages:
    [messages] = KafkaSink(parse_kafka_url("kafka://nowhere/"), KafkaOptions(**choices)).encoder().encode(block)
    return messages


def maps(row: Row, prefix: str = "") -> dict[str, Any]:
    named = [(column, value) for column, value in zip(SCHEMA.columns, row, strict=True) if value is not None]
    return {
        f"{prefix}bytes": {},
        f"{prefix}integers": {column.name: value for column, value in named if column.kind is Kind.INT32},
        f"{prefix}strings": {column.name: value for column, value in named if column.kind is Kind.STRING},
        f"{prefix}longs": {column.name: value for column, value in named if column.kind is Kind.INT64},
    }


def nulls(row: Row) -> list[str]:
    return [column.name for column, value in zip(SCHEMA.columns, row, strict=True) if value is None]


DecodedMessage = tuple[bytes, int, Mutation | None, dict[str, Any], list[str], list[str]]


def expected(images: list[Image], *, split: bool, tombstones: bool) -> list[DecodedMessage]:
    """Return key, version, mutation, maps, NULLs before and NULLs of each expected message."""
    found: list[DecodedMessage] = []
    before: Row | None = None
    for at, (op, row) in enumerate(images):
        key, version = b'{"id":%d}' % row[0], 500 + at
        if op is Op.BEFORE:
            before = row
            continue
        if op is Op.UPDATE:
            assert before is not None
            if split and before[0] != row[0]:
                old_key = b'{"id":%d}' % before[0]
                found.append((old_key, version - 1, Mutation.DELETE, maps(before), [], nulls(before)))
                if tombstones:
                    found.append((old_key, version - 1, None, {}, [], nulls(before)))
                found.append((key, version, Mutation.INSERT, maps(row), [], nulls(row)))
            else:
                found.append((key, version, Mutation.UPDATE, {**maps(before, "old_"), **maps(row, "new_")}, nulls(before), nulls(row)))
            continue
        found.append((key, version, Mutation.DELETE if op is Op.DELETE else Mutation.INSERT, maps(row), [], nulls(row)))
        if op is Op.DELETE and tombstones:
            found.append((key, version, None, {}, [], nulls(row)))
    return found


def decoded_messages(messages: Messages) -> list[DecodedMessage]:
    found: list[DecodedMessage] = []
    headers = messages.headers or ((),) * len(messages.value)
    columns = (messages.key.to_pylist(), messages.version.to_pylist(), messages.value.to_pylist(), headers)
    for key, version, value, mine in zip(*columns, strict=True):
        said = dict(mine)
        names = [json.loads(said.get(name, b"[]")) for name in ("headrace.old_nulls", "headrace.nulls")]
        if value is None:
            found.append((key, version, None, {}, *names))
            continue
        mutation = Mutation(value[1])
        record = avro_record(value, generic_schema(mutation))
        assert [record.pop(name) for name in ("database", "table", "txid")] == ["shop", "wide", None]
        record.pop("tableId")
        found.append((key, version, mutation, record, *names))
    return found


cells = st.one_of(st.none(), st.integers(0, 3))
rows = st.tuples(st.integers(0, 4), *(cells if n % 2 else st.one_of(st.none(), st.text(max_size=3)) for n in range(WIDTH)))
changes = st.one_of(
    st.tuples(st.sampled_from([Op.INSERT, Op.DELETE, Op.SNAPSHOT]), rows).map(lambda one: [one]),
    st.tuples(rows, rows).map(lambda pair: [(Op.BEFORE, pair[0]), (Op.UPDATE, pair[1])]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(changes, min_size=1, max_size=12), st.booleans(), st.booleans())
def test_any_block(histories: list[list[Image]], split: bool, tombstones: bool) -> None:
    images = [image for history in histories for image in history]
    chosen = {
        "key_changes": KeyChanges.SPLIT if split else KeyChanges.UPDATE,
        "tombstones": Tombstones.ON if tombstones else Tombstones.OFF,
    }
    messages = messages_of(block_of(images), **chosen)
    assert decoded_messages(messages) == expected(images, split=split, tombstones=tombstones)


@pytest.mark.parametrize(
    "ops", [[Op.UPDATE], [Op.BEFORE], [Op.BEFORE, Op.INSERT], [Op.INSERT, Op.UPDATE], [Op.BEFORE, Op.BEFORE, Op.UPDATE]]
)
def test_an_update_without_the_row_before_it_is_refused(ops: list[Op]) -> None:
    row = (1, *[None] * WIDTH)
    with pytest.raises(DefiniteError, match="without the row before it"):
        messages_of(block_of([(op, row) for op in ops]))


def test_a_block_without_rows_is_no_message() -> None:
    assert KafkaSink(parse_kafka_url("kafka://nowhere/")).encoder().encode(block_of([])) == []


def test_pieces_of_larger_batches_are_encoded_as_they_are(tmp_path: Path) -> None:
    """Arrays that begin in the middle of their buffers, of every kind."""
    schema, images = table_of_all(40)
    for form in (MessageFormat.GENERIC, MessageFormat.SPECIFIC):
        encoder = KafkaSink(parse_kafka_url("kafka://nowhere/"), KafkaOptions(format=form, registry=str(tmp_path))).encoder()

        def encoded(piece: pa.RecordBatch, encoder: Any = encoder) -> list[bytes]:
            count = piece.num_rows
            ones = pa.array([1] * count, pa.uint8())
            block = ChangeBlock(schema, piece, ones, pa.array(range(count), pa.uint64()), pa.array(range(count), pa.int64()))
            [found] = encoder.encode(block)
            return list(found.value.to_pylist())

        assert encoded(images.slice(13, 20)) == encoded(images)[13:33]


def key_of(columns: list[tuple[Column, Any]], key: tuple[str, ...], **more: Any) -> Any:
    schema = TableSchema(TableName("d", "t"), tuple(column for column, _ in columns), key, **more)
    arrays = [pa.array([value], column.arrow_type) for column, value in columns]
    return encode_keys(schema, pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema)).to_pylist()[0]


def test_keys() -> None:
    text, number = Column('na"me', Kind.STRING, False, source_type="text"), Column("n", Kind.UINT64, False)
    assert key_of([(text, 'a"b\\\n'), (number, 2**64 - 1)], ("n", 'na"me')) == b'{"n":18446744073709551615,"na\\"me":"a\\"b\\\\\\n"}'
    assert key_of([(text, "漢 é"), (number, 0)], ('na"me',)) == '{"na\\"me":"漢 é"}'.encode()
    assert key_of([(Column("b", Kind.BYTES, False), b"\x00\xff")], ("b",)) == b'{"b":"00ff"}'
    assert key_of([(Column("d", Kind.DATE, False), 19000)], ("d",)) == b'{"d":"2022-01-08"}'
    assert key_of([(number, 7)], ()) is None
    unique = (Index("u", ("n",), True),)
    assert key_of([(number, 7)], (), indexes=unique) == b'{"n":7}'


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=2, max_size=20))
def test_keys_are_equal_where_their_values_are(values: list[tuple[str, str]]) -> None:
    schema = TableSchema(TableName("d", "t"), (Column("a", Kind.STRING, False), Column("b", Kind.STRING, False)), ("a", "b"))
    batch = pa.RecordBatch.from_arrays([pa.array([one[n] for one in values]) for n in (0, 1)], schema=schema.arrow_schema)
    found = encode_keys(schema, batch).to_pylist()
    assert [tuple(json.loads(key).values()) for key in found] == values
