"""Every kind of column survives mypipe's messages; the schemas describe the table."""

from __future__ import annotations

import json
import uuid
from decimal import Context, Decimal

import fastavro
import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.kafka.mypipe.values import ValueMapping, avro_type, decimal_bytes, from_field, from_map, map_of, to_field, to_map
from headrace.kafka.mypipe.wire_format import (
    Mutation,
    columns_schema,
    field_names,
    generic_schema,
    head,
    position_bytes,
    read_described_columns,
    read_described_record,
    read_heads,
    read_position,
    specific_schema,
    transaction_guids,
)
from headrace.model.schema import Column, Kind, TableName, TableSchema
from testkit.generators.kind_values import COLUMNS, VALUES, array_of, plain_of, table_of_all

MAPPINGS = [ValueMapping(), ValueMapping(text_as_bytes=False), ValueMapping(has_bytes_map=False)]
WIRE_TYPES = {"integers": pa.int32(), "longs": pa.int64(), "strings": pa.string(), "bytes": pa.binary()}
_WIDE = Context(prec=100)
TEXT = Column("body", Kind.STRING, source_type="mediumtext")


def sliced(column: Column) -> list[pa.Array]:
    """A column's values: complete, with NULLs, and as a slice of a longer array."""
    values = VALUES[column.kind]
    return [array_of(column, values), array_of(column, [None, *values, None]), array_of(column, [*values, None, *values])[1:-1]]


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
@pytest.mark.parametrize("column", [*COLUMNS, TEXT], ids=lambda column: column.name)
def test_values_come_back_from_maps_and_fields(column: Column, mapping: ValueMapping) -> None:
    for array in sliced(column):
        name = map_of(column, mapping)
        wire = to_map(column, array, name)
        assert wire.type == WIRE_TYPES[name]
        wire.validate(full=True)
        back = from_map(column, wire, name)
        field = to_field(column, array, mapping)
        field.validate(full=True)
        again = from_field(column, field)
        assert back.type == again.type == column.arrow_type
        assert repr(plain_of(back)) == repr(plain_of(again)) == repr(plain_of(array))


def test_which_map_holds_which_kind() -> None:
    found = {kind.value: map_of(column, ValueMapping()) for kind, column in zip(Kind, COLUMNS, strict=True)}
    assert found == {
        **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16", "year"), "integers"),
        **dict.fromkeys(("int64", "uint32"), "longs"),
        **dict.fromkeys(("bytes", "geometry", "vector", "bit"), "bytes"),
        **dict.fromkeys(("uint64", "float32", "float64", "decimal", "string", "date", "datetime", "timestamp", "time"), "strings"),
        **dict.fromkeys(("enum", "set", "json", "uuid", "inet4", "inet6"), "strings"),
    }
    assert map_of(TEXT, ValueMapping()) == "bytes"
    assert map_of(TEXT, ValueMapping(text_as_bytes=False)) == "strings"


def test_unsigned_numbers_as_longs_halt_beyond_them() -> None:
    column, mapping = Column("n", Kind.UINT64), ValueMapping(unsigned_as_long=True)
    assert (map_of(column, mapping), avro_type(column, mapping)) == ("longs", "long")
    fits = pa.array([0, None, 2**63 - 1], pa.uint64())
    assert from_map(column, to_map(column, fits, "longs"), "longs").equals(fits)
    assert from_field(column, to_field(column, fits, mapping)).equals(fits)
    with pytest.raises(DefiniteError, match="9223372036854775808 does not fit a long") as error:
        to_map(column, pa.array([2**63], pa.uint64()), "longs")
    assert "bigint_unsigned" in error.value.hint


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (9, 2), (18, 18), (19, 0), (38, 10), (39, 1), (65, 30)])
def test_decimals_are_those_of_avro(precision: int, scale: int) -> None:
    top = Decimal((0, (9,) * precision, -scale))
    least = Decimal((0, (1,), -scale))
    values = [top, top.copy_negate(), least, least.copy_negate(), Decimal((0, (0,), -scale))]
    kind = pa.decimal256 if precision > 38 else pa.decimal128
    wire = decimal_bytes(pa.array(values, kind(precision, scale))).to_pylist()
    assert [Decimal(int.from_bytes(one, "big", signed=True)).scaleb(-scale, _WIDE) for one in wire] == values
    # Any encoding of the length is read.
    short = pa.array([_shortest(int.from_bytes(one, "big", signed=True)) for one in wire], pa.binary())
    assert from_field(Column("d", Kind.DECIMAL, precision=precision, scale=scale), short).to_pylist() == values


def _shortest(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def test_heads_are_read_in_bulk() -> None:
    messages = [
        head(Mutation.UPDATE, 258) + b"x",
        head(Mutation.DELETE, 0),
        b"\x00\x01\x00",
        None,
        b"\x01\x01\x00\x01",
        b"\x00\x04\x00\x01",
        b"",
    ]
    heads = read_heads(pa.array([b"skipped", *messages], pa.binary())[1:])
    assert messages[0] == b"\x00\x02\x01\x02x"
    assert heads.is_good.tolist() == [True, True, False, False, False, False, False]
    assert heads.kind[:2].tolist() == [2, 3]
    assert heads.schema_id[:2].tolist() == [258, 0]
    assert read_heads(pa.array([], pa.binary())).is_good.tolist() == []
    with pytest.raises(DefiniteError, match="schema id 32768"):
        head(Mutation.INSERT, 32_768)


def test_positions_compare_as_bytes() -> None:
    versions = pa.array([255, 256, 2**64 - 1], pa.uint64())
    plain = position_bytes(versions)
    assert plain == sorted(plain)
    assert [read_position(one) for one in plain] == [(255, None), (256, None), (2**64 - 1, None)]
    rows = position_bytes(pa.array([255, 255], pa.uint64()), pa.array([7, 8], pa.uint64()))
    assert [read_position(one) for one in rows] == [(255, 7), (255, 8)]
    assert plain[0] < rows[0] < rows[1] < plain[1]
    with pytest.raises(DefiniteError, match="a position of 3 bytes"):
        read_position(b"abc")


def test_a_transaction_has_one_guid() -> None:
    server = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    names = [f"{server}:23", f"{server}:24", f"{server}:23", "0-1-24", "binlog.000001:24", "", "no number", f"{server}:tag:23", "9" * 30]
    found = transaction_guids(pa.array(names)).to_pylist()
    assert found[0] == found[2]
    assert len(set(found)) == len(names) - 1
    assert found[0] < found[1]
    assert all((uuid.UUID(bytes=one).version, uuid.UUID(bytes=one).variant) == (8, uuid.RFC_4122) for one in found)
    assert [one.hex() for one in transaction_guids(pa.array(names[:1])[:1]).to_pylist()] == [found[0].hex()]


@pytest.mark.parametrize("mutation", Mutation)
def test_the_schemas_are_avro_and_describe_the_table(mutation: Mutation) -> None:
    schema, _ = table_of_all(0)
    raw = json.loads(json.dumps(specific_schema(schema, mutation, ValueMapping())))
    fastavro.parse_schema(raw)
    assert read_described_record(raw, mutation).schema(schema.name) == schema
    described = json.loads(json.dumps(columns_schema(schema)))
    fastavro.parse_schema(described)
    assert read_described_columns(described).schema(schema.name) == schema
    fastavro.parse_schema(generic_schema(mutation))


def test_generic_schemas_have_mypipes_fields_in_their_order() -> None:
    maps = ["bytes", "integers", "strings", "longs"]
    names = {one: [field["name"] for field in generic_schema(one)["fields"]] for one in Mutation}
    assert names[Mutation.INSERT] == names[Mutation.DELETE] == ["database", "table", "tableId", "txid", *maps]
    assert names[Mutation.UPDATE] == [
        "database",
        "table",
        "tableId",
        "txid",
        *(f"old_{name}" for name in maps),
        *(f"new_{name}" for name in maps),
    ]
    old = generic_schema(Mutation.INSERT, old_shape=True)
    assert [field["name"] for field in old["fields"]] == ["database", "table", "tableId", "integers", "strings", "longs"]
    assert (old["namespace"], old["name"]) == ("mypipe.avro", "InsertMutation")


def test_columns_that_avro_cannot_name_get_fields_of_their_own() -> None:
    names = ["database", "txid", "a b", "a_b", "a-b", "ünï", "1st", "plain"]
    columns = tuple(Column(name, Kind.INT32) for name in names)
    assert field_names(columns) == ("database_", "txid_", "a_b", "a_b_", "a_b__", "_n_", "_1st", "plain")
    schema = TableSchema(TableName("my db", "t-1"), columns, ())
    raw = specific_schema(schema, Mutation.UPDATE, ValueMapping())
    fastavro.parse_schema(json.loads(json.dumps(raw)))
    assert raw["name"] == "my_db_t_1_update"
    assert [column.name for column in read_described_record(raw, Mutation.UPDATE).columns] == names


def test_a_hand_written_schema_defines_the_table_by_its_types() -> None:
    raw = {
        "type": "record",
        "name": "UserInsert",
        "namespace": "mypipe.kafka",
        "fields": [
            {"name": "database", "type": "string"},
            {"name": "table", "type": "string"},
            {"name": "tableId", "type": "int"},
            {"name": "id", "type": ["int", "null"]},
            {"name": "username", "type": ["string", "null"]},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    }
    record_read = read_described_record(raw, Mutation.INSERT)
    assert [(column.name, column.kind) for column in record_read.columns] == [
        ("id", Kind.INT32),
        ("username", Kind.STRING),
        ("price", Kind.DECIMAL),
    ]
    assert record_read.schema(TableName("d", "user")).primary_key == ()
