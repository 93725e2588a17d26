"""Specific messages with schemas that are in the repository already: mypipe's own records, read by fastavro."""

from __future__ import annotations

import io
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

import headrace.kafka
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.avro.encoder import Encoder
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.mypipe.values import ValueMapping, avro_type, to_field, to_map
from headrace.kafka.mypipe.wire_format import Mutation
from headrace.kafka.schema_repository import RegisteredSchema
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.kafka.mypipe.existing_records import match_record
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat
from headrace.sinks.kafka.sink import KafkaSink
from testkit.generators.kind_values import COLUMNS as ALL_COLUMNS
from testkit.generators.kind_values import VALUES, array_of, block_of_rows
from testkit.oracles.topics import Kept, read_topic
from testkit.servers.broker import PrivateBroker

COLUMNS = (
    Column("id", Kind.INT32, False, source_type="int"),
    Column("username", Kind.STRING, source_type="varchar(32)"),
    Column("password", Kind.STRING, source_type="varchar(32)"),
    Column("login_count", Kind.INT32, False, source_type="int"),
    Column("bio", Kind.STRING, source_type="text"),
)
FIELDS = [("id", "int"), ("username", "string"), ("password", "string"), ("login_count", "int"), ("bio", "bytes")]
GUID = {"type": "fixed", "name": "Guid", "namespace": "mypipe.avro", "size": 16}
NO_TXID = "null"
"""mypipe's own schemas have this default, which is a text."""
ROWS: list[tuple[Op, tuple[Any, ...]]] = [
    (Op.INSERT, (1, "ann", "x", 5, "é")),
    (Op.BEFORE, (1, "ann", "x", 5, "é")),
    (Op.UPDATE, (1, "bob", None, 6, None)),
    (Op.DELETE, (1, "bob", None, 6, None)),
]
NO_TEXT = {
    *(Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64),
    *(Kind.FLOAT32, Kind.FLOAT64, Kind.YEAR, Kind.BIT, Kind.GEOMETRY, Kind.VECTOR),
}
"""Kinds that a string of another schema does not take, by Avro's rules."""
Register = Callable[[str, dict[str, Any]], int]


def user_record(mutation: Mutation, fields: list[tuple[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """UserInsert, UserUpdate and UserDelete as in mypipe's tests: tableId is an int, bio has bytes."""
    prefixes = ("old_", "new_") if mutation is Mutation.UPDATE else ("",)
    head = [("database", "string"), ("table", "string"), ("tableId", "int")]
    txid = {"name": "txid", "type": ["null", GUID], "default": more.get("no_txid", NO_TXID)}
    columns = [
        {"name": prefix + name, "type": [kind, "null"] if isinstance(kind, str) else kind}
        for prefix in prefixes
        for name, kind in fields or FIELDS
    ]
    named = [{"name": name, "type": kind} for name, kind in head]
    name = f"User{mutation.word.capitalize()}"
    return {"type": "record", "namespace": "mypipe.kafka", "name": name, "fields": [*named, txid, *columns]}


def table() -> TableSchema:
    return TableSchema(TableName("mypipe", f"user_{secrets.token_hex(4)}"), COLUMNS, ("id",))


def block(schema: TableSchema, rows: list[tuple[Op, tuple[Any, ...]]] | None = None) -> ChangeBlock:
    ops, values = zip(*(ROWS if rows is None else rows), strict=True)
    return block_of_rows(schema, values, ops, versions=range(1000, 1000 + len(ops)), transactions=["0-1-7"] * len(ops))


def sink_of(broker: PrivateBroker, registry: str) -> KafkaSink:
    return KafkaSink(parse_kafka_url(broker.url()), KafkaOptions(format=MessageFormat.SPECIFIC, registry=registry, partitions=1))


def write(sink: KafkaSink, one: ChangeBlock) -> None:
    sink.prepare([one.schema])
    writer = sink.writer()
    try:
        writer.write(one)
    finally:
        writer.close()


def store(folder: Path, subject: str, schema: dict[str, Any], number: int, version: int = 1) -> None:
    (folder / subject).mkdir(parents=True, exist_ok=True)
    (folder / subject / f"{version}.{number}.avsc").write_text(json.dumps(schema))


def store_all(folder: Path, schema: TableSchema, fields: list[tuple[str, Any]] | None = None) -> None:
    for mutation in Mutation:
        store(folder, f"mypipe_{schema.name.table}_{mutation.word}", user_record(mutation, fields), int(mutation) + 10)


@pytest.fixture(params=["directory", "registry"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Register, Any]]:
    """A repository's address, a function that registers a schema by another client, and its default of txid."""
    if request.param == "directory":
        numbers = iter(range(11, 100))

        def put(subject: str, schema: dict[str, Any]) -> int:
            number = next(numbers)
            store(tmp_path, subject, schema, number)
            return number

        yield str(tmp_path), put, NO_TXID
        return
    url = request.getfixturevalue("schema_registry").url
    with SchemaRegistryClient({"url": url}) as client:
        yield url, lambda subject, schema: int(client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))), None


def decoded(message: Kept, schema: dict[str, Any]) -> dict[str, Any]:
    assert message.value is not None
    body = io.BytesIO(message.value[4:])
    found = fastavro.schemaless_reader(body, fastavro.parse_schema(schema))
    assert not body.read()
    assert isinstance(found, dict)
    return found


def test_mypipes_own_records_are_used(broker: PrivateBroker, repository: tuple[str, Register, Any]) -> None:
    address, register, no_txid = repository
    schema = table()
    name = schema.name.table
    records = {one: user_record(one, no_txid=no_txid) for one in Mutation}
    ids = {one: register(f"mypipe_{name}_{one.word}", record) for one, record in records.items()}
    sink = sink_of(broker, address)
    write(sink, block(schema))
    messages = read_topic(broker, f"mypipe_{name}_specific")
    heads = [message.value[:4] for message in messages if message.value]
    assert heads == [bytes([0, one]) + ids[one].to_bytes(2, "big") for one in Mutation]
    found = [decoded(message, fastavro.parse_schema(records[one])) for message, one in zip(messages, Mutation, strict=True)]
    assert all(0 <= one.pop("tableId") < 2**31 and len(one.pop("txid")) == 16 for one in found)
    where = {"database": "mypipe", "table": name}
    first = {"id": 1, "username": "ann", "password": "x", "login_count": 5, "bio": "é".encode()}
    second = {"id": 1, "username": "bob", "password": None, "login_count": 6, "bio": None}
    old, new = ({f"{prefix}_{key}": value for key, value in row.items()} for prefix, row in (("old", first), ("new", second)))
    assert found == [{**where, **first}, {**where, **old, **new}, {**where, **second}]
    rows = [
        change.row for change in headrace.kafka.changes(f"mypipe_{name}_specific", servers=broker.servers, registry=address, until_end=True)
    ]
    assert rows[0]["username"] == "ann"


def test_nothing_is_registered_where_a_schema_exists_and_all_where_none_does(broker: PrivateBroker, tmp_path: Path) -> None:
    schema = table()
    subject = f"mypipe_{schema.name.table}_"
    store(tmp_path, f"{subject}insert", user_record(Mutation.INSERT), 11)
    write(sink_of(broker, str(tmp_path)), block(schema))
    assert sorted(path.name for path in (tmp_path / f"{subject}insert").glob("*.avsc")) == ["1.11.avsc"]
    for word in ("update", "delete"):
        (own,) = (tmp_path / f"{subject}{word}").glob("*.avsc")
        assert "headrace.table" in json.loads(own.read_text())


def test_a_column_without_a_field_is_reported(broker: PrivateBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = table()
    store_all(tmp_path, schema, FIELDS[:-1])
    with caplog.at_level(logging.WARNING, "headrace"):
        write(sink_of(broker, str(tmp_path)), block(schema))
    assert f"has no field for column bio of mypipe.{schema.name.table}" in caplog.text
    (first, *_) = read_topic(broker, f"mypipe_{schema.name.table}_specific")
    assert "bio" not in decoded(first, user_record(Mutation.INSERT, FIELDS[:-1]))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("id", "string"), *FIELDS[1:]], ["the field id (string)", "cannot take values of column id (int)", "change its type to int"]),
        ([*FIELDS, ("email", ["string"])], ["the field email", "neither a column", "nor a default", "give the field a default"]),
        ([*FIELDS[:3], ("login_count", ["int", "string"]), FIELDS[4]], ["the field login_count (int or string)"]),
        ([FIELDS[0], ("username", "int"), *FIELDS[2:]], ["the field username (int)", "change its type to string"]),
    ],
)
def test_a_schema_that_cannot_take_the_values_is_refused(
    broker: PrivateBroker, tmp_path: Path, fields: list[tuple[str, Any]], words: list[str]
) -> None:
    schema = table()
    store_all(tmp_path, schema, fields)
    subject = f"mypipe_{schema.name.table}_insert"
    with pytest.raises(DefiniteError) as error:
        sink_of(broker, str(tmp_path)).prepare([schema])
    for word in (*words, f"subject {subject}, version 1", f"remove the subject {subject}"):
        assert word in str(error.value)
    # The remedy, in a process that starts again: its cache of schemas is that of another folder.
    other = tmp_path / "other"
    for mutation in Mutation:
        shutil.rmtree(tmp_path / f"mypipe_{schema.name.table}_{mutation.word}")
    other.mkdir()
    write(sink_of(broker, str(other)), block(schema))
    assert len(read_topic(broker, f"mypipe_{schema.name.table}_specific")) == 3


@pytest.mark.parametrize("column", ALL_COLUMNS, ids=lambda column: column.name)
def test_every_kind_fits_the_type_that_the_remedy_names(column: Column) -> None:
    """A record with the documented types takes each extreme as Headrace's own record does; a string takes what has a text."""
    mapping, key = ValueMapping(), COLUMNS[0]
    schema = TableSchema(TableName("mypipe", "all"), (key, column), ("id",))
    values = array_of(column, [*VALUES[column.kind], None])
    ids = pa.array(range(len(values)), pa.int32())
    head = {"database": pa.scalar("d"), "table": pa.scalar("t"), "tableId": pa.scalar(1), "txid": pa.nulls(len(ids), pa.binary(16))}
    for kind in (avro_type(column, mapping), "string"):
        fields = [("id", "int"), (column.name, ["null", kind])]
        found = RegisteredSchema("s", 1, 1, parse_schema(json.dumps(user_record(Mutation.INSERT, fields))))
        if kind == "string" and column.kind in NO_TEXT:
            with pytest.raises(DefiniteError, match="cannot take values"):
                match_record(found, schema, Mutation.INSERT, mapping)
            continue
        record = match_record(found, schema, Mutation.INSERT, mapping)
        if kind == "string" and column.kind is Kind.BYTES:
            # The extremes are not UTF-8.
            with pytest.raises(DefiniteError, match="does not fit"):
                record.fields([ids, values], "")
            continue
        bodies = Encoder(record.schema).encode({**head, **record.fields([ids, values], "")}, rows=len(ids)).to_pylist()
        # Without logical types: Python's dates begin with the year 1.
        plain = [("id", "int"), (column.name, ["null", kind["type"] if isinstance(kind, dict) else kind])]
        reader = fastavro.parse_schema(user_record(Mutation.INSERT, plain))
        read = [fastavro.schemaless_reader(io.BytesIO(body), reader)[column.name] for body in bodies]
        own = to_map(column, values, "strings") if kind == "string" else to_field(column, values, mapping)
        assert repr(read) == repr(own.to_pylist())


def test_a_value_that_does_not_fit_is_refused(broker: PrivateBroker, tmp_path: Path) -> None:
    name = TableName("mypipe", f"user_{secrets.token_hex(4)}")
    schema = TableSchema(name, (COLUMNS[0], Column("visits", Kind.INT64, source_type="bigint"), Column("raw", Kind.BYTES)), ("id",))
    store_all(tmp_path, schema, [("id", "int"), ("visits", "int"), ("raw", "string")])
    sink = sink_of(broker, str(tmp_path))
    write(sink, block(schema, [(Op.INSERT, (1, 5, b"text"))]))
    for row in ((1, 2**31, b""), (1, 0, b"\xff")):
        with pytest.raises(DefiniteError, match="does not fit the field") as error:
            write(sink, block(schema, [(Op.INSERT, row)]))
        assert "in a new version of the schema" in error.value.hint
    # The remedy: a new version, which a process uses after a restart.
    wider = [("id", "int"), ("visits", "long"), ("raw", "bytes")]
    fresh = tmp_path / "restarted"
    for mutation in Mutation:
        store(fresh, f"mypipe_{name.table}_{mutation.word}", user_record(mutation, [("id", "int")]), int(mutation))
        store(fresh, f"mypipe_{name.table}_{mutation.word}", user_record(mutation, wider), int(mutation) + 20, 2)
    write(sink_of(broker, str(fresh)), block(schema, [(Op.INSERT, (2, 2**31, b"\xff"))]))
    last = read_topic(broker, f"mypipe_{name.table}_specific")[-1]
    assert decoded(last, user_record(Mutation.INSERT, wider))["visits"] == 2**31
