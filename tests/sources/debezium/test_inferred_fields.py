"""Types of events without a schema: from the topic of schema changes, from a known table, or from the values."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.parsed_events import WireFormat, wire_type
from headrace.sources.debezium.schema_history_topic import DdlOperation, apply_definitions, read_change, read_record
from headrace.sources.debezium.types.column_mapping import AS_IT_LOOKS, column_of, field_type
from headrace.sources.debezium.types.inferred_fields import as_seen, expected_fields, infer_fields
from headrace.sources.debezium.types.schema_widening import can_hold
from headrace.sources.debezium.types.values import convert_column

TABLE = TableName("shop", "orders")


def _column(name: str, word: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "typeName": word, "typeExpression": word, "optional": True, **more}


def _change(*columns: dict[str, Any], kind: str = "CREATE", connector: str = "mysql", **more: Any) -> dict[str, Any]:
    table = {"defaultCharsetName": "utf8mb4", "primaryKeyColumnNames": ["id"], "columns": [*columns], "comment": None}
    change = {"type": kind, "id": '"shop"."orders"', "table": None if kind == "DROP" else table, **more}
    return {"source": {"connector": connector}, "ddl": "…", "tableChanges": [change]}


ID = _column("id", "BIGINT UNSIGNED", optional=False, autoIncremented=True, generated=True, position=1)


@pytest.mark.parametrize(
    ("definition", "kind", "precision", "scale", "spelled"),
    [
        (_column("c", "INT"), Kind.INT32, 0, 0, "int"),
        (_column("c", "INT UNSIGNED ZEROFILL", length=10), Kind.UINT32, 0, 0, "int(10) unsigned zerofill"),
        (_column("c", "TINYINT", length=1), Kind.INT8, 0, 0, "tinyint(1)"),
        (_column("c", "MEDIUMINT UNSIGNED"), Kind.UINT32, 0, 0, "mediumint unsigned"),
        (_column("c", "DECIMAL", length=12, scale=2), Kind.DECIMAL, 12, 2, "decimal(12,2)"),
        (_column("c", "DOUBLE PRECISION"), Kind.FLOAT64, 0, 0, "double"),
        (_column("c", "FLOAT"), Kind.FLOAT32, 0, 0, "float"),
        (_column("c", "DATETIME", length=6), Kind.DATETIME, 6, 0, "datetime(6)"),
        (_column("c", "TIMESTAMP", length=3), Kind.TIMESTAMP, 3, 0, "timestamp(3)"),
        (_column("c", "TIME"), Kind.TIME, 0, 0, "time"),
        (_column("c", "YEAR"), Kind.YEAR, 0, 0, "year"),
        (_column("c", "ENUM", length=1, enumValues=["'a'", "'it''s'"]), Kind.ENUM, 0, 0, "enum('a','it''s')"),
        (_column("c", "BIT", length=9), Kind.BIT, 9, 0, "bit(9)"),
        (_column("c", "VECTOR", length=3), Kind.VECTOR, 0, 0, "vector(3)"),
        (_column("c", "POINT"), Kind.GEOMETRY, 0, 0, "point"),
        (_column("c", "VARCHAR", length=64, charsetName="latin1"), Kind.STRING, 0, 0, "varchar(64)"),
        (_column("c", "VARBINARY", length=8), Kind.BYTES, 0, 0, "varbinary(8)"),
        (_column("c", "LONGTEXT"), Kind.STRING, 0, 0, "longtext"),
        (_column("c", "JSON"), Kind.JSON, 0, 0, "json"),
    ],
)
def test_the_source_types_of_the_schema_topic(definition: dict[str, Any], kind: Kind, precision: int, scale: int, spelled: str) -> None:
    (found,) = read_change(_change(ID, {**definition, "position": 2}))
    assert found.schema is not None
    column = found.schema.column("c")
    assert (column.kind, column.precision, column.scale, column.source_type) == (kind, precision, scale, spelled)
    key = found.schema.column("id")
    assert (key.kind, key.nullable, key.auto_increment, key.generated) == (Kind.UINT64, False, True, "")
    assert found.schema.primary_key == ("id",)


def test_members_defaults_and_comments_of_the_schema_topic() -> None:
    (found,) = read_change(
        _change(
            ID,
            _column("e", "ENUM", enumValues=["'a'", "'it''s'"], position=4, optional=False, defaultValueExpression="a"),
            _column("n", "INT", position=2, optional=False, defaultValueExpression="0", comment="how many"),
            _column("t", "DATETIME", length=3, position=3, defaultValueExpression="CURRENT_TIMESTAMP(3)"),
        )
    )
    assert found.schema is not None
    assert [column.name for column in found.schema.columns] == ["id", "n", "t", "e"]
    assert found.schema.column("e").members == ("a", "it's")
    assert [found.schema.column(name).default for name in "ent"] == ["a", "0", "(current_timestamp(3))"]
    assert found.schema.column("n").comment == "how many"


def test_mariadb_has_types_of_its_own() -> None:
    (found,) = read_change(_change(ID, _column("u", "UUID"), _column("i", "INET6"), _column("j", "JSON"), connector="mariadb"))
    assert found.schema is not None
    assert [found.schema.column(name).kind for name in "uij"] == [Kind.UUID, Kind.INET6, Kind.STRING]


def test_tables_are_followed_through_the_topic() -> None:
    first = read_record(orjson.dumps({"schema": {}, "payload": _change(ID)}))
    second = read_record(orjson.dumps(_change(ID, _column("c", "INT"), kind="ALTER")))
    renamed = read_change(
        {
            **_change(ID, kind="ALTER"),
            "tableChanges": [{**_change(ID, kind="ALTER")["tableChanges"][0], "id": '"shop"."sold"', "previousId": '"shop"."orders"'}],
        }
    )
    tables = apply_definitions(first, {})
    assert [column.name for column in tables[TABLE].columns] == ["id"]
    tables = apply_definitions(second, tables)
    assert [column.name for column in tables[TABLE].columns] == ["id", "c"]
    assert list(apply_definitions(renamed, tables)) == [TableName("shop", "sold")]
    (gone,) = read_change(_change(kind="DROP"))
    assert (gone.operation, gone.schema) == (DdlOperation.DROP, None)
    assert apply_definitions([gone], tables) == {}


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (b"{", "not JSON"),
        (b"{}", "describes no tables"),
        (orjson.dumps(_change(ID, connector="oracle")), "connector oracle"),
        (orjson.dumps(_change(ID, _column("c", "MYSTERY"))), "type MYSTERY"),
        (orjson.dumps({"source": {}, "tableChanges": [{"type": "CREATE"}]}), "cannot be read"),
    ],
)
def test_unreadable_records_of_the_schema_topic_are_reported(value: bytes, match: str) -> None:
    with pytest.raises(DefiniteError, match=match) as refused:
        read_record(value)
    assert refused.value.hint


_COLUMNS = (
    Column("id", Kind.UINT64, nullable=False),
    Column("tiny", Kind.UINT8),
    Column("price", Kind.DECIMAL, precision=12, scale=2),
    Column("raw", Kind.BYTES),
    Column("flag", Kind.BIT, precision=1),
    Column("flags", Kind.BIT, precision=9),
    Column("day", Kind.DATE),
    Column("made", Kind.DATETIME, precision=3),
    Column("seen", Kind.DATETIME, precision=6),
    Column("at", Kind.TIMESTAMP, precision=6),
    Column("clock", Kind.TIME, precision=0),
    Column("state", Kind.ENUM, members=("a", "b,c")),
    Column("shape", Kind.GEOMETRY),
    Column("place", Kind.VECTOR),
)
SCHEMA = TableSchema(TABLE, _COLUMNS, ("id",))


@pytest.mark.parametrize(
    ("choices", "types"),
    [
        (
            DebeziumOptions(),
            "int64; int16; decimal(12,2); bytes; boolean; bits(9); int32 Date; int64 Timestamp; int64 MicroTimestamp;"
            " string ZonedTimestamp; int64 MicroTime; string Enum; struct Geometry; array FloatVector",
        ),
        (
            DebeziumOptions(decimals="string", times="adaptive", binaries="hex"),
            "int64; int16; string; string; boolean; bits(9); int32 Date; int64 Timestamp; int64 MicroTimestamp;"
            " string ZonedTimestamp; int32 Time; string Enum; struct Geometry; array FloatVector",
        ),
        (
            DebeziumOptions(decimals="double", times="connect"),
            "int64; int16; float64; bytes; boolean; bits(9); int32 Date; int64 Timestamp; int64 Timestamp; string ZonedTimestamp;"
            " int32 Time; string Enum; struct Geometry; array FloatVector",
        ),
        (
            DebeziumOptions(times="isostring"),
            "int64; int16; decimal(12,2); bytes; boolean; bits(9); string IsoDate; string IsoTimestamp; string IsoTimestamp;"
            " string ZonedTimestamp; string IsoTime; string Enum; struct Geometry; array FloatVector",
        ),
        (
            DebeziumOptions(times="nanoseconds"),
            "int64; int16; decimal(12,2); bytes; boolean; bits(9); int32 Date; int64 NanoTimestamp; int64 NanoTimestamp;"
            " string ZonedTimestamp; int64 NanoTime; string Enum; struct Geometry; array FloatVector",
        ),
    ],
)
def test_what_is_expected_of_a_known_table(choices: DebeziumOptions, types: str) -> None:
    fields = expected_fields(SCHEMA, choices)
    assert fields.key == ("id",)
    assert "; ".join(map(field_type, fields.row)) == types


def test_events_of_a_known_table_change_nothing_of_it() -> None:
    known = TableSchema(
        TABLE,
        tuple(Column(**{**column.to_json(), "kind": column.kind, "members": column.members, "source_type": "x"}) for column in _COLUMNS),
        ("id",),
    )
    for times in ("adaptive_time_microseconds", "adaptive", "connect", "isostring", "microseconds", "nanoseconds"):
        for decimals in ("precise", "string", "double"):
            fields = expected_fields(known, DebeziumOptions(times=times, decimals=decimals))
            assert can_hold(known, TableSchema(TABLE, tuple(map(column_of, fields.row)), ("id",)))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(DefiniteError, match="times cannot be 'daily'"):
        expected_fields(SCHEMA, DebeziumOptions(times="daily"))


def test_fields_are_inferred_where_json_distinguishes_them() -> None:
    row = {"made": "2025-01-02T03:04:05Z", "at": 1735787045678901, "tiny": True, "flag": 1, "id": 5}
    shapes = {"made": {"string"}, "at": {"int64"}, "tiny": {"boolean"}, "flag": {"int64"}, "id": {"int64"}, "seen": set[str]()}
    fields = {field.name: field for field in as_seen(expected_fields(SCHEMA, DebeziumOptions()), shapes).row}
    expected = {"made": "string IsoTimestamp", "at": "int64 MicroTimestamp", "tiny": "boolean", "flag": "int64", "id": "int64"}
    assert {name: field_type(fields[name]) for name in expected} == expected
    values = {
        name: convert_column(
            pa.array([row[name]], wire_type(fields[name], WireFormat.JSON)), fields[name], SCHEMA.column(name), WireFormat.JSON
        ).array
        for name in expected
    }
    assert values["made"].cast(pa.int64()).to_pylist() == [1735787045000000]
    assert values["at"].cast(pa.int64()).to_pylist() == [1735787045678901]
    assert values["tiny"].to_pylist() == values["flag"].to_pylist() == [1]


def test_undescribed_fields_have_inferred_types() -> None:
    rows = [
        {"i": 1, "f": 1, "t": "x", "b": True, "d": {"a": 1}, "l": [1], "g": {"wkb": "AQ==", "srid": None}, "n": None, "big": 2**64},
        {"i": None, "f": 1.5, "t": "y", "b": False, "v": {"scale": 2, "value": "AQ=="}, "mixed": 1},
        {"mixed": "x", "d": [1]},
    ]
    found = {field.name: field_type(field).removesuffix(AS_IT_LOOKS) for field in infer_fields(rows)}
    assert found == {
        "i": "int64",
        "f": "float64",
        "t": "string",
        "b": "boolean",
        "d": "map",
        "l": "map",
        "g": "struct Geometry",
        "big": "string",
        "v": "struct VariableScaleDecimal",
        "mixed": "string",
    }


def test_inferred_types_must_stay_the_same() -> None:
    rows = [
        {"i": 1, "f": 1.5, "t": "x", "b": True, "d": {"a": 1}, "l": [1], "g": {"wkb": "AQ==", "srid": None}},
        {"v": {"scale": 2, "value": "AQ=="}, "p": {"x": 1.0, "y": 2.0, "wkb": "AQ==", "srid": None}},
    ]
    fields = infer_fields(rows)
    schema = TableSchema(TABLE, tuple(map(column_of, fields)), ())
    assert expected_fields(schema, DebeziumOptions()).row == fields
