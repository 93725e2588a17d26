"""Every type that a user may choose, or that a table may have, stores extreme values exactly, or halts; on the real engine.

Each case is one column: the source's type, the chosen type, the stored type, values, and ClickHouse's text of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.server.options import (
    ClickHouseOptions,
    JsonAs,
)
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.types.scalar_values import constant_sql
from headrace.verify.row_compare import compare
from testkit.generators.type_cases import (
    CHOICES,
    FIRST_US,
    LAST_DAY,
    LINE,
    POLYGON,
    TYPES,
    UUIDS,
    A,
    Case,
    one,
    point,
    schema_of,
    shape,
    to_array,
)
from testkit.pipelines.embedded_access import target_of


@pytest.fixture(scope="module")
def target(clickhouse: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    target = target_of(clickhouse, database="types")
    yield target
    disconnect(target)


def choose(target: ClickHouseTarget, chosen: dict[str, Any]) -> ClickHouseSink:
    return ClickHouseSink(target, ClickHouseOptions(tuple(chosen.items())))


def block_of(schema: TableSchema, values: list[Any]) -> ChangeBlock:
    rows = len(values)
    images = pa.record_batch([pa.array(range(rows), pa.uint32()), to_array(schema.columns[1], values)], schema=schema.arrow_schema)
    ops = pa.array([Op.INSERT] * rows, pa.uint8())
    return ChangeBlock(schema, images, ops, pa.array(range(1, rows + 1), pa.uint64()), pa.array([0] * rows, pa.int64()))


def rows_of(sink: ClickHouseSink, sql: str) -> list[Any]:
    return [row[0] for row in sink.reader().query(sql)[1]]


@pytest.mark.parametrize("case", CHOICES + TYPES, ids=str)
def test_a_chosen_type_keeps_the_extremes(target: ClickHouseTarget, case: Case) -> None:
    sink, schema = choose(target, case.chosen), schema_of(case.column)
    name = quote_name(schema.name.table)
    sink.prepare([schema])
    assert rows_of(sink, f"SELECT type FROM system.columns WHERE table = '{schema.name.table}' AND name = 'v'") == [case.stored]
    block = block_of(schema, case.values)
    writer = sink.writer()
    writer.write(block)
    writer.close()
    assert rows_of(sink, f"SELECT {case.expression} FROM types.{name} FINAL ORDER BY id") == case.shown
    read = sink.reader().read_range(schema)
    assert read.schema.equals(schema.arrow_schema)
    kept = sink.reader().kept(schema, pa.Table.from_batches([block.images]))
    found = compare(schema, kept, read)
    assert (found.total, found.differences) == (0, ())


def test_a_default_is_the_same_constant_in_every_type(target: ClickHouseTarget) -> None:
    """An added column has the same value in old rows as a block with that value would store."""
    asked: list[tuple[str, str, str]] = []
    for case in CHOICES + TYPES:
        for value, shown in zip(case.values, case.shown, strict=True):
            written = None if value is None else constant_sql(case.column, case.stored, value)
            if written is not None:
                asked.append((f"{case} {value!r:.40}", f"(SELECT {case.expression} FROM (SELECT {written} AS v))", shown))
    kinds = {case.column.kind for case in CHOICES + TYPES}
    assert kinds - {Kind.JSON} == {Kind[label.split("-")[0].upper()] for label, _, _ in asked}
    reader = choose(target, {}).reader()
    for start in range(0, len(asked), 40):
        part = asked[start : start + 40]
        [row] = reader.query(f"SELECT {', '.join(f'{sql} AS c{n}' for n, (_, sql, _) in enumerate(part))}")[1]
        assert dict(zip((label for label, _, _ in part), row, strict=True)) == {label: shown for label, _, shown in part}


HALTS = [
    (one(Kind.INT64), "Int32", [1, 2**31], "is not a value that Int32 holds"),
    (one(Kind.INT64), "UInt128", [1, -1], "is below zero"),
    (one(Kind.INT8), "Bool", [1, 2], "is neither 0 nor 1"),
    (one(Kind.INT64), "Float64", [1, 2**53 + 1], "is not a value that Float64 holds"),
    (one(Kind.UINT64), "Int64", [1, 2**63], "is not a value that Int64 holds"),
    (one(Kind.FLOAT64), "Float32", [0.5, 0.1], "is not a number that Float32 holds exactly"),
    (one(Kind.DECIMAL, precision=20, scale=2), "Decimal(9, 1)", [Decimal("0.1"), Decimal("0.12")], "is not a value that"),
    (one(Kind.DECIMAL, precision=20, scale=2), "Decimal(9, 2)", [Decimal("0.12"), Decimal("10000000.00")], "is not a value that"),
    (one(Kind.DECIMAL, precision=20, scale=2), "Int64", [Decimal("1.00"), Decimal("1.50")], "is not a value that Int64 holds"),
    (one(Kind.DATE), "Date", [0, -1], "is outside what this server's Date holds"),
    (one(Kind.DATE), "Date", [0, 65_536], "is outside what this server's Date holds"),
    (one(Kind.DATETIME), "DateTime('UTC')", [0, 2**32 * 1_000_000], "is outside what"),
    (one(Kind.DATETIME, precision=6), "DateTime('UTC')", [0, 1], "has more than 0 fractional digits"),
    (one(Kind.DATETIME, precision=6), "DateTime64(3, 'UTC')", [1000, 1001], "has more than 3 fractional digits"),
    (one(Kind.DATETIME), "DateTime64(9, 'UTC')", [0, 2**63 // 1000 + 1], "is outside what"),
    (one(Kind.TIME, precision=6), "Time", [0, 1], "has more than 0 fractional digits"),
    (one(Kind.STRING), "FixedString(2)", ["ab", "é1"], "is longer than the 2 bytes"),
    (one(Kind.BYTES), "FixedString(2)", [b"ab", b"a\0"], "ends with a zero byte"),
    (one(Kind.STRING), "UUID", [UUIDS[1], UUIDS[1].upper()], "UUID in lower case"),
    (one(Kind.BYTES), "UUID", [bytes(16), bytes(15)], "is not a value that UUID holds"),
    (one(Kind.STRING), "Enum8('a' = 1)", ["a", "b"], "is no member of Enum8"),
    (one(Kind.ENUM, members=("a", "b")), "Enum8('a' = 1)", ["a", "b"], "is no member of Enum8"),
    (one(Kind.JSON), "JSON", ["{}", "[1]"], "is not a JSON object"),
    (one(Kind.JSON), "JSON", [" {}", "null"], "is not a JSON object"),
    (one(Kind.SET, True, members=("a",)), "Array(String)", ["a", None], "is NULL"),
    (one(Kind.STRING, True), "String NOT NULL", ["a", None], "is NULL, but the column has no NULLs"),
    (one(Kind.GEOMETRY), "Point", [point(*A), LINE], "a shape of another kind"),
    (one(Kind.GEOMETRY), "LineString", [LINE, LINE[:-1]], "ends too early"),
    (one(Kind.GEOMETRY), "LineString", [LINE, LINE + b"x"], "bytes after its end"),
    (one(Kind.GEOMETRY), "Polygon", [POLYGON, shape(3)], "without points"),
    (one(Kind.GEOMETRY), "Polygon", [POLYGON, b""], "ends too early"),
]


@pytest.mark.parametrize(("column", "stored", "values", "why"), HALTS, ids=[f"{c.kind}-{t}" for c, t, _, _ in HALTS])
def test_a_value_that_a_chosen_type_cannot_hold_halts_with_its_row(
    target: ClickHouseTarget, column: Column, stored: str, values: list[Any], why: str
) -> None:
    sink, schema = choose(target, {"types": (("v", stored),)}), schema_of(column)
    sink.prepare([schema])
    with pytest.raises(DefiniteError) as raised:
        sink.writer().write(block_of(schema, [values[0], values[0], *values[1:]]))
    assert why in raised.value.message
    assert raised.value.place.startswith(f"table {schema.name}, row id=2, column v, ")
    assert sink.reader().count(schema) == 0


REFUSED = [
    (one(Kind.STRING), "Int64", "does not fit"),
    (one(Kind.FLOAT64), "Decimal(10, 2)", "does not fit"),
    (one(Kind.FLOAT64), "Int64", "does not fit"),
    (one(Kind.DECIMAL, precision=10, scale=2), "Float64", "does not fit"),
    (one(Kind.DATETIME), "Date", "does not fit"),
    (one(Kind.DATE), "DateTime", "does not fit"),
    (one(Kind.BYTES), "LowCardinality(UInt8)", "does not fit"),
    (one(Kind.JSON), "Map(String, String)", "does not fit"),
    (one(Kind.GEOMETRY), "Geometry", "does not fit"),
    (one(Kind.VECTOR), "String", "does not fit"),
    (one(Kind.INT32), "Int33", "does not fit"),
    (one(Kind.INT32), "Int32(", "is not a type of ClickHouse"),
    (one(Kind.INT32), "Int32; DROP TABLE x", "is not a type of ClickHouse"),
]


@pytest.mark.parametrize(("column", "stored", "why"), REFUSED, ids=[f"{c.kind}-{t}" for c, t, _ in REFUSED])
def test_a_type_that_would_alter_values_is_refused_before_anything_is_made(
    target: ClickHouseTarget, column: Column, stored: str, why: str
) -> None:
    sink, schema = choose(target, {"types": (("v", stored),)}), schema_of(column)
    with pytest.raises(DefiniteError, match=why) as raised:
        sink.prepare([schema])
    assert "column v" in raised.value.place
    assert raised.value.hint
    assert rows_of(sink, f"SELECT count() FROM system.tables WHERE name = '{schema.name.table}'") == [0]


def test_types_by_kind_give_way_to_types_by_column(target: ClickHouseTarget) -> None:
    given = (("kind:int32", "Int64"), ("b", "String"), ("kind:datetime", "DateTime64(3, 'UTC')"))
    columns = (Column("a", Kind.INT32), Column("b", Kind.INT32), Column("c", Kind.DATETIME, precision=6), Column("d", Kind.INT16))
    sink, schema = choose(target, {"types": given}), schema_of(*columns)
    sink.prepare([schema])
    stored = {column.name: column.type for column in sink.target_table(schema).columns}
    assert stored == {
        "id": "UInt32",
        "a": "Nullable(Int64)",
        "b": "Nullable(String)",
        "c": "Nullable(DateTime64(3, 'UTC'))",
        "d": "Nullable(Int16)",
    }


def test_an_existing_table_is_written_in_its_types_and_names(target: ClickHouseTarget, caplog: pytest.LogCaptureFixture) -> None:
    columns = (
        Column("n", Kind.INT32, False),
        Column("price", Kind.DECIMAL, True, 10, 2),
        Column("at", Kind.DATETIME, True, 3),
        Column("day", Kind.DATE, True),
        Column("state", Kind.ENUM, True, members=("a", "b")),
        Column("big", Kind.INT64, True),
    )
    schema = schema_of(*columns)
    table = f"types.{quote_name(schema.name.table)}"
    stored = (
        "n LowCardinality(Int64), cost String, at DateTime64(6, 'UTC'), day Nullable(String),"
        " state Nullable(Enum8('a' = 1, 'b' = 2)), big Int32"
    )
    sink = choose(target, {"rename": (("price", "cost"),)})
    sink.reader().query("CREATE DATABASE IF NOT EXISTS types")
    sink.reader().query(
        f"CREATE TABLE {table} (id UInt64, {stored}, _sign Int8, _version UInt64, _deleted UInt8 MATERIALIZED _sign = -1)"
        " ENGINE = ReplacingMergeTree(_version, _deleted) ORDER BY id SETTINGS allow_suspicious_low_cardinality_types = 1"
    )
    sink.prepare([schema])
    assert [record.getMessage().partition(": ")[2] for record in caplog.records if "halts at" in record.getMessage()] == [
        "column price is kept as String: the pipe halts at NULL",
        "column at is kept as DateTime64(6, 'UTC'): the pipe halts at NULL",
        "column state is kept as Nullable(Enum8('a' = 1, 'b' = 2)): the pipe halts at the members that it lacks: ''",
        "column big is kept as Int32: the pipe halts at NULL, and numbers that Int32 cannot hold",
    ]
    values = [[2**31 - 1, -1], [Decimal("-0.05"), Decimal("99999999.99")], [1000, FIRST_US], [LAST_DAY, None], ["b", None], [5, -(2**31)]]
    arrays = [to_array(column, cells) for column, cells in zip(columns, values, strict=True)]
    images = pa.record_batch([pa.array([7, 8], pa.uint32()), *arrays], schema=schema.arrow_schema)
    marks = (pa.array([Op.INSERT] * 2, pa.uint8()), pa.array([1, 2], pa.uint64()), pa.array([0, 0], pa.int64()))
    sink.writer().write(ChangeBlock(schema, images, *marks))
    _, rows = sink.reader().query(f"SELECT id, n, cost, toString(at), day, state, big FROM {table} FINAL ORDER BY id")
    assert rows == [
        [7, 2**31 - 1, "-0.05", "1970-01-01 00:00:00.001000", "9999-12-31", "b", 5],
        [8, -1, "99999999.99", "0000-01-01 00:00:00.000000", None, None, -(2**31)],
    ]
    found = compare(schema, pa.Table.from_batches([images]), sink.reader().read_range(schema, (6,), (9,)))
    assert (found.rows, found.total) == (2, 0)


TEXTS = ["", "é", "2020-01-01", "2020-1-1", "2020-01-01 00:00:00.5", "12", "true", "null", "0000-00-00", "a.b", "\0", "127.0.0.1", "-0"]
NUMBERS = [0, 1, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, 10**30, 0.1, -0.0, 1.0, 1e300, 5e-324, 1.2345678901234568e20, -2.5]


def random_value(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(10 if depth else 6)
    if kind < 3:
        return dice.choice(NUMBERS)
    if kind < 6:
        return dice.choice([*TEXTS, True, False])
    if kind < 8:
        return [random_value(dice, depth - 1) for _ in range(dice.randrange(4))]
    return random_document(dice, depth - 1)


def random_document(dice: random.Random, depth: int) -> dict[str, Any]:
    return {f"{dice.choice(['a', 'c d', 'é', ''])}{n}": dice.choice([None, random_value(dice, depth)]) for n in range(dice.randrange(5))}


def test_what_the_type_json_keeps_of_a_document_is_known(target: ClickHouseTarget) -> None:
    """Random documents are stored with the documented losses; a changed one is found."""
    dice = random.Random(4)
    documents = [json.dumps(random_document(dice, 3), ensure_ascii=False) for _ in range(800)]
    sink, schema = choose(target, {"json": JsonAs.JSON}), schema_of(one(Kind.JSON))
    sink.prepare([schema])
    block = block_of(schema, documents)
    sink.writer().write(block)
    source, read = sink.reader().kept(schema, pa.Table.from_batches([block.images])), sink.reader().read_range(schema)
    assert compare(schema, source, read).differences == ()
    changed = block_of(schema, ['{"a0": 1}', *documents[1:]])
    assert compare(schema, sink.reader().kept(schema, pa.Table.from_batches([changed.images])), read).total == 1


def test_a_document_that_the_type_json_cannot_hold_is_the_server_s_error(target: ClickHouseTarget) -> None:
    sink, schema = choose(target, {"json": JsonAs.JSON}), schema_of(one(Kind.JSON))
    sink.prepare([schema])
    for document in ('{"a": 1, "a": 2}', '{"a.b": 1, "a": {"b": 2}}', '{"a": [[1], null]}', '{"a": 1e400}'):
        with pytest.raises(DefiniteError, match="ClickHouse error 117") as raised:
            sink.writer().write(block_of(schema, ["{}", document]))
        assert 'choose json = "string"' in raised.value.hint
        assert "row id=1" in raised.value.place
    assert rows_of(sink, f"SELECT id FROM types.{quote_name(schema.name.table)} FINAL") == [0]
