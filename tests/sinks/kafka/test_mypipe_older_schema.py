"""Messages with `mutation_schemas = "older"`: fastavro decodes them with mypipe's first schemas, and no value is lost."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

import headrace.kafka
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.mypipe.wire_format import Mutation, generic_schema
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat, MutationSchemas
from headrace.sinks.kafka.sink import KafkaSink
from testkit.generators.kind_values import block_of_rows
from testkit.oracles.topics import Kept, read_topic
from testkit.servers.broker import PrivateBroker

INSERT_AVSC = """
    {
      "namespace": "mypipe.avro",
      "type": "record",
      "name": "InsertMutation",
      "fields": [
    	    {
    			"name": "database",
    			"type": "string"
    		},
    		{
    			"name": "table",
    			"type": "string"
    		},
    		{
    			"name": "tableId",
    			"type": "long"
    		},
    		{
    			"name": "integers",
    			"type": {"type": "map", "values": "int"}
    		},
    		{
    			"name": "strings",
    			"type": {"type": "map", "values": "string"}
    		},
    		{
    			"name": "longs",
    			"type": {"type": "map", "values": "long"}
    		}
    	]
    }
"""  # noqa: E101  (verbatim: mypipe's README)


def avsc(mutation: Mutation) -> dict[str, Any]:
    """InsertMutation.avsc, and its siblings: DeleteMutation.avsc is similar, UpdateMutation.avsc has old and new maps."""
    schema: dict[str, Any] = json.loads(INSERT_AVSC)
    head, maps = schema["fields"][:3], schema["fields"][3:]
    if mutation is Mutation.UPDATE:
        maps = [{**one, "name": prefix + one["name"]} for prefix in ("old_", "new_") for one in maps]
    return {**schema, "name": f"{mutation.word.capitalize()}Mutation", "fields": head + maps}


SCHEMA = TableSchema(
    TableName("shop", "older"),
    (
        Column("id", Kind.INT32, False, source_type="int"),
        Column("name", Kind.STRING, source_type="varchar(50)"),
        Column("bio", Kind.STRING, source_type="text"),
        Column("photo", Kind.BYTES, source_type="blob"),
        Column("flags", Kind.BIT, precision=5, source_type="bit(5)"),
        Column("visits", Kind.INT64, source_type="bigint"),
    ),
    ("id",),
)
ROWS: list[tuple[Op, tuple[Any, ...]]] = [
    (Op.INSERT, (1, "Ann", "long é", b"\x00\xff'", 5, 2**40)),
    (Op.BEFORE, (1, "Ann", "long é", b"\x00\xff'", 5, 2**40)),
    (Op.UPDATE, (1, None, "", b"", 31, -1)),
    (Op.DELETE, (1, None, "", b"", 31, -1)),
]


def block() -> ChangeBlock:
    ops, rows = zip(*ROWS, strict=True)
    count, moment = len(rows), 1_700_000_000_000_000
    return block_of_rows(SCHEMA, rows, ops, versions=range(1000, 1000 + count), commit_us=[moment] * count, transactions=["0-1-7"] * count)


def write(broker: PrivateBroker, topic: str, registry: str = "memory") -> None:
    choices = KafkaOptions(mutation_schemas=MutationSchemas.OLDER, topic=topic, registry=registry, partitions=1)
    sink = KafkaSink(parse_kafka_url(broker.url()), choices)
    sink.prepare([SCHEMA])
    writer = sink.writer()
    writer.write(block())
    writer.close()


def decode(message: Kept) -> tuple[str, dict[str, Any]]:
    """Decode a message by fastavro with mypipe's own schema; the body must end where the record ends."""
    assert message.value is not None
    mutation = Mutation(message.value[1])
    body = io.BytesIO(message.value[4:])
    record = fastavro.schemaless_reader(body, fastavro.parse_schema(avsc(mutation)))
    assert not body.read()
    assert isinstance(record, dict)
    assert record.pop("tableId") > 0
    return mutation.word, record


def test_mypipes_first_schemas_decode_the_messages(broker: PrivateBroker) -> None:
    write(broker, "older_memory")
    messages = read_topic(broker, "older_memory")
    assert [message.value[:4] for message in messages if message.value] == [b"\0\1\0\1", b"\0\2\0\2", b"\0\3\0\3"]
    table = {"database": "shop", "table": "older"}
    first = {
        "integers": {"id": 1},
        "strings": {"name": "Ann", "bio": "long é", "photo": "00ff27", "flags": "00101"},
        "longs": {"visits": 2**40},
    }
    second = {"integers": {"id": 1}, "strings": {"bio": "", "photo": "", "flags": "11111"}, "longs": {"visits": -1}}
    old, new = ({f"{prefix}_{name}": values for name, values in maps.items()} for prefix, maps in (("old", first), ("new", second)))
    assert [decode(message) for message in messages] == [
        ("insert", {**table, **first}),
        ("update", {**table, **old, **new}),
        ("delete", {**table, **second}),
    ]
    assert messages[1].headers["headrace.nulls"] == b'["name"]'


def test_the_consumers_read_the_same_values(broker: PrivateBroker, tmp_path: Path) -> None:
    folder = str(tmp_path / "schemas")
    write(broker, "older_folder", folder)
    (read,) = headrace.kafka.blocks("older_folder", servers=broker.servers, registry=folder, until_end=True)
    assert read.schema.arrow_schema == SCHEMA.arrow_schema
    assert read.images.to_pylist() == block().images.to_pylist()
    # Without a repository, the consumer recognises the older schema; types are those of the maps.
    write(broker, "older_alone")
    rows = [change.row for change in headrace.kafka.changes("older_alone", servers=broker.servers, until_end=True)]
    assert rows[0] == {"id": 1, "name": "Ann", "bio": "long é", "photo": "00ff27", "flags": "00101", "visits": 2**40}


@pytest.mark.parametrize("mutation", Mutation)
def test_the_schema_is_mypipes(mutation: Mutation) -> None:
    ours = parse_schema(json.dumps(generic_schema(mutation, old_shape=True)))
    assert json.loads(ours.text) == avsc(mutation)


def test_only_generic_messages_have_older_schemas() -> None:
    with pytest.raises(DefiniteError, match="mutation_schemas means nothing") as error:
        KafkaOptions(format=MessageFormat.SPECIFIC, mutation_schemas=MutationSchemas.OLDER)
    assert "kafka.format = generic" in error.value.hint
