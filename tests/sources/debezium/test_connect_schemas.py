"""Schemas of events to fields and columns: Connect's JSON and Avro give the same, and every type has its column."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Kind, TableName
from headrace.sources.debezium.events.parsed_events import ConnectField, RowFields
from headrace.sources.debezium.types.column_mapping import (
    SOURCE_LENGTH,
    SOURCE_SCALE,
    SOURCE_TYPE,
    column_of,
    members_of,
    table_schema,
    with_numeric,
)
from headrace.sources.debezium.types.connect_schema import field_of, field_of_avro, is_envelope, row_fields

TABLE = TableName("shop", "orders")
DECIMAL = "org.apache.kafka.connect.data.Decimal"
_COLUMNS: list[dict[str, Any]] = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "int16", "optional": True, "default": 7, "field": "small"},
    {"type": "float", "optional": True, "field": "f"},
    {"type": "bytes", "optional": False, "name": DECIMAL, "version": 1, "field": "amount"}
    | {"parameters": {"scale": "2", "connect.decimal.precision": "12"}},
    {"type": "string", "optional": True, "name": "io.debezium.data.Enum", "parameters": {"allowed": "new,a\\,b"}, "field": "status"},
    {
        "type": "array",
        "optional": True,
        "items": {"type": "float", "optional": False},
        "name": "io.debezium.data.FloatVector",
        "field": "v",
    },
    {"type": "map", "optional": True, "values": {"type": "string", "optional": True}, "keys": {"type": "string"}, "field": "h"},
]
_ROW = {"type": "struct", "fields": _COLUMNS, "optional": True, "name": "srv.shop.orders.Value"}
_ENVELOPE = {
    "type": "struct",
    "optional": False,
    "name": "srv.shop.orders.Envelope",
    "fields": [{**_ROW, "field": "before"}, {**_ROW, "field": "after"}, {"type": "string", "optional": False, "field": "op"}],
}
_KEY = {"type": "struct", "fields": [_COLUMNS[0]], "optional": False, "name": "srv.shop.orders.Key"}
_AVRO_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": [{"type": "int", "connect.default": 7, "connect.type": "int16"}, "null"], "default": 7},
        {"name": "f", "type": ["null", "float"], "default": None},
        {
            "name": "amount",
            "type": {
                "type": "bytes",
                "scale": 2,
                "precision": 12,
                "connect.version": 1,
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
                "connect.name": DECIMAL,
                "logicalType": "decimal",
            },
        },
        {
            "name": "status",
            "type": ["null", {"type": "string", "connect.name": "io.debezium.data.Enum", "connect.parameters": {"allowed": "new,a\\,b"}}],
        },
        {"name": "v", "type": ["null", {"type": "array", "items": "float", "connect.name": "io.debezium.data.FloatVector"}]},
        {"name": "h", "type": ["null", {"type": "map", "values": ["null", "string"]}]},
    ],
    "connect.name": "srv.shop.orders.Value",
}
_AVRO = {
    "type": "record",
    "name": "Envelope",
    "namespace": "srv.shop.orders",
    "fields": [
        {"name": "before", "type": ["null", _AVRO_ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
    "connect.name": "srv.shop.orders.Envelope",
}


def _plain(name: str, word: str, semantic: str = "", **parameters: str) -> ConnectField:
    return ConnectField(name, word, semantic, parameters)


def test_json_and_avro_describe_the_same_row() -> None:
    envelope = field_of(_ENVELOPE)
    assert is_envelope(envelope)
    fields = row_fields(envelope, field_of(_KEY))
    assert fields.key == ("id",)
    assert [field.type for field in fields.row] == ["int64", "int16", "float32", "bytes", "string", "array", "map"]
    assert fields == row_fields(field_of_avro(_AVRO), field_of(_KEY))


def test_a_flat_row_leaves_out_what_a_transform_added() -> None:
    flat = {"type": "struct", "fields": [*_COLUMNS, {"type": "string", "optional": True, "field": "__op"}], "name": "Value"}
    fields = row_fields(field_of(flat), field_of(_KEY), frozenset({"__op"}))
    assert [field.name for field in fields.row] == [column["field"] for column in _COLUMNS]


def test_a_key_of_other_fields_than_the_row_is_refused() -> None:
    key = field_of({"type": "struct", "fields": [{"type": "string", "field": "__dbz__physicalTableIdentifier"}]})
    with pytest.raises(DefiniteError, match="physicalTableIdentifier"):
        row_fields(field_of(_ENVELOPE), key)


def test_avro_without_connect_has_meaning_by_its_logical_types() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}},
            {"name": "e", "type": {"type": "enum", "name": "colour", "symbols": ["red", "blue"]}},
            {"name": "again", "type": "colour"},
        ],
    }
    columns = [column_of(field) for field in field_of_avro(schema).fields]
    assert [column.kind for column in columns] == [Kind.DATE, Kind.DATETIME, Kind.DECIMAL, Kind.ENUM, Kind.ENUM]
    assert (columns[2].precision, columns[2].scale) == (9, 3)
    assert columns[4].members == ("red", "blue")
    assert [column.nullable for column in columns] == [False, True, False, False, False]


@pytest.mark.parametrize("schema", [["int", "string"], "unheard", {"type": "unheard"}, 5, {"fields": []}])
def test_invalid_schemas_are_rejected(schema: Any) -> None:
    with pytest.raises(DefiniteError):
        field_of_avro(schema, "x")
    with pytest.raises(DefiniteError):
        field_of({"type": "int128"})


@pytest.mark.parametrize(
    ("word", "semantic", "parameters", "kind", "precision", "scale"),
    [
        ("int8", "", {}, Kind.INT8, 0, 0),
        ("int64", "", {}, Kind.INT64, 0, 0),
        ("boolean", "", {}, Kind.INT8, 0, 0),
        ("float32", "", {}, Kind.FLOAT32, 0, 0),
        ("string", "", {}, Kind.STRING, 0, 0),
        ("bytes", "", {}, Kind.BYTES, 0, 0),
        ("array", "", {}, Kind.JSON, 0, 0),
        ("struct", "some.Other", {}, Kind.JSON, 0, 0),
        ("int32", "io.debezium.time.Date", {}, Kind.DATE, 0, 0),
        ("int32", "org.apache.kafka.connect.data.Time", {}, Kind.TIME, 3, 0),
        ("int64", "io.debezium.time.MicroTime", {}, Kind.TIME, 6, 0),
        ("int64", "io.debezium.time.Timestamp", {}, Kind.DATETIME, 3, 0),
        ("string", "io.debezium.time.ZonedTimestamp", {}, Kind.TIMESTAMP, 6, 0),
        ("int64", "io.debezium.time.MicroDuration", {}, Kind.INT64, 0, 0),
        ("bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "65"}, Kind.DECIMAL, 65, 2),
        ("bytes", DECIMAL, {"scale": "2"}, Kind.DECIMAL, 38, 2),
        ("bytes", DECIMAL, {"scale": "30"}, Kind.DECIMAL, 76, 30),
        ("bytes", DECIMAL, {"scale": "-3", "connect.decimal.precision": "5"}, Kind.DECIMAL, 8, 0),
        ("bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "100"}, Kind.STRING, 0, 0),
        ("struct", "io.debezium.data.VariableScaleDecimal", {}, Kind.STRING, 0, 0),
        ("bytes", "io.debezium.data.Bits", {"length": "9"}, Kind.BIT, 9, 0),
        ("bytes", "io.debezium.data.Bits", {"length": "2147483647"}, Kind.BYTES, 0, 0),
        ("int64", "", {SOURCE_TYPE: "BIGINT UNSIGNED"}, Kind.UINT64, 0, 0),
        ("int16", "", {SOURCE_TYPE: "TINYINT UNSIGNED"}, Kind.UINT8, 0, 0),
        ("int64", "", {SOURCE_TYPE: "INT UNSIGNED ZEROFILL"}, Kind.UINT32, 0, 0),
        ("int32", "", {SOURCE_TYPE: "INT4", SOURCE_LENGTH: "10"}, Kind.INT32, 0, 0),
        ("bytes", DECIMAL, {"scale": "0", SOURCE_TYPE: "BIGINT UNSIGNED"}, Kind.UINT64, 0, 0),
        ("string", "", {SOURCE_TYPE: "DECIMAL", SOURCE_LENGTH: "12", SOURCE_SCALE: "2"}, Kind.DECIMAL, 12, 2),
        ("float64", "", {SOURCE_TYPE: "NUMERIC", SOURCE_LENGTH: "12", SOURCE_SCALE: "2"}, Kind.DECIMAL, 12, 2),
        ("float64", "", {SOURCE_TYPE: "DOUBLE"}, Kind.FLOAT64, 0, 0),
        ("int64", "io.debezium.time.MicroTimestamp", {SOURCE_TYPE: "DATETIME", SOURCE_LENGTH: "4"}, Kind.DATETIME, 4, 0),
        ("int64", "io.debezium.time.Timestamp", {SOURCE_TYPE: "DATETIME"}, Kind.DATETIME, 0, 0),
        ("int64", "io.debezium.time.MicroTime", {SOURCE_TYPE: "TIME", SOURCE_LENGTH: "15", SOURCE_SCALE: "6"}, Kind.TIME, 6, 0),
        ("boolean", "", {SOURCE_TYPE: "BIT", SOURCE_LENGTH: "1"}, Kind.BIT, 1, 0),
        ("string", "", {SOURCE_TYPE: "NUMERIC", SOURCE_LENGTH: "0"}, Kind.STRING, 0, 0),
        ("string", "", {SOURCE_TYPE: "VARBINARY", SOURCE_LENGTH: "8"}, Kind.BYTES, 0, 0),
        ("string", "", {SOURCE_TYPE: "VARCHAR", SOURCE_LENGTH: "8"}, Kind.STRING, 0, 0),
    ],
)
def test_every_type_has_its_column(word: str, semantic: str, parameters: dict[str, str], kind: Kind, precision: int, scale: int) -> None:
    column = column_of(ConnectField("c", word, semantic, parameters))
    assert (column.kind, column.precision, column.scale) == (kind, precision, scale)
    assert column.source_type


def test_the_source_type_is_spelled_with_its_length() -> None:
    def spelled(**parameters: str) -> str:
        return column_of(
            ConnectField("c", "string", "", {SOURCE_TYPE: parameters["type"], SOURCE_LENGTH: parameters["length"]})
        ).source_type

    assert spelled(type="VARCHAR", length="64") == "varchar(64)"
    assert spelled(type="TINYINT", length="1") == "tinyint(1)"
    assert spelled(type="INT UNSIGNED", length="10") == "int unsigned"


def test_members_may_hold_commas_and_backslashes() -> None:
    assert members_of(_plain("e", "string", "io.debezium.data.Enum", allowed="a,b\\,c,d")) == ("a", "b,c", "d")
    assert members_of(_plain("e", "string", "io.debezium.data.Enum")) == ()
    # As the MySQL connector writes enum('a,b', 'c\'d', 'e\\f'); PostgreSQL's names are unchanged.
    mysql = ConnectField("e", "string", "io.debezium.data.Enum", {"allowed": "a\\,b,c'd,e\\\\f", SOURCE_TYPE: "ENUM"})
    assert members_of(mysql) == ("a,b", "c'd", "e\\f")
    assert column_of(mysql).source_type == "enum('a,b','c''d','e\\f')"
    assert members_of(_plain("e", "string", "io.debezium.data.Enum", allowed="a\\\\b,c")) == ("a\\\\b", "c")


def test_a_table_is_keyed_as_its_events_are() -> None:
    schema = table_schema(TABLE, RowFields((_plain("a", "int32"), _plain("b", "string")), ("b",)))
    assert schema.primary_key == schema.row_key == ("b",)
    assert [column.nullable for column in schema.columns] == [True, False]
    with pytest.raises(DefiniteError, match="two fields"):
        table_schema(TABLE, RowFields((_plain("a", "int32"), _plain("a", "string")), ()))


def test_decimals_of_any_scale_are_what_was_chosen() -> None:
    fields = RowFields((_plain("n", "struct", "io.debezium.data.VariableScaleDecimal"), _plain("t", "string")), ())
    schema = table_schema(TABLE, fields)
    assert with_numeric(schema, "string") == schema
    chosen = with_numeric(schema, "Decimal(38, 18)")
    assert [(column.kind, column.precision, column.scale) for column in chosen.columns] == [(Kind.DECIMAL, 38, 18), (Kind.STRING, 0, 0)]
    for wrong in ("decimal(77,2)", "decimal(2,3)", "float"):
        with pytest.raises(DefiniteError, match="numeric cannot be"):
            with_numeric(schema, wrong)
