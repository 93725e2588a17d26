"""Specific messages of an altered table: all are readable by the newest schema, incompatible alterations are refused, generic ones work."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.kafka.options import Incompatible, KafkaOptions, MessageFormat
from headrace.sinks.kafka.sink import KafkaSink
from testkit.generators.kind_values import block_of_rows
from testkit.oracles.topics import Kept, read_topic
from testkit.servers.broker import PrivateBroker

ID, NAME = Column("id", Kind.INT32, False, source_type="int"), Column("name", Kind.STRING, source_type="varchar(9)")
QUANTITY, MORE = Column("qty", Kind.INT32, source_type="int"), Column("qty", Kind.INT64, False, source_type="bigint")


@pytest.fixture(params=["directory", "registry"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """A schema repository's address, and another client's lookup of a schema in it."""
    if request.param == "directory":
        yield str(tmp_path), lambda number: json.loads(next(tmp_path.glob(f"*/*.{number}.avsc")).read_text())
        return
    url = request.getfixturevalue("schema_registry").url
    with SchemaRegistryClient({"url": url}) as client:
        client.set_compatibility(level="BACKWARD")
        yield url, lambda number: json.loads(client.get_schema(number).schema_str)


def block(table: TableName, columns: tuple[Column, ...], rows: list[tuple[Any, ...]], version: int) -> ChangeBlock:
    return block_of_rows(TableSchema(table, columns, ("id",)), rows, versions=range(version, version + len(rows)))


def write(sink: KafkaSink, *blocks: ChangeBlock) -> None:
    writer = sink.writer()
    for one in blocks:
        sink.prepare([one.schema])
        writer.write(one)
    writer.close()


def schema_id(message: Kept) -> int:
    assert message.value is not None
    return int.from_bytes(message.value[2:4], "big", signed=True)


def read_as(message: Kept, look_up: Callable[[int], Any], reader: int) -> dict[str, Any]:
    """Return the row of a message, by Avro's schema resolution."""
    assert message.value is not None
    schemas = [fastavro.parse_schema(look_up(number)) for number in (schema_id(message), reader)]
    found = fastavro.schemaless_reader(io.BytesIO(message.value[4:]), *schemas)
    assert isinstance(found, dict)
    return {name: value for name, value in found.items() if name not in ("database", "table", "tableId", "txid")}


def test_altered_tables(broker: PrivateBroker, kept: tuple[str, Callable[[int], Any]]) -> None:
    address, look_up = kept
    table = TableName("shop", f"t_{secrets.token_hex(4)}")
    sink = KafkaSink(parse_kafka_url(broker.url()), KafkaOptions(format=MessageFormat.SPECIFIC, registry=address))
    first = block(table, (ID, NAME), [(1, "one")], 100)
    added = block(table, (ID, NAME, QUANTITY), [(2, "two", 5)], 200)
    dropped = block(table, (ID, QUANTITY), [(3, 7)], 300)
    widened = block(table, (ID, MORE), [(4, 2**40)], 400)
    # A crash repeats a block of an older version.
    write(sink, first, added, dropped, widened, first)
    found = read_topic(broker, f"shop_{table.table}_specific")
    ids = [schema_id(message) for message in found]
    assert len(set(ids[:4])) == 4
    assert (ids[4], found[4].value) == (ids[0], found[0].value)
    assert [read_as(message, look_up, ids[3]) for message in found] == [
        {"id": 1, "qty": None},
        {"id": 2, "qty": 5},
        {"id": 3, "qty": 7},
        {"id": 4, "qty": 2**40},
        {"id": 1, "qty": None},
    ]
    changed = TableSchema(table, (ID, Column("qty", Kind.STRING, source_type="varchar(9)")), ("id",))
    for refuse in (sink.check, lambda schema: sink.prepare([schema]), lambda schema: sink.schema_applier().plan_creation(schema)):
        with pytest.raises(DefiniteError, match="cannot follow the last one") as error:
            refuse(changed)
        assert "compatibility" in error.value.hint
    generic = replace(sink, choices=replace(sink.choices, format=MessageFormat.GENERIC))
    write(generic, first, widened, replace(first, schema=replace(first.schema, columns=(ID, replace(NAME, source_type="text")))))
    column_headers = [message.headers["headrace.columns"] for message in read_topic(broker, f"shop_{table.table}_generic")]
    assert len(set(column_headers)) == 3


def test_an_incompatible_change_continues_by_option(broker: PrivateBroker, tmp_path: Path) -> None:
    table = TableName("shop", f"t_{secrets.token_hex(4)}")
    choices = KafkaOptions(format=MessageFormat.SPECIFIC, registry=str(tmp_path), incompatible=Incompatible.NEW)
    sink = KafkaSink(parse_kafka_url(broker.url()), choices)
    write(sink, block(table, (ID, NAME), [(1, "one")], 100), block(table, (ID, replace(QUANTITY, name="name")), [(2, 5)], 200))
    assert len({schema_id(message) for message in read_topic(broker, f"shop_{table.table}_specific")}) == 2


def test_specific_messages_need_a_repository_that_is_shared(broker: PrivateBroker) -> None:
    sink = KafkaSink(parse_kafka_url(broker.url()), KafkaOptions(format=MessageFormat.SPECIFIC))
    with pytest.raises(DefiniteError, match="schema repository"):
        sink.prepare([TableSchema(TableName("shop", "t"), (ID,), ("id",))])
