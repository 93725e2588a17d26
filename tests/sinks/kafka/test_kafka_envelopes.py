"""Debezium's events from blocks: JSON fragments compared with Python's, and the events of a block's images.

A pipe sends them, without Spark, to a real broker; the `debezium` source reads the source's rows from them.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.model.version import pack_version
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.kafka.debezium import envelope_encoder
from headrace.sinks.kafka.debezium.envelope_encoder import DebeziumEncoder, Origin
from headrace.sinks.kafka.debezium.json_fragments import in_base64, quoted, shown
from headrace.sinks.kafka.delivery import Messages
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat, Tombstones
from headrace.sinks.kafka.sink import KafkaSink
from headrace.sources.debezium.events.records import KnownTable
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.mysql.rows import row_decoder
from testkit.generators.kind_values import COLUMNS, VALUES, array_of, block_of_rows
from testkit.generators.workload import TABLES, Workload, run_transaction
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import log_end, source_rows
from testkit.oracles.topics import Kept, read_topic
from testkit.pipelines.local_pipeline import without_spark
from testkit.recordings.debezium_encoded import as_records
from testkit.recordings.debezium_recordings import KafkaRecord, as_batches
from testkit.recordings.debezium_replay import Replay
from testkit.servers.broker import PrivateBroker

PREFIX = "srv"


@pytest.mark.slow(
    "mysql",
    because=("the test itself on MariaDB; test_debezium_s_events[mysql]; test_read_back_by_the_debezium_source_the_events_are_the_changes"),
)
@pytest.mark.parametrize("schemas", [False, True])
def test_snapshot_and_changes_are_read_back_from_the_topics(
    server: PrivateServer, database: str, broker: PrivateBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schemas: bool
) -> None:
    without_spark(monkeypatch)
    # Small blocks, so that their bounds cut events.
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 24)
    Workload(server, database, 7).prepare()
    choices = KafkaOptions(format=MessageFormat.DEBEZIUM, prefix=PREFIX, partitions=3, schemas=schemas)
    settings = PipeSettings(Selection((f"{database}.*",)), tmp_path / "state", once=True, flush_seconds=0.0, master="local[2]")
    chance = random.Random(7)
    with open_logbook(server, database) as book, server.root_connection(database, autocommit=False) as connection:
        for _ in range(2):
            for _ in range(20):
                run_transaction(connection, chance)
            MySQLPipe(book.address, KafkaSink.from_url(broker.url(), choices), "sink", settings, LogView()).run()
    replay = Replay(DebeziumReader())
    headers: set[str] = set()
    for table in TABLES:
        topic = f"{PREFIX}.{database}.{table}"
        messages = read_topic(broker, topic)
        headers |= {name for message in messages for name in message.headers}
        _check_places(messages, server)
        replay.feed_all(as_batches([_record(topic, message) for message in messages]), chance)
        name = TableName(database, table)
        columns = [column.name for column in replay.reader.tables[name].schema.columns]
        rows = [tuple(row[column] for column in columns) for row in replay.rows(name)]
        expected = source_rows(server, database, table)
        if schemas:
            assert sorted(rows, key=repr) == expected
        assert len(rows) == len(expected)
    assert replay.refused == []
    assert {"__debezium.newkey", "__debezium.oldkey", "headrace.position"} <= headers


def _record(topic: str, message: Kept) -> KafkaRecord:
    headers: list[tuple[str, bytes | None]] = list(message.headers.items())
    return KafkaRecord(topic, message.partition, message.offset, message.timestamp_ms, message.key, message.value, tuple(headers))


def _check_places(messages: list[Kept], server: PrivateServer) -> None:
    """Every event names the server's log file, and a position in it."""
    number, end = log_end(server)
    events = [json.loads(message.value) for message in messages if message.value is not None]
    for event in events:
        payload = event.get("payload", event)
        source = payload["source"]
        assert (source["connector"], source["name"], source["file"]) == (server.flavour, PREFIX, f"binlog.{number:06d}")
        assert 0 < source["pos"] < end
        assert (payload["op"] == "r") == (source["snapshot"] == "true") == (source["gtid"] is None)
    assert {"r", "c", "u", "d"} <= {event.get("payload", event)["op"] for event in events}


TABLE = TableSchema(
    TableName("shop", "t"), (Column("id", Kind.INT32, False), Column("v", Kind.STRING), Column("k", Kind.INT64, False)), ("k", "id")
)
CHOICES = KafkaOptions(format=MessageFormat.DEBEZIUM, prefix="srv")
GTID = "8adb3726-e0fa-11f1-91e2-02fc00000001:28"


def block(rows: list[tuple[Op, int, tuple[Any, ...]]], schema: TableSchema = TABLE, transaction: str = GTID) -> ChangeBlock:
    """Images as (op, offset in the log, row)."""
    ops, offsets, values = zip(*rows, strict=True)
    versions = [pack_version(3, 12, offset) for offset in offsets]
    moments = [1_700_000_000_123_456 + number for number in range(len(rows))]
    return block_of_rows(schema, values, ops, versions=versions, commit_us=moments, transactions=[transaction] * len(rows), order=True)


def sent(one: ChangeBlock, choices: KafkaOptions = CHOICES, **origin: Any) -> list[Messages]:
    return DebeziumEncoder(choices, Origin(**origin), clock=lambda: 1_800_000_000_987_654_321).encode(one)


def values(messages: list[Messages]) -> list[Any]:
    return [value and json.loads(value) for one in messages for value in one.value.to_pylist()]


def test_any_text_is_a_json_string() -> None:
    chance = random.Random(7)
    letters = [*map(chr, range(0x80)), "é", "日", "🚰", "\u2028", "\ud7ff"]
    texts = [None, "", *("".join(chance.choices(letters, k=chance.randrange(40))) for _ in range(500)), None]
    shown_texts = quoted(pa.array(texts, pa.string()))
    shown_texts.validate(full=True)
    assert [None if text is None else json.loads(text) for text in shown_texts.to_pylist()] == texts
    assert quoted(pa.array(texts).slice(3, 100)).to_pylist() == shown_texts.to_pylist()[3:103]
    assert quoted(pa.array([], pa.string())).to_pylist() == []


def test_bytes_are_base64() -> None:
    chance = random.Random(7)
    raw = [None, b"", *(chance.randbytes(chance.randrange(20)) for _ in range(500))]
    expected = [None if one is None else f'"{base64.b64encode(one).decode()}"' for one in raw]
    assert in_base64(pa.array(raw, pa.binary())).to_pylist() == expected
    assert in_base64(pa.array(raw, pa.binary()).slice(5, 50)).to_pylist() == expected[5:55]


@pytest.mark.parametrize(("precision", "scale"), [(9, 4), (38, 0), (38, 38), (65, 30), (1, 0)])
def test_decimals_are_the_fewest_bytes_that_java_would_write(precision: int, scale: int) -> None:
    chance = random.Random(precision)
    most = 10**precision - 1
    numbers = [None, 0, 1, -1, 127, 128, -128, -129, 255, 256, most, -most, *(chance.randrange(-most, most + 1) for _ in range(200))]
    numbers = [number if number is None or abs(number) <= most else 0 for number in numbers]
    column = Column("d", Kind.DECIMAL, precision=precision, scale=scale)
    array = pa.array([None if n is None else Decimal(f"{n}e-{scale}") for n in numbers], column.arrow_type)
    pieces = shown(column, "mysql").render(array).to_pylist()
    for number, piece in zip(numbers, pieces, strict=True):
        if number is None:
            assert piece is None
            continue
        raw = base64.b64decode(json.loads(piece))
        assert int.from_bytes(raw, "big", signed=True) == number
        # BigInteger.toByteArray: one sign bit, and the fewest bytes.
        assert len(raw) == (number if number >= 0 else ~number).bit_length() // 8 + 1
    assert shown(column, "mysql").render(array.slice(4, 9)).to_pylist() == pieces[4:13]


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_shown_by_a_piece_of_json_for_each_value(kind: Kind, connector: str) -> None:
    column = Column("c", kind, precision=9, scale=2, members=("a", "b"), source_type="geometry" if kind is Kind.GEOMETRY else "")
    how = shown(column, connector)
    empty = pa.array([], column.arrow_type)
    assert how.render(empty).to_pylist() == []
    assert how.render(pa.nulls(3, column.arrow_type)).to_pylist() == [None] * 3
    assert "type" in how.field


_POINT = b"\x00\x00\x00\x00\x01" + struct.pack("<I2d", 1, 1.5, -2.5)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.kind.value)
def test_a_value_is_shown_alike_among_any_number_of_others(column: Column) -> None:
    samples = [_POINT, b"\xe6\x10" + _POINT[2:]] if column.kind is Kind.GEOMETRY else VALUES[column.kind]
    render = shown(column, "mysql").render
    alone = [render(array_of(column, [value])).to_pylist()[0] for value in samples]
    for count in (1, 2, 3, 4, 64, 65):
        chosen = [number % len(samples) for number in range(count)]
        assert render(array_of(column, [samples[number] for number in chosen])).to_pylist() == [alone[number] for number in chosen]


def test_an_insert_an_update_and_a_deletion() -> None:
    rows: list[tuple[Op, int, tuple[Any, ...]]] = [
        (Op.INSERT, 101, (1, "a", 10)),
        (Op.INSERT, 102, (2, None, 20)),
        (Op.BEFORE, 301, (1, "a", 10)),
        (Op.UPDATE, 302, (1, "b", 10)),
        (Op.BEFORE, 303, (2, None, 20)),
        (Op.UPDATE, 304, (2, "c", 20)),
        (Op.DELETE, 501, (1, "b", 10)),
    ]
    [messages] = sent(block(rows), connector="mysql", log="bin", server_id=4)
    assert messages.topic == "srv.shop.t"
    assert [key.decode() for key in messages.key.to_pylist()] == ['{"k":10,"id":1}', '{"k":20,"id":2}'] * 2 + ['{"k":10,"id":1}'] * 2
    found = values([messages])
    assert [value and (value["op"], value["before"], value["after"]) for value in found] == [
        ("c", None, {"id": 1, "v": "a", "k": 10}),
        ("c", None, {"id": 2, "v": None, "k": 20}),
        ("u", {"id": 1, "v": "a", "k": 10}, {"id": 1, "v": "b", "k": 10}),
        ("u", {"id": 2, "v": None, "k": 20}, {"id": 2, "v": "c", "k": 20}),
        ("d", {"id": 1, "v": "b", "k": 10}, None),
        None,
    ]
    places = [(value["source"]["file"], value["source"]["pos"], value["source"]["row"]) for value in found if value]
    assert places == [
        ("bin.000012", 100, 0),
        ("bin.000012", 100, 1),
        ("bin.000012", 300, 0),
        ("bin.000012", 300, 1),
        ("bin.000012", 500, 0),
    ]
    source = found[2]["source"]
    assert (source["gtid"], source["server_id"], source["snapshot"], source["name"]) == (GTID, 4, "false", "srv")
    assert (source["ts_ms"], source["ts_us"], source["ts_ns"]) == (1_700_000_000_123, 1_700_000_000_123_459, 1_700_000_000_123_459_000)
    assert (found[2]["ts_ms"], found[2]["ts_ns"]) == (1_800_000_000_987, 1_800_000_000_987_654_321)
    assert messages.headers == ()
    assert messages.version.to_pylist()[-2:] == [pack_version(3, 12, 501)] * 2


def test_a_changed_key_is_three_messages_that_name_each_other() -> None:
    rows: list[tuple[Op, int, tuple[Any, ...]]] = [(Op.BEFORE, 301, (1, "a", 10)), (Op.UPDATE, 302, (1, "a", 11))]
    [messages] = sent(block(rows))
    old, new = b'{"k":10,"id":1}', b'{"k":11,"id":1}'
    assert messages.key.to_pylist() == [old, old, new]
    assert [value and value["op"] for value in values([messages])] == ["d", None, "c"]
    assert messages.headers == (((("__debezium.newkey", new),)), (("__debezium.newkey", new),), (("__debezium.oldkey", old),))
    assert messages.version.to_pylist() == [pack_version(3, 12, 301)] * 2 + [pack_version(3, 12, 302)]
    [bare] = sent(block(rows), replace(CHOICES, tombstones=Tombstones.OFF))
    assert bare.key.to_pylist() == [old, new]


def test_a_snapshot_is_read_not_created() -> None:
    [messages] = sent(block([(Op.SNAPSHOT, 100, (1, "a", 1)), (Op.SNAPSHOT, 100, (2, "b", 2))]), server_id=9)
    for value in values([messages]):
        source = value["source"]
        assert (value["op"], value["before"], source["snapshot"], source["pos"], source["row"]) == ("r", None, "true", 100, 0)
        assert (source["gtid"], source["server_id"]) == (None, 0)
    assert messages.row is not None
    assert messages.row.to_pylist() == [0, 1]


def test_a_table_without_a_key_has_no_keys_and_no_tombstones() -> None:
    schema = replace(TABLE, primary_key=())
    rows: list[tuple[Op, int, tuple[Any, ...]]] = [(Op.BEFORE, 1, (1, "a", 1)), (Op.UPDATE, 2, (2, "a", 1)), (Op.DELETE, 99, (2, "a", 1))]
    [messages] = sent(block(rows, schema))
    assert messages.key.to_pylist() == [None, None]
    assert [value["op"] for value in values([messages])] == ["u", "d"]


def test_a_long_block_is_encoded_in_parts_that_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[Op, int, tuple[Any, ...]]] = []
    for number in range(20):
        rows += [(Op.BEFORE, 1 + 2 * number, (number, "a", 1)), (Op.UPDATE, 2 + 2 * number, (number, "b", 1))]
    whole = sent(block(rows))
    monkeypatch.setattr(envelope_encoder, "_MOST_BYTES", 3500)
    parts = sent(block(rows))
    assert len(parts) > 3
    assert values(parts) == values(whole)
    assert [key for one in parts for key in one.key.to_pylist()] == whole[0].key.to_pylist()


def test_a_transaction_without_gtid_has_none() -> None:
    [messages] = sent(block([(Op.INSERT, 5, (1, "a", 1))], transaction="binlog.000012:4"))
    assert values([messages])[0]["source"]["gtid"] is None


def test_an_update_without_its_before_image_is_refused() -> None:
    with pytest.raises(DefiniteError, match="without the row before it"):
        sent(block([(Op.UPDATE, 5, (1, "a", 1))]))


def test_a_schema_goes_with_each_event_if_it_is_wanted() -> None:
    [messages] = sent(block([(Op.INSERT, 5, (1, "a", 1))]), replace(CHOICES, schemas=True))
    key, value = json.loads(messages.key[0].as_py()), json.loads(messages.value[0].as_py())
    assert (key["schema"]["name"], key["payload"]) == ("srv.shop.t.Key", {"k": 1, "id": 1})
    assert (value["schema"]["name"], value["payload"]["op"]) == ("srv.shop.t.Envelope", "c")
    assert [field["field"] for field in value["schema"]["fields"][0]["fields"]] == ["id", "v", "k"]


def test_numbers_without_a_sign_are_read_back_as_what_they_are() -> None:
    """By a reader that has only the events; also in the key, which does not mark it."""
    name, most = TableName("shop", "t"), (1 << 64) - 1
    schema = TableSchema(name, (Column("id", Kind.UINT64, False), Column("n", Kind.UINT64), Column("s", Kind.INT64)), ("id",))
    images = [(Op.INSERT, 1, (most, most - 1, -1)), (Op.INSERT, 2, (1, None, -2)), (Op.DELETE, 3, (most, most - 1, -1))]
    messages = sent(block(images, schema), replace(CHOICES, schemas=True))
    reader = DebeziumReader()
    for batch in as_batches(as_records(messages)):
        found = reader.read(batch)
        assert not found.refused
        reader = replace(reader, tables={**reader.tables, **{one.schema.name: KnownTable(one.schema) for one in found.found}})
    [again] = [block for batch in as_batches(as_records(messages)) for block in reader.read(batch).blocks]
    assert [column.kind for column in again.schema.columns] == [Kind.UINT64, Kind.UINT64, Kind.INT64]
    assert again.images.to_pylist()[0] == {"id": most, "n": most - 1, "s": -1}
    assert again.images.column(0).to_pylist() == [most, 1, most]
