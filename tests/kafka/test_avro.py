"""Avro: schemas, columns, resolution by the specification's cases, and errors; fastavro is the reference."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.kafka.avro.decoder import Decoder
from headrace.kafka.avro.encoder import Encoder, MapColumns
from headrace.kafka.avro.schema import AvroKind, AvroSchema, parse_schema, problems, schema_of, tree_of
from testkit.generators.avro_random import read_with_fastavro, write_with_fastavro

GUID = {"type": "fixed", "name": "Guid", "size": 16}


def record(*fields: tuple[Any, ...], name: str = "R", **rest: Any) -> dict[str, Any]:
    found = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": found, **rest}


def decode(writer: Any, values: list[Any], reader: Any = None) -> list[Any]:
    """Read values that fastavro wrote; errors are strings."""
    bodies = [write_with_fastavro(fastavro.parse_schema(writer), value) for value in values]
    found = Decoder(schema_of(writer), schema_of(reader) if reader is not None else None).decode(pa.array(bodies, pa.binary()))
    found.values.validate(full=True)
    rows: list[Any] = found.values.to_pylist()
    for bad in found.bad:
        assert rows[bad.row] is None
        rows[bad.row] = bad.reason
    return rows


def test_names_and_namespaces() -> None:
    tree = record(
        ("a", {"type": "enum", "name": "E", "symbols": ["X"]}),
        ("b", "E"),
        ("c", "org.shop.E"),
        ("d", {"type": "fixed", "name": "other.F", "size": 2, "aliases": ["G"]}),
        ("e", ["null", "other.F"], {"default": None, "connect.name": "x"}),
        namespace="org.shop",
        aliases=["Old", "whole.Old"],
    )
    root = schema_of(tree).root
    assert root.name == "org.shop.R"
    assert root.aliases == ("org.shop.Old", "whole.Old")
    assert [field.type.label for field in root.fields[:4]] == ["org.shop.E", "org.shop.E", "org.shop.E", "other.F"]
    assert root.fields[3].type.aliases == ("other.G",)
    assert root.fields[4].properties == {"connect.name": "x"}
    assert root.fields[4].type.nullable


def test_a_schema_written_out_again_is_the_same() -> None:
    inner = {"type": "record", "name": "shop.Inner", "fields": [{"name": "n", "type": GUID, "default": "x" * 16}], "connect.name": "i"}
    kinds = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "B"}
    outer = record(("a", "shop.Inner"), ("b", ["null", "shop.Inner"], {"default": None, "aliases": ["c"]}), ("e", kinds), namespace="x.y")
    read = parse_schema(json.dumps(outer), references=(json.dumps(inner),)).root
    assert schema_of(tree_of(read)).root == read
    assert read.fields[1].type.values[0].fields[0].type.size == 16
    moment = {"type": "map", "values": {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros", "x": 1}}}
    assert tree_of(schema_of(moment).root) == moment


def test_logical_types_are_named_only() -> None:
    tree = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2, "connect.name": "org.apache.kafka.connect.data.Decimal"}
    found = schema_of(tree).root
    assert (found.kind, found.logical) == (AvroKind.BYTES, "decimal")
    assert found.properties == {"precision": 4, "scale": 2, "connect.name": "org.apache.kafka.connect.data.Decimal"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("7", "no type"),
        ('{"type":"record","name":"R"}', "no fields"),
        ('{"type":"record","fields":[]}', "no name"),
        ('{"type":"record","name":"1R","fields":[]}', "no name"),
        ('"Unknown"', "not defined"),
        ("[]", "empty"),
        ('["int","int"]', "twice"),
        ('["null",["int"]]', "union"),
        ('{"type":"array"}', "what it holds"),
        ('{"type":"fixed","name":"F","size":-1}', "number of bytes"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "symbols"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "default"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}', "holds itself"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "twice"),
        ('{"type":"array","items":' * 70 + '"int"' + "}" * 70, "deep"),
    ],
)
def test_schemas_that_are_none(text: str, reason: str) -> None:
    with pytest.raises(DefiniteError, match=reason):
        parse_schema(text)


def test_names_that_others_allow() -> None:
    text = json.dumps(record(("order-no", "int"), name="my-shop.Value"))
    assert parse_schema(text, strict=False).root.fields[0].name == "order-no"
    with pytest.raises(DefiniteError):
        parse_schema(text)


# The cases of the Avro specification's "Schema Resolution": writer, value, reader, and what is read.
RESOLUTIONS: list[tuple[str, Any, Any, Any, Any]] = [
    ("int is promoted to long", "int", -7, "long", -7),
    ("int is promoted to float", "int", 3, "float", 3.0),
    ("int is promoted to double", "int", 3, "double", 3.0),
    ("long is promoted to float", "long", 1 << 24, "float", 16777216.0),
    ("long is promoted to double", "long", 1 << 40, "double", float(1 << 40)),
    ("float is promoted to double", "float", 0.5, "double", 0.5),
    ("string is promoted to bytes", "string", "é", "bytes", "é".encode()),
    ("bytes are promoted to string", "bytes", b"abc", "string", "abc"),
    ("bytes that are no text", "bytes", b"\xff", "string", "it holds a string that is not UTF-8"),
    ("a union becomes its branch", ["null", "int"], 5, "long", 5),
    ("a union's branch without a place", ["null", "int"], None, "long", "it holds a type that the reader's schema has no place for"),
    ("a type becomes a union's branch", "int", 5, ["null", "long"], 5),
    ("the same branch comes before a promoted one", "int", 5, ["long", "int"], {"long": None, "int": 5}),
    ("unions in another order", ["string", "null", "int"], "x", ["int", "null", "string"], {"int": None, "string": "x"}),
    ("arrays by their items", {"type": "array", "items": "int"}, [1, 2], {"type": "array", "items": ["null", "double"]}, [1.0, 2.0]),
    ("maps by their values", {"type": "map", "values": "int"}, {"a": 1}, {"type": "map", "values": "long"}, [("a", 1)]),
    (
        "an enum's symbols by name",
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "B",
        {"type": "enum", "name": "x.E", "symbols": ["B", "C"]},
        "B",
    ),
    (
        "an unknown symbol",
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "A",
        {"type": "enum", "name": "E", "symbols": ["B"]},
        "it names a symbol that the enum does not have",
    ),
    (
        "an unknown symbol with a default",
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "A",
        {"type": "enum", "name": "E", "symbols": ["B", "Z"], "default": "Z"},
        "Z",
    ),
]


@pytest.mark.parametrize(
    ("writer", "value", "reader", "expected"), [case[1:] for case in RESOLUTIONS], ids=[case[0] for case in RESOLUTIONS]
)
def test_resolution(writer: Any, value: Any, reader: Any, expected: Any) -> None:
    rows = decode(record(("f", writer)), [{"f": value}], record(("f", reader)))
    assert rows == [{"f": expected} if not isinstance(expected, str) or not expected.startswith("it ") else expected]


def test_records_resolve_by_their_fields_names() -> None:
    writer = record(
        ("gone", {"type": "array", "items": record(("x", ["null", "string"]), ("m", {"type": "map", "values": GUID}), name="X")}),
        ("id", "int"),
        ("also_gone", ["null", "double", "boolean"]),
        ("old_name", "string"),
        ("last", "long"),
    )
    reader = record(
        ("last", "double"),
        ("name", "string", {"aliases": ["older_name", "old_name"]}),
        ("id", "long"),
        ("added", {"type": "array", "items": record(("n", ["null", "int"]), name="N")}, {"default": [{"n": None}]}),
        ("tag", "bytes", {"default": "\u00ff"}),
        ("txid", ["null", GUID], {"default": None}),
        ("flag", ["boolean", "null"], {"default": True}),
        name="New",
        aliases=["R"],
    )
    value = {"gone": [{"x": "y", "m": {"k": bytes(16)}}, {"x": None, "m": {}}], "id": 7, "also_gone": True, "old_name": "né", "last": 9}
    expected = {"last": 9.0, "name": "né", "id": 7, "added": [{"n": None}], "tag": b"\xff", "txid": None, "flag": True}
    assert decode(writer, [value, {**value, "gone": []}], reader) == [expected, expected]


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (record(("a", "int")), record(("b", "int")), "no default"),
        (record(("a", "long")), record(("a", "int")), "cannot be read"),
        (record(("a", "int")), record(("a", "int"), name="Other"), "cannot be read"),
        (record(("a", "int")), record(("a", ["null", "string"])), "cannot be read"),
        (record(("a", GUID)), record(("a", {**GUID, "size": 8})), "cannot be read"),
        (record(("a", "int")), record(("a", "int"), ("b", "int", {"default": "x"})), "default"),
    ],
)
def test_schemas_that_do_not_resolve(writer: Any, reader: Any, reason: str) -> None:
    with pytest.raises(DefiniteError, match=reason):
        Decoder(schema_of(writer), schema_of(reader))
    assert problems(schema_of(writer).root, schema_of(reader).root) or "default" in reason


def test_missing_and_invalid_bodies_do_not_affect_others() -> None:
    tree = record(("a", "long"), ("l", {"type": "array", "items": ["null", "string"]}), ("m", {"type": "map", "values": "int"}))
    good = write_with_fastavro(fastavro.parse_schema(tree), {"a": 1, "l": ["x", None, "y"], "m": {"k": 2}})
    bodies = [good, None, good[:-2], good + b"\0", b"", good, good[:-5] + b"\x02\x02\xffk\0", good]
    found = Decoder(schema_of(tree)).decode(pa.array(bodies, pa.binary()))
    assert [bad.row for bad in found.bad] == [2, 3, 4, 6]
    assert {bad.row: bad.reason for bad in found.bad}[3] == "it is longer than its schema says"
    rows = found.values.to_pylist()
    assert rows[1] is None
    assert rows[0] == rows[5] == rows[7] == {"a": 1, "l": ["x", None, "y"], "m": [("k", 2)]}
    found.values.validate(full=True)


def test_items_that_take_no_bytes_are_bounded() -> None:
    tree = record(("l", {"type": "array", "items": "null"}))
    decoder = Decoder(schema_of(tree))
    few = decoder.decode(pa.array([b"\x06\0"], pa.binary()))
    assert few.values.to_pylist() == [{"l": [None, None, None]}]
    many = decoder.decode(pa.array([b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0", (b"\x80\x80\x40" * 9) + b"\0"], pa.binary()))
    assert {bad.reason for bad in many.bad} == {"it claims too many empty items"}


def test_blocks_with_sizes() -> None:
    """A writer may give a block's bytes, and several blocks."""
    tree = record(("l", {"type": "array", "items": "int"}))
    body = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\0"
    assert Decoder(schema_of(tree)).decode(pa.array([body], pa.binary())).values.to_pylist() == [{"l": [1, 2, 3]}]
    dropped = Decoder(schema_of(tree), schema_of(record(("n", "int", {"default": 1}))))
    assert dropped.decode(pa.array([body], pa.binary())).values.to_pylist() == [{"n": 1}]


def test_schemas_that_are_no_records() -> None:
    for tree, value in (("string", "key"), ("long", 5), (["null", "bytes"], b"x"), ({"type": "array", "items": "int"}, [1])):
        assert decode(tree, [value]) == [value]


def generic() -> AvroSchema:
    maps = [
        (name, {"type": "map", "values": kind}) for name, kind in (("integers", "int"), ("strings", "string"), ("longs", ["null", "long"]))
    ]
    return schema_of(record(("database", "string"), ("txid", ["null", GUID], {"default": None}), *maps, name="InsertMutation"))


def test_maps_of_columns() -> None:
    columns = {
        "database": pa.scalar("shop"),
        "txid": pa.array([bytes(16), None, b"0123456789abcdef"], pa.binary(16)),
        "integers": MapColumns({"id": pa.array([1, 2, 3], pa.int32()), "qty": pa.array([None, -5, None], pa.int16())}),
        "strings": MapColumns({"name": pa.array(["é", None, None]).dictionary_encode()}),
        "longs": MapColumns({"total": pa.array([1 << 40, None, 7]), "other": pa.array([1, 2, 3])}),
    }
    schema = generic()
    bodies = Encoder(schema).encode(columns, prefix=b"\0\1\0\7").to_pylist()
    assert all(body[:4] == b"\0\1\0\7" for body in bodies)
    theirs = fastavro.parse_schema(json.loads(schema.text))
    assert [read_with_fastavro(body[4:], theirs) for body in bodies] == [
        (
            {
                "database": "shop",
                "txid": bytes(16),
                "integers": {"id": 1},
                "strings": {"name": "é"},
                "longs": {"total": 1 << 40, "other": 1},
            },
            len(bodies[0]) - 4,
        ),
        (
            {"database": "shop", "txid": None, "integers": {"id": 2, "qty": -5}, "strings": {}, "longs": {"total": None, "other": 2}},
            len(bodies[1]) - 4,
        ),
        (
            {"database": "shop", "txid": b"0123456789abcdef", "integers": {"id": 3}, "strings": {}, "longs": {"total": 7, "other": 3}},
            len(bodies[2]) - 4,
        ),
    ]
    without = {name: column for name, column in columns.items() if name != "txid"}
    assert Decoder(schema).decode(Encoder(schema).encode(without)).values.field(1).null_count == 3


def test_columns_that_do_not_fit() -> None:
    schema = schema_of(record(("a", "int"), ("e", "string")))
    letters = pa.array(["A", "A"])
    lists = schema_of(record(("a", {"type": "array", "items": "int"})))
    several = schema_of(record(("a", ["null", "int", "string"])))
    cases = [
        (schema, {"a": pa.array([1, None], pa.int32()), "e": letters}, "R.a is NULL in row 1"),
        (schema, {"a": pa.array([1, 1 << 40]), "e": letters}, "cannot be written as int32"),
        (schema, {"a": pa.array([1, 2])}, "neither a column nor a default"),
        (schema, {"a": pa.array([1, 2]), "e": letters, "x": letters}, "no field"),
        (schema, {"a": pa.array([1]), "e": letters}, "different lengths"),
        (schema, {"a": MapColumns({}), "e": letters}, "not a map"),
        (lists, {"a": letters}, "R.a is array, and its column holds string"),
        (several, {"a": letters}, "R.a is a union of several types"),
    ]
    for wanted, columns, reason in cases:
        with pytest.raises(DefiniteError, match=reason):
            Encoder(wanted).encode(columns)


def test_long_values_and_many_items_make_buffers_grow() -> None:
    tree = record(("s", "string"), ("l", {"type": "array", "items": {"type": "map", "values": "bytes"}}))
    values = [{"s": "x" * (number * 997 % 50_000), "l": [{"k": b"y" * number} for _ in range(number % 90)]} for number in range(300)]
    theirs = fastavro.parse_schema(tree)
    bodies = [write_with_fastavro(theirs, value) for value in values]
    decoder, encoder = Decoder(schema_of(tree)), Encoder(schema_of(record(("s", "string"))))
    for _ in range(2):
        found = decoder.decode(pa.array(bodies, pa.binary()))
        assert [{"s": row["s"], "l": [dict(item) for item in row["l"]]} for row in found.values.to_pylist()] == values
        texts = encoder.encode({"s": found.values.field("s")}).to_pylist()
        assert [read_with_fastavro(body, fastavro.parse_schema(record(("s", "string"))))[0]["s"] for body in texts] == [
            value["s"] for value in values
        ]
    assert len(decoder.decode(pa.array([], pa.binary())).values) == 0
    assert len(encoder.encode({"s": found.values.field("s")[:0]})) == 0
