"""An existing target gives the types of events without schemas: on the real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.client import connect, disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.types.codec_registry import type_mismatch
from testkit.pipelines.embedded_access import target_of

_PARAMETERS = {
    Kind.DECIMAL: {"precision": 12, "scale": 2},
    Kind.DATETIME: {"precision": 3},
    Kind.TIMESTAMP: {"precision": 6},
    Kind.TIME: {"precision": 6},
    Kind.BIT: {"precision": 9},
}


@pytest.fixture(scope="module")
def target(clickhouse: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    target = target_of(clickhouse, database="shop")
    yield target
    disconnect(target)


def test_a_table_that_headrace_made_is_recognised(target: ClickHouseTarget) -> None:
    members = {Kind.ENUM: ("a", "b"), Kind.SET: ("a", "b")}
    columns = [Column(f"c_{kind}", kind, members=members.get(kind, ()), **_PARAMETERS.get(kind, {})) for kind in Kind]
    schema = TableSchema(
        TableName("shop", "made"), (*columns, Column("k", Kind.STRING, False), Column("id", Kind.INT64, False)), ("k", "id")
    )
    sink = ClickHouseSink(target)
    sink.prepare([schema])
    found = sink.infer_schemas([schema.name, TableName("shop", "missing")])
    assert list(found) == [schema.name]
    recognised = found[schema.name]
    assert recognised.primary_key == ("k", "id")
    assert [(column.name, column.nullable) for column in recognised.columns] == [
        (column.name, column.nullable) for column in schema.columns
    ]
    stored = {column.name: column.type for column in sink.target_table(schema).columns}
    assert [type_mismatch(column, stored[column.name]) for column in recognised.columns] == [""] * len(schema.columns)
    plain = {Kind.BYTES, Kind.JSON, Kind.GEOMETRY, Kind.SET, Kind.ENUM}
    others = {Kind.YEAR: Kind.UINT16, Kind.BIT: Kind.UINT64, Kind.TIMESTAMP: Kind.DATETIME, **dict.fromkeys(plain, Kind.STRING)}
    for column in columns:
        assert recognised.column(column.name).kind is others.get(column.kind, column.kind)
    price = recognised.column("c_decimal")
    assert (price.precision, price.scale) == (12, 2)
    # The inferred schema is accepted for the same table.
    sink.without_cache().prepare([recognised])


def test_a_foreign_table_is_recognised_without_columns_that_are_not_the_sources(target: ClickHouseTarget) -> None:
    client = connect(target).client
    client.command("CREATE DATABASE IF NOT EXISTS shop")
    client.command(
        "CREATE TABLE shop.own (ident UInt32, state Enum8('new' = 1, 'paid' = 2), at DateTime64(3, 'Europe/Berlin'), v UInt64,"
        " gone UInt8, tags Array(String), day Date DEFAULT today(), total Float64 ALIAS ident * 2)"
        " ENGINE = ReplacingMergeTree(v, gone) ORDER BY (ident)"
    )
    name = TableName("shop", "own")
    sink = ClickHouseSink(target, ClickHouseOptions((("rename", (("id", "ident"),)),)))
    found = sink.infer_schemas([name])[name]
    assert [(column.name, column.kind) for column in found.columns] == [
        ("id", Kind.UINT32),
        ("state", Kind.ENUM),
        ("at", Kind.TIMESTAMP),
        ("tags", Kind.SET),
        ("day", Kind.DATE),
    ]
    assert found.primary_key == ("id",)
    assert found.column("state").members == ("new", "paid")
    client.command("CREATE TABLE shop.strange (id Int32, m Map(String, Int32), v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY id")
    with pytest.raises(DefiniteError, match="column m of the target"):
        sink.infer_schemas([TableName("shop", "strange")])
