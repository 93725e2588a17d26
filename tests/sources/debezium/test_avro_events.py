"""Debezium's records in Avro: recorded ones from Confluent's converter, and rarer ones written by fastavro."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.kafka.avro.decoder import schema_ids
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.registry import DirectoryRepository, MemoryRepository
from headrace.model.change_block import Op
from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.event_versions import VersionRule
from headrace.sources.debezium.events.options import DebeziumOptions, EventShape
from headrace.sources.debezium.events.parsed_events import Events, ParsedEvents
from headrace.sources.debezium.events.records import DecodedRecords, KnownTable, Records
from headrace.sources.debezium.formats.avro_events import AvroParser, repository_at
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.debezium.types.schema_widening import widen_schema
from testkit.generators.avro_random import write_with_fastavro
from testkit.recordings.debezium_recordings import as_batches, load_records, load_schemas, load_truth
from testkit.recordings.debezium_replay import Replay

NAME = TableName("shop", "orders")


def settled(batches: list[Records], choices: DebeziumOptions) -> tuple[dict[TableName, TableSchema], list[DecodedRecords]]:
    """Read the batches until the tables have the columns of their events."""
    tables: dict[TableName, KnownTable] = {}
    while True:
        reader = DebeziumReader(choices, tables=tables)
        decoded = [reader.read(batch) for batch in batches]
        found = {found.schema.name: found.schema for one in decoded for found in one.found}
        if not found:
            return {name: known.schema for name, known in tables.items()}, decoded
        for name, schema in found.items():
            tables[name] = KnownTable(widen_schema(tables[name].schema, schema).schema if name in tables else schema)


def changes(decoded: list[DecodedRecords]) -> dict[str, list[tuple[int, int, int, str]]]:
    """The images without those that a truncation removes: records of one table are in different partitions each time."""
    emptied: dict[TableName, int] = {}
    for truncation in (truncation for one in decoded for truncation in one.truncations):
        emptied[truncation.table] = max(truncation.version, emptied.get(truncation.table, 0))
    found: dict[str, list[tuple[int, int, int, str]]] = {}
    for block in (block for one in decoded for block in one.blocks):
        rows = zip(block.version.to_pylist(), block.op.to_pylist(), block.commit_ts.to_pylist(), block.images.to_pylist(), strict=True)
        for version, op, moment, row in rows:
            if version >= emptied.get(block.schema.name, 0):
                # Each connector read its snapshot at its own time and position.
                stamp = (0, op, 0) if op == Op.SNAPSHOT else (version, op, moment)
                found.setdefault(str(block.schema.name), []).append((*stamp, repr(sorted(row.items()))))
    return {table: sorted(lines) for table, lines in found.items()}


def recorded_registry(recording: str, tmp_path: Path) -> str:
    """The schemas of a recording, as a directory of files with the ids that the registry gave them."""
    for number, text in load_schemas(recording).items():
        folder = tmp_path / f"schema-{number}"
        folder.mkdir()
        (folder / f"1.{number}.avsc").write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(("connector", "least"), [("mysql", 12), ("postgres", 5)])
def test_avro_and_json_of_the_same_changes_are_the_same(connector: str, least: int, tmp_path: Path) -> None:
    """The real connector, once through Confluent's Avro converter, once through Connect's JSON converter."""
    registry = recorded_registry(f"{connector}-avro", tmp_path)
    # PostgreSQL's tables without a key are refused in both.
    avro_records, json_records = (
        [batch for batch in as_batches(load_records(f"{connector}-{form}")) if not batch.topic.endswith("public.nokey")]
        for form in ("avro", "schema")
    )
    avro_tables, avro = settled(avro_records, DebeziumOptions(registry=registry))
    json_tables, plain = settled(json_records, DebeziumOptions())
    assert [one.refused for one in avro] == [()] * len(avro)
    assert avro_tables == json_tables
    assert len(avro_tables) >= least
    assert changes(avro) == changes(plain)
    assert sum(one.ignored.get("tombstone", 0) for one in avro) == sum(one.ignored.get("tombstone", 0) for one in plain) > 0
    assert sorted(one.truncations for one in avro if one.truncations) == sorted(one.truncations for one in plain if one.truncations) != []


@pytest.mark.parametrize(
    ("recording", "sorts"), [("mysql-avro", ("pad", "id", "k")), ("postgres-avro", ("id", "k")), ("mysql-flatavro", ("id", "k"))]
)
def test_recorded_avro_leads_to_what_the_server_showed(recording: str, sorts: tuple[str, ...], tmp_path: Path) -> None:
    """Partitions cut into random batches, mixed, some repeated; with the row before an update."""
    choices = DebeziumOptions(registry=recorded_registry(recording, tmp_path))
    truth = load_truth(recording.partition("-")[0])["sbtest1"]
    batches = [batch for batch in as_batches(load_records(recording)) if batch.topic.endswith(".sbtest1")]
    name = TableName(batches[0].topic.split(".")[1], "sbtest1")
    replay = Replay(DebeziumReader(choices), {name: sorts})
    replay.feed_all(batches, random.Random(5))
    assert replay.refused == []
    order = replay.reader.tables[name].order
    assert order is not None
    assert order.rule is (VersionRule.LSN if "postgres" in recording else VersionRule.BINLOG)
    columns = [column for column, _ in truth.columns]
    shown = sorted(tuple(str(row[column]) for column in columns) for row in replay.rows(name))
    assert shown == sorted(tuple(str(value) for value in row) for row in truth.rows)


# Records in the format of Confluent's converter.

ROW = [
    {"name": "id", "type": "int"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "tags", "type": ["null", {"type": "map", "values": ["null", "string"]}], "default": None},
    {"name": "at", "type": ["null", {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}]},
]
SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [
        {"name": "connector", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": ["string", "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "table", "type": ["null", "string"]},
        {"name": "file", "type": "string"},
        {"name": "pos", "type": "long"},
        {"name": "row", "type": "int"},
    ],
}
VALUE = {"type": "record", "name": "Value", "namespace": "server.shop.orders", "fields": ROW, "connect.name": "server.shop.orders.Value"}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "server.shop.orders",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
    "connect.name": "server.shop.orders.Envelope",
}
KEY = {"type": "record", "name": "Key", "namespace": "server.shop.orders", "fields": [{"name": "id", "type": "int"}]}
FLAT = {
    "type": "record",
    "name": "Value",
    "namespace": "flat.shop.orders",
    "fields": [
        *ROW[:2],
        {"name": "__op", "type": ["null", "string"]},
        {"name": "__source_file", "type": ["null", "string"]},
        {"name": "__source_pos", "type": ["null", "long"]},
        {"name": "__source_row", "type": ["null", "int"]},
        {"name": "__source_ts_ms", "type": ["null", "long"]},
        {"name": "__deleted", "type": ["null", "string"]},
    ],
}


class Made:
    """Records by fastavro, their schemas in a repository."""

    def __init__(self, repository: Any) -> None:
        self.repository = repository

    def encode(self, schema: Any, value: Any, *, id_bytes: int = 4) -> bytes | None:
        if value is None:
            return None
        number = self.repository.register(schema["name"] + schema["namespace"], parse_schema(json.dumps(schema)))
        body = write_with_fastavro(fastavro.parse_schema(schema), value)
        return framed_with(number, id_bytes) + body


def framed_with(number: int, id_bytes: int = 4) -> bytes:
    return b"\0" + number.to_bytes(id_bytes, "big")


def records(pairs: list[tuple[bytes | None, bytes | None]], topic: str = "server.shop.orders") -> Records:
    count = len(pairs)
    keys, values = pa.array([key for key, _ in pairs], pa.binary()), pa.array([value for _, value in pairs], pa.binary())
    return Records(topic, 0, pa.array(range(100, 100 + count), pa.int64()), keys, values, pa.array([7_000_000] * count, pa.int64()))


def row(number: int, note: str | None = "n", **rest: Any) -> dict[str, Any]:
    return {"id": number, "note": note, "tags": None, "at": None, **rest}


def event(op: str, before: Any, after: Any, pos: int) -> dict[str, Any]:
    source = {
        "connector": "mysql",
        "ts_ms": 5,
        "snapshot": "false",
        "db": "shop",
        "table": "orders",
        "file": "log.000003",
        "pos": pos,
        "row": 0,
    }
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 6}


def parse(made: Made, pairs: list[tuple[bytes | None, bytes | None]], choices: DebeziumOptions | None = None) -> ParsedEvents:
    given = records(pairs)
    rows = np.flatnonzero(given.value.is_valid().to_numpy(zero_copy_only=False))
    parsed = AvroParser(choices or DebeziumOptions(), made.repository).parse(given, rows, None)
    numbers = [int(row) for events in parsed.events for row in events.record] + [one.record for one in parsed.refused]
    assert sorted(numbers) == rows.tolist() or parsed.ignored
    return parsed


@pytest.fixture
def made() -> Made:
    return Made(MemoryRepository())


def only(parsed: ParsedEvents) -> Events:
    (events,) = parsed.events
    return events


def test_an_envelopes_images(made: Made) -> None:
    rich = row(3, None, tags={"a": "1", "b": None}, at={"x": 0.5})
    values = [event("c", None, row(1), 10), event("u", row(1), row(1, "m"), 20), event("d", rich, None, 30), event("r", None, rich, 40)]
    parsed = parse(made, [(made.encode(KEY, {"id": 1}), made.encode(ENVELOPE, value)) for value in values])
    events = only(parsed)
    assert bytes(events.op) == b"cudr"
    assert events.fields.key == ("id",)
    shown = {**rich, "tags": '{"a":"1","b":null}'}
    assert events.image.to_pylist() == [row(1), row(1, "m"), shown, shown]
    assert events.has_before.tolist() == [False, True, False, False]
    assert events.before.to_pylist()[1:3] == [row(1), dict.fromkeys(row(1))]
    assert events.source["pos"].to_pylist() == [10, 20, 30, 40]
    assert events.source["ts_us"].to_pylist() == [5000] * 4
    assert events.source["lsn"].null_count == 4
    asked = AvroParser(DebeziumOptions(), made.repository).parse(
        records([(None, made.encode(ENVELOPE, values[1]))]), np.array([0]), ("note",)
    )
    assert only(asked).before.to_pylist() == [{"note": "n"}]


def test_records_that_cannot_be_read_hide_no_other(made: Made) -> None:
    key = made.encode(KEY, {"id": 1})
    good = made.encode(ENVELOPE, event("c", None, row(1), 10))
    assert good is not None
    wrong: dict[str, bytes | None] = {
        "it is not in Avro": b'{"op":"c"}',
        "it is not in Avro as": b"\0\0\0",
        "its schema cannot be used: there is no schema with the id 77": framed_with(77) + good[5:],
        "it ends too early": good[:-4],
        "it is longer than its schema says": good + b"x",
        "its op is 'x', which is none of": made.encode(ENVELOPE, event("x", None, row(1), 10)),
        "its op is 'd', and it holds no row in 'before'": made.encode(ENVELOPE, event("d", None, row(1), 10)),
        "its op is 'u', and it holds no row in 'after'": made.encode(ENVELOPE, event("u", row(1), None, 10)),
    }
    parsed = parse(made, [(key, good), *((key, value) for value in wrong.values()), (key, good)])
    assert [events.record.tolist() for events in parsed.events] == [[0, len(wrong) + 1]]
    reasons = {one.record: one.reason for one in parsed.refused}
    assert [expected in reasons[number] for number, expected in enumerate(wrong, 1)] == [True] * len(wrong)
    assert all(one.hint for one in parsed.refused)


@pytest.mark.parametrize("flat", [False, True])
def test_a_number_of_a_source_that_cannot_be_read_hides_no_other(made: Made, flat: bool) -> None:
    """It may define the order of the change: the record is refused, and the others keep their versions."""
    texts = ["10", "x", None, "1e3", "9" * 30, "30"]
    kind = ["null", "string"]
    if flat:
        fields = [{**one, "type": kind} if one["name"] == "__source_pos" else one for one in FLAT["fields"]]
        about = {"__op": "c", "__source_file": "log.000003", "__source_row": 0, "__source_ts_ms": 9, "__deleted": "false"}
        values = [made.encode({**FLAT, "fields": fields}, {"id": 1, "note": "n", "__source_pos": text, **about}) for text in texts]
    else:
        source = {**SOURCE, "fields": [{**one, "type": kind} if one["name"] == "pos" else one for one in SOURCE["fields"]]}
        schema = {**ENVELOPE, "fields": [{**one, "type": source} if one["name"] == "source" else one for one in ENVELOPE["fields"]]}
        sent = [event("c", None, row(1), 0) for _ in texts]
        values = [made.encode(schema, {**one, "source": {**one["source"], "pos": text}}) for one, text in zip(sent, texts, strict=True)]
    parsed = parse(made, [(made.encode(KEY, {"id": 1}), value) for value in values])
    events = only(parsed)
    assert events.source["pos"].to_pylist() == [10, None, 30]
    assert (events.record.tolist(), len(events.op), events.image.num_rows) == ([0, 2, 5], 3, 3)
    assert [(one.record, "its source's pos is" in one.reason) for one in parsed.refused] == [(1, True), (3, True), (4, True)]


def test_truncations_and_messages_have_no_image(made: Made) -> None:
    events = only(parse(made, [(None, made.encode(ENVELOPE, event(op, None, None, 10))) for op in "tm"]))
    assert bytes(events.op) == b"tm"
    assert events.image.to_pylist() == [dict.fromkeys(row(1))] * 2


def test_other_records_are_reported_and_ignored(made: Made) -> None:
    beat = {
        "type": "record",
        "name": "Heartbeat",
        "namespace": "io.debezium.connector.common",
        "fields": [{"name": "ts_ms", "type": "long"}],
    }
    parsed = parse(made, [(None, made.encode({**beat, "connect.name": "io.debezium.connector.common.Heartbeat"}, {"ts_ms": 1}))])
    assert (parsed.events, parsed.refused, dict(parsed.ignored)) == ((), (), {"heartbeat": 1})


def test_a_flat_topic(tmp_path: Path) -> None:
    """Rows without an envelope, through the whole reader; one is marked as deleted."""
    made = Made(DirectoryRepository(tmp_path))

    def flat(number: int, op: str | None, pos: int, deleted: str = "false") -> tuple[bytes | None, bytes | None]:
        about = {
            "__op": op,
            "__source_file": "log.000003",
            "__source_pos": pos,
            "__source_row": 0,
            "__source_ts_ms": 9,
            "__deleted": deleted,
        }
        return made.encode(KEY, {"id": number}), made.encode(FLAT, {"id": number, "note": "é", **about})

    pairs = [flat(1, "c", 10), flat(1, "u", 20), flat(2, "r", 30), flat(1, None, 40, "true"), (made.encode(KEY, {"id": 1}), None)]
    tables, (decoded,) = settled([records(pairs)], DebeziumOptions(registry=str(tmp_path)))
    assert [column.name for column in tables[NAME].columns] == ["id", "note"]
    (block,) = decoded.blocks
    assert block.op.to_pylist() == [Op.INSERT, Op.UPDATE, Op.SNAPSHOT, Op.DELETE]
    assert block.images.to_pylist() == [{"id": number, "note": "é"} for number in (1, 1, 2, 1)]
    assert (dict(decoded.ignored), decoded.refused) == ({"tombstone": 1}, ())
    assert block.commit_ts.to_pylist() == [9000] * 4


def test_the_field_deleted_of_flat_rows_has_its_name_with_any_prefix(tmp_path: Path) -> None:
    made = Made(DirectoryRepository(tmp_path))
    fields = [*ROW[:2], {"name": "src_table", "type": "string"}, {"name": "__deleted", "type": ["null", "string"]}]
    bare = {"type": "record", "name": "Value", "namespace": "bare.shop.orders", "fields": fields}
    rows = [{"id": 1, "note": "x", "src_table": "orders", "__deleted": gone} for gone in ("false", "true")]
    choices = DebeziumOptions(registry=str(tmp_path), flat_prefix="src_")
    pairs = [(made.encode(KEY, {"id": 1}), made.encode(bare, row)) for row in rows]
    tables, (decoded,) = settled([records(pairs)], choices)
    assert [column.name for column in tables[NAME].columns] == ["id", "note"]
    assert [block.op.to_pylist() for block in decoded.blocks] == [[Op.UPDATE, Op.DELETE]]


def test_tombstones_of_a_flat_topic_are_deletions(tmp_path: Path) -> None:
    """Rows without a deletion marker: a tombstone deletes by its key."""
    made = Made(DirectoryRepository(tmp_path))
    bare = {"type": "record", "name": "Value", "namespace": "bare.shop.orders", "fields": ROW[:2]}
    pairs = [(made.encode(KEY, {"id": 1}), made.encode(bare, {"id": 1, "note": "x"})), (made.encode(KEY, {"id": 1}), None)]
    choices = DebeziumOptions(registry=str(tmp_path))
    tables, (decoded,) = settled([records(pairs)], choices)
    (block,) = decoded.blocks
    assert block.op.to_pylist() == [Op.UPDATE, Op.DELETE]
    assert block.images["id"].to_pylist() == [1, 1]
    assert block.version.to_pylist() == sorted(block.version.to_pylist())
    # A batch with only tombstones.
    known = {NAME: KnownTable(tables[NAME], order=decoded.orders[NAME])}
    alone = DebeziumReader(choices, tables=known).read(records(pairs[1:]))
    assert [block.op.to_pylist() for block in alone.blocks] == [[Op.DELETE]]
    wrong = DebeziumReader(choices, tables=known).read(records([(framed_with(99) + b"\2", None), (pairs[1][0], None)]))
    assert [one.reason for one in wrong.refused] == [f"its key's schema cannot be used: there is no schema with the id 99 in {tmp_path}"]


def test_schemas_that_refer_to_others(made: Made) -> None:
    point: Any = ROW[3]["type"][1]
    names_it = [*ROW[:3], {"name": "at", "type": ["null", "geo.Point"]}]
    text = json.dumps(
        {**ENVELOPE, "fields": [{"name": "before", "type": ["null", {**VALUE, "fields": names_it}]}, *ENVELOPE["fields"][1:]]}
    )
    whole = parse_schema(text, references=(json.dumps(point),))
    number = made.repository.register("refers", whole)
    body = write_with_fastavro(fastavro.parse_schema(ENVELOPE), event("c", None, row(1, at={"x": 0.5}), 10))
    assert only(parse(made, [(None, framed_with(number) + body)])).image["at"].to_pylist() == [{"x": 0.5}]


def test_keys_in_json_with_values_in_avro(made: Made) -> None:
    value = made.encode(ENVELOPE, event("c", None, row(1), 10))
    keys: list[tuple[bytes | None, tuple[str, ...]]] = [
        (b'{"id":1}', ("id",)),
        (b'{"schema":{},"payload":{"id":1}}', ("id",)),
        (b"17", ()),
        (None, ()),
    ]
    for key, names in keys:
        assert only(parse(made, [(key, value)])).fields.key == names


def test_ids_of_eight_bytes(made: Made) -> None:
    pairs = [(made.encode(KEY, {"id": 1}, id_bytes=8), made.encode(ENVELOPE, event("c", None, row(1), 10), id_bytes=8))]
    assert only(parse(made, pairs, DebeziumOptions(schema_id_bytes=8))).image.to_pylist() == [row(1)]
    assert parse(made, pairs).refused != ()
    with pytest.raises(DefiniteError, match="4 or 8"):
        parse(made, pairs, DebeziumOptions(schema_id_bytes=3))


def test_ids_in_bulk() -> None:
    messages = pa.array([b"xx", None, b"\0\0\0\1\2body", b"\1\0\0\1\2", b"\0\xff\xff\xff\xff", b"", b"\0\0\0\0\7"], pa.binary())
    ids, framed = schema_ids(messages)
    assert ids.tolist() == [-1, -1, 258, -1, 4294967295, -1, 7]
    assert framed.tolist() == [False, False, True, False, True, False, True]
    assert schema_ids(messages[2:])[0].tolist() == ids.tolist()[2:]
    assert schema_ids(messages[:0])[0].tolist() == []


def test_a_schema_registry_is_required() -> None:
    with pytest.raises(DefiniteError, match="no schema registry") as caught:
        repository_at("")
    assert "registry" in caught.value.hint
    flat_only = Made(MemoryRepository())
    parsed = parse(
        flat_only,
        [(None, flat_only.encode(FLAT, dict.fromkeys(("note", *(str(one["name"]) for one in FLAT["fields"][2:]))) | {"id": 1}))],
        DebeziumOptions(shape=EventShape.ENVELOPE),
    )
    assert [one.reason for one in parsed.refused] == ["its schema cannot be used: it is not a Debezium envelope"]
