"""Every type that a user may choose, or that a table may have, keeps the extremes of what it is given, or halts; on the real engine.

Each case is one column: what the source has, what was chosen, the type that comes of it, values, and ClickHouse's own text of them."""

from __future__ import annotations

import json
import random
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.verify import compare
from headrace.sinks.clickhouse.choices import (
    BitAs,
    DatetimeAs,
    DecimalAs,
    EnumAs,
    GeometryAs,
    JsonAs,
    SetAs,
    SinkChoices,
    TimeAs,
    TinyintAs,
    UnsignedAs,
    YearAs,
)
from headrace.sinks.clickhouse.client import disconnect
from headrace.sinks.clickhouse.constants import constant_in
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.url import ClickHouseTarget

FIRST_DAY, LAST_DAY, DAY_US = -719_528, 2_932_896, 86_400_000_000
FIRST_US, LAST_US = FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1
MOST_TIME_US = (838 * 3600 + 59 * 60 + 59) * 1_000_000
MOST = Decimal((0, (9,) * 65, -30))
LEAST = Decimal((1, (1,), -30))
UUIDS = ["00000000-0000-0000-0000-000000000000", "123e4567-e89b-12d3-a456-426655440000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]


@dataclass(frozen=True)
class Case:
    """A column under a choice: its stored type, values, and ClickHouse's text of them (None: NULL)."""

    column: Column
    chosen: dict[str, Any]
    stored: str
    values: list[Any]
    shown: list[Any]
    expression: str = "toString(v)"

    def __str__(self) -> str:
        return f"{self.column.kind}-{self.stored}"


def one(kind: Kind, nullable: bool = False, **more: Any) -> Column:
    return Column("v", kind, nullable, **more)


def typed(kind: str, column: Column, values: list[Any], shown: list[Any], expression: str = "toString(v)", stored: str = "") -> Case:
    return Case(column, {"types": (("v", kind),)}, stored or kind, values, shown, expression)


def point(x: float, y: float, reference: int = 4326) -> bytes:
    return struct.pack("<IBIdd", reference, 1, 1, x, y)


def run(*points: tuple[float, float]) -> bytes:
    return struct.pack("<I", len(points)) + b"".join(struct.pack("<dd", *each) for each in points)


def shape(code: int, *parts: bytes, reference: int = 0) -> bytes:
    return struct.pack("<IBII", reference, 1, code, len(parts)) + b"".join(parts)


def part(code: int, body: bytes) -> bytes:
    return struct.pack("<BI", 1, code) + body


A, B, C = (0.0, -0.0), (1.5e300, 5e-324), (-1.0, 2.0)
LINE = struct.pack("<IBI", 7, 1, 2) + run(A, B, C)
POLYGON = shape(3, run(A, B, C, A), run(C, B, C))
MANY = shape(6, part(3, struct.pack("<I", 2) + run(A, B) + run(C)), part(3, struct.pack("<I", 1) + run(B, C, A)))
LINES = shape(5, part(2, run(A, B)), part(2, run(C)))
POINTS = shape(4, part(1, struct.pack("<dd", *A)), part(1, struct.pack("<dd", *B)))
TEXT_A, TEXT_B, TEXT_C = "(0,-0)", "(1.5e300,5e-324)", "(-1,2)"
BITS64, BITS32 = "hex(reinterpretAsUInt64(v))", "hex(reinterpretAsUInt32(v))"
THOUSAND = ", ".join(f"'m{n}' = {n}" for n in range(1, 1001))

CHOICES = [
    Case(
        one(Kind.DATETIME, precision=0),
        {"datetime": DatetimeAs.MICRO},
        "DateTime64(6, 'UTC')",
        [FIRST_US, 0, LAST_US - 999_999],
        ["0000-01-01 00:00:00.000000", "1970-01-01 00:00:00.000000", "9999-12-31 23:59:59.000000"],
    ),
    Case(
        one(Kind.TIMESTAMP, True, precision=3),
        {"datetime": DatetimeAs.MICRO, "zone": "Asia/Kolkata"},
        "Nullable(DateTime64(6, 'Asia/Kolkata'))",
        [1000, None, 4_294_967_295_999_000],
        ["1970-01-01 05:30:00.001000", None, "2106-02-07 11:58:15.999000"],
    ),
    Case(
        one(Kind.DATETIME, True, precision=3),
        {"datetime": DatetimeAs.STRING},
        "Nullable(String)",
        [FIRST_US, -1000, None, LAST_US - 999],
        ["0000-01-01 00:00:00.000", "1969-12-31 23:59:59.999", None, "9999-12-31 23:59:59.999"],
    ),
    Case(
        one(Kind.DECIMAL, True, precision=65, scale=30),
        {"decimal": DecimalAs.STRING},
        "Nullable(String)",
        [MOST, MOST.copy_negate(), LEAST, None, Decimal(0)],
        [f"{MOST:f}", f"-{MOST:f}", "-0." + "0" * 29 + "1", None, "0." + "0" * 30],
    ),
    Case(
        one(Kind.JSON, True),
        {"json": JsonAs.JSON},
        "Nullable(JSON)",
        [
            '{"a": [1, 2.5]}',
            None,
            "{}",
            '{"d": "2020-1-1", "t": "2020-01-01 00:00:00.5", "n": "20200101", "m": [false, "x", 1], "z": "0000-00-00"}',
            '{"big": 18446744073709551615, "low": -9223372036854775808, "more": 18446744073709551616, "f": 5e-324, "one": 1.0, "no": null}',
        ],
        [
            '{"a":[1,2.5]}',
            None,
            "{}",
            '{"d":"2020-1-1","m":[false,"x",1],"n":"20200101","t":"2020-01-01 00:00:00.5","z":"0000-00-00"}',
            '{"big":18446744073709551615,"f":5e-324,"low":-9223372036854775808,"more":"18446744073709551616","one":1}',
        ],
    ),
    Case(one(Kind.BIT, True, precision=1), {"bit": BitAs.BOOL}, "Nullable(Bool)", [1, 0, None], ["true", "false", None]),
    Case(one(Kind.BIT, precision=2), {"bit": BitAs.BOOL}, "UInt64", [3, 0], ["3", "0"]),
    Case(one(Kind.BIT, True, precision=5), {"bit": BitAs.STRING}, "Nullable(String)", [31, None, 1], ["11111", None, "00001"]),
    Case(one(Kind.BIT, precision=64), {"bit": BitAs.STRING}, "String", [2**64 - 1, 2**63, 0], ["1" * 64, "1" + "0" * 63, "0" * 64]),
    Case(
        one(Kind.GEOMETRY, True, source_type="point"),
        {"geometry": GeometryAs.GEO},
        "Nullable(Point)",
        [point(*A), None, point(*B)],
        [TEXT_A, None, TEXT_B],
    ),
    Case(one(Kind.GEOMETRY, source_type="POINT SRID 4326"), {"geometry": GeometryAs.GEO}, "Point", [point(*C)], [TEXT_C]),
    Case(
        one(Kind.GEOMETRY, True, source_type="linestring"),
        {"geometry": GeometryAs.GEO},
        "LineString",
        [LINE, None, LINE],
        [f"[{TEXT_A},{TEXT_B},{TEXT_C}]", "[]", f"[{TEXT_A},{TEXT_B},{TEXT_C}]"],
    ),
    Case(
        one(Kind.GEOMETRY, True, source_type="multipoint"),
        {"geometry": GeometryAs.GEO},
        "MultiPoint",
        [None, POINTS, POINTS],
        ["[]", f"[{TEXT_A},{TEXT_B}]", f"[{TEXT_A},{TEXT_B}]"],
    ),
    Case(
        one(Kind.GEOMETRY, True, source_type="polygon"),
        {"geometry": GeometryAs.GEO},
        "Polygon",
        [None, POLYGON, shape(3, run(B)), POLYGON],
        [
            "[]",
            f"[[{TEXT_A},{TEXT_B},{TEXT_C},{TEXT_A}],[{TEXT_C},{TEXT_B},{TEXT_C}]]",
            f"[[{TEXT_B}]]",
            f"[[{TEXT_A},{TEXT_B},{TEXT_C},{TEXT_A}],[{TEXT_C},{TEXT_B},{TEXT_C}]]",
        ],
    ),
    Case(
        one(Kind.GEOMETRY, source_type="multilinestring"),
        {"geometry": GeometryAs.GEO},
        "MultiLineString",
        [LINES, shape(5, part(2, run(C, A)))],
        [f"[[{TEXT_A},{TEXT_B}],[{TEXT_C}]]", f"[[{TEXT_C},{TEXT_A}]]"],
    ),
    Case(
        one(Kind.GEOMETRY, True, source_type="multipolygon"),
        {"geometry": GeometryAs.GEO},
        "MultiPolygon",
        [MANY, None, shape(6, part(3, struct.pack("<I", 1) + run(A))), MANY],
        [
            f"[[[{TEXT_A},{TEXT_B}],[{TEXT_C}]],[[{TEXT_B},{TEXT_C},{TEXT_A}]]]",
            "[]",
            f"[[[{TEXT_A}]]]",
            f"[[[{TEXT_A},{TEXT_B}],[{TEXT_C}]],[[{TEXT_B},{TEXT_C},{TEXT_A}]]]",
        ],
    ),
    Case(one(Kind.GEOMETRY, source_type="geometry"), {"geometry": GeometryAs.GEO}, "String", [POLYGON], [POLYGON.hex().upper()], "hex(v)"),
    Case(
        one(Kind.ENUM, True, members=("b'c", "漢", "a")),
        {"enum": EnumAs.ENUM},
        "Nullable(Enum8('' = 0, 'b\\'c' = 1, '漢' = 2, 'a' = 3))",
        ["a", "b'c", "漢", None, ""],
        ["a=3", "b'c=1", "漢=2", None, "=0"],
        "concat(toString(v), '=', toString(toInt16(v)))",
    ),
    Case(
        one(Kind.ENUM, members=tuple(f"m{n}" for n in range(1, 1001))),
        {"enum": EnumAs.ENUM},
        f"Enum16('' = 0, {THOUSAND})",
        ["m1", "m1000", "m128"],
        ["1", "1000", "128"],
        "toString(toInt16(v))",
    ),
    Case(one(Kind.ENUM, True, members=("a", "b")), {"enum": EnumAs.STRING}, "Nullable(String)", ["a", None, "", "b"], ["a", None, "", "b"]),
    Case(
        one(Kind.SET, members=("a", "漢", "c d")),
        {"set": SetAs.ARRAY},
        "Array(LowCardinality(String))",
        ["a,漢,c d", "", "c d"],
        ["['a','漢','c d']", "[]", "['c d']"],
    ),
    Case(one(Kind.SET, True, members=("a", "b")), {"set": SetAs.STRING}, "Nullable(String)", ["a,b", None, ""], ["a,b", None, ""]),
    Case(
        one(Kind.TIME, True, precision=6),
        {"time": TimeAs.INT64},
        "Nullable(Int64)",
        [-MOST_TIME_US, None, MOST_TIME_US, -1],
        [str(-MOST_TIME_US), None, str(MOST_TIME_US), "-1"],
    ),
    Case(
        one(Kind.TIME, True, precision=6),
        {"time": TimeAs.STRING},
        "Nullable(String)",
        [-MOST_TIME_US, None, MOST_TIME_US, -1, 86_400_000_001],
        ["-838:59:59.000000", None, "838:59:59.000000", "-00:00:00.000001", "24:00:00.000001"],
    ),
    Case(one(Kind.TIME, precision=0), {"time": TimeAs.STRING}, "String", [-1_000_000, 0], ["-00:00:01", "00:00:00"]),
    Case(one(Kind.TIME, precision=2), {"time": TimeAs.STRING}, "String", [-10_000, 3_600_120_000], ["-00:00:00.01", "01:00:00.12"]),
    Case(
        one(Kind.INT8, True, source_type="tinyint(1)"),
        {"tinyint1": TinyintAs.BOOL},
        "Nullable(Bool)",
        [0, 1, None],
        ["false", "true", None],
    ),
    Case(one(Kind.INT8, source_type="tinyint(4)"), {"tinyint1": TinyintAs.BOOL}, "Int8", [-128, 127], ["-128", "127"]),
    Case(one(Kind.UINT64), {"uint64": UnsignedAs.INT64}, "Int64", [2**63 - 1, 0], [str(2**63 - 1), "0"]),
    Case(
        one(Kind.UINT64, True),
        {"uint64": UnsignedAs.DECIMAL},
        "Nullable(Decimal(20, 0))",
        [2**64 - 1, None, 0],
        [str(2**64 - 1), None, "0"],
    ),
    Case(one(Kind.UINT64, True), {"uint64": UnsignedAs.STRING}, "Nullable(String)", [2**64 - 1, None, 0], [str(2**64 - 1), None, "0"]),
    Case(one(Kind.YEAR), {"year": YearAs.STRING}, "String", [0, 1901, 2155], ["0000", "1901", "2155"]),
    Case(
        one(Kind.STRING, True),
        {"low_cardinality": ("v*",)},
        "LowCardinality(Nullable(String))",
        ["é", None, "", "\0"],
        ["é", None, "", "\0"],
    ),
]

TYPES = [
    typed("Int64", one(Kind.INT32), [-(2**31), 2**31 - 1], [str(-(2**31)), str(2**31 - 1)]),
    typed("Int256", one(Kind.INT64), [-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)]),
    typed("Int128", one(Kind.UINT64), [2**64 - 1, 0], [str(2**64 - 1), "0"]),
    typed("UInt256", one(Kind.UINT64, True), [2**64 - 1, None], [str(2**64 - 1), None], stored="Nullable(UInt256)"),
    typed("UInt128", one(Kind.INT64), [2**63 - 1, 0], [str(2**63 - 1), "0"]),
    typed("Int32", one(Kind.INT64, True), [-(2**31), 2**31 - 1, None], [str(-(2**31)), str(2**31 - 1), None], stored="Nullable(Int32)"),
    typed("UInt8", one(Kind.INT64), [0, 255], ["0", "255"]),
    typed("Int64 NOT NULL", one(Kind.INT64, True), [5], ["5"], stored="Int64"),
    typed("Float64", one(Kind.INT64), [-(2**53), 2**53], [str(-(2**53)), str(2**53)], "toString(toInt64(v))"),
    typed("Decimal(21, 2)", one(Kind.INT64), [-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)]),
    typed("String", one(Kind.INT64, True), [-(2**63), None, 2**63 - 1], [str(-(2**63)), None, str(2**63 - 1)], stored="Nullable(String)"),
    typed("Bool", one(Kind.BIT, precision=64), [0, 1], ["false", "true"]),
    typed("UInt8", one(Kind.BIT, precision=8), [0, 255], ["0", "255"]),
    typed(
        "Float64",
        one(Kind.FLOAT32),
        [3.4028234663852886e38, -0.0, 0.1],
        ["47EFFFFFE0000000", "8000000000000000", "3FB99999A0000000"],
        BITS64,
    ),
    typed("Float32", one(Kind.FLOAT64), [3.4028234663852886e38, -0.0, 0.5], ["7F7FFFFF", "80000000", "3F000000"], BITS32),
    typed(
        "String",
        one(Kind.FLOAT64, True),
        [1.7976931348623157e308, 5e-324, -0.0, None, 0.1],
        ["1.7976931348623157e+308", "5e-324", "-0", None, "0.1"],
        stored="Nullable(String)",
    ),
    typed("String", one(Kind.FLOAT32), [3.4028234663852886e38, 1.401298464324817e-45, 0.1], ["3.4028235e+38", "1e-45", "0.1"]),
    typed(
        "Decimal(76, 38)",
        one(Kind.DECIMAL, precision=38, scale=30),
        [Decimal("-99999999.5"), LEAST],
        ["-99999999.5", "-0." + "0" * 29 + "1"],
    ),
    typed("Decimal(9, 2)", one(Kind.DECIMAL, precision=65, scale=30), [Decimal("-9999999.99"), Decimal("0.01")], ["-9999999.99", "0.01"]),
    typed("Decimal64(3)", one(Kind.DECIMAL, precision=9, scale=2), [Decimal("-9999999.99")], ["-9999999.99"], stored="Decimal(18, 3)"),
    typed("Int64", one(Kind.DECIMAL, precision=20, scale=0), [Decimal(2**63 - 1), Decimal(-(2**63))], [str(2**63 - 1), str(-(2**63))]),
    typed("UInt64", one(Kind.DECIMAL, precision=20, scale=2), [Decimal("5.00")], ["5"]),
    typed("Date", one(Kind.DATE, True), [0, 65_535, None], ["1970-01-01", "2149-06-06", None], stored="Nullable(Date)"),
    typed("String", one(Kind.DATE, True), [FIRST_DAY, None, LAST_DAY], ["0000-01-01", None, "9999-12-31"], stored="Nullable(String)"),
    typed("DateTime('UTC')", one(Kind.DATETIME), [0, (2**32 - 1) * 1_000_000], ["1970-01-01 00:00:00", "2106-02-07 06:28:15"]),
    typed(
        "DateTime('Europe/Berlin')",
        one(Kind.TIMESTAMP, True, precision=0),
        [0, None, 1_720_000_000_000_000],
        ["1970-01-01 01:00:00", None, "2024-07-03 11:46:40"],
        stored="Nullable(DateTime('Europe/Berlin'))",
    ),
    typed(
        "DateTime64(3, 'UTC')", one(Kind.DATETIME, precision=6), [FIRST_US, 1000], ["0000-01-01 00:00:00.000", "1970-01-01 00:00:00.001"]
    ),
    typed(
        "DateTime64(9, 'UTC')", one(Kind.DATETIME, precision=6), [-1, 1], ["1969-12-31 23:59:59.999999000", "1970-01-01 00:00:00.000001000"]
    ),
    typed("Int64", one(Kind.DATETIME, precision=6), [FIRST_US, LAST_US], [str(FIRST_US), str(LAST_US)]),
    typed("String", one(Kind.TIMESTAMP, precision=6), [1, 2**31 * 1_000_000], ["1970-01-01 00:00:00.000001", "2038-01-19 03:14:08.000000"]),
    typed("Time64(9)", one(Kind.TIME, precision=6), [-MOST_TIME_US, 1], ["-838:59:59.000000000", "00:00:00.000001000"]),
    typed("Time64(6)", one(Kind.TIME, precision=0), [-MOST_TIME_US, MOST_TIME_US], ["-838:59:59.000000", "838:59:59.000000"]),
    typed(
        "Time",
        one(Kind.TIME, True, precision=6),
        [-MOST_TIME_US, None, MOST_TIME_US],
        ["-838:59:59", None, "838:59:59"],
        stored="Nullable(Time)",
    ),
    typed("Int32", one(Kind.YEAR), [0, 2155], ["0", "2155"]),
    typed("FixedString(4)", one(Kind.STRING), ["abcd", "é", "", "a\0b"], ["61626364", "C3A90000", "00000000", "61006200"], "hex(v)"),
    typed("FixedString(4)", one(Kind.BYTES, source_type="binary(4)"), [b"\0\0\0\0", b"a\0\0\0"], ["00000000", "61000000"], "hex(v)"),
    typed(
        "FixedString(3)", one(Kind.BYTES, True), [b"\xff\0a", None, b""], ["FF0061", None, "000000"], "hex(v)", "Nullable(FixedString(3))"
    ),
    typed("LowCardinality(String)", one(Kind.STRING), ["a", "", "b"], ["a", "", "b"]),
    typed("UUID", one(Kind.STRING, True), [UUIDS[1], None, UUIDS[2]], [UUIDS[1], None, UUIDS[2]], stored="Nullable(UUID)"),
    typed("UUID", one(Kind.BYTES, source_type="binary(16)"), [UUID(text).bytes for text in UUIDS], UUIDS),
    typed("IPv6", one(Kind.BYTES, source_type="binary(16)"), [bytes(15) + b"\1", b"\xff" * 16], ["::1", ":".join(["ffff"] * 8)]),
    typed(
        "Enum8('x' = -1, 'y' = 5)", one(Kind.STRING, True), ["x", None, "y"], ["x", None, "y"], stored="Nullable(Enum8('x' = -1, 'y' = 5))"
    ),
    typed("Enum16('b' = 7, 'a' = 300)", one(Kind.ENUM, members=("a", "b")), ["a", "b"], ["300", "7"], "toString(toInt16(v))"),
    typed("LowCardinality(String)", one(Kind.ENUM, members=("a", "b")), ["a", "b"], ["a", "b"]),
    typed("Array(String)", one(Kind.SET, members=("a", "b")), ["a,b", ""], ["['a','b']", "[]"]),
    typed("JSON", one(Kind.STRING), ['{"b": 1, "a": 2}'], ['{"a":2,"b":1}']),
    typed("Array(Float64)", one(Kind.VECTOR, True), [[0.5, -0.0], None], ["[0.5,-0]", "[]"]),
    typed("String", one(Kind.UUID, True), [UUID(UUIDS[1]).bytes, None], [UUIDS[1], None], stored="Nullable(String)"),
    typed("FixedString(16)", one(Kind.UUID), [UUID(UUIDS[1]).bytes], [UUID(UUIDS[1]).hex.upper()], "hex(v)"),
    typed("String", one(Kind.INET4, True), [b"\xff\0\1\x0a", None], ["255.0.1.10", None], stored="Nullable(String)"),
    typed("UInt32", one(Kind.INET4), [b"\xff\xff\xff\xff", b"\0\0\0\1"], ["4294967295", "1"]),
    typed("FixedString(16)", one(Kind.INET6), [bytes(range(16))], [bytes(range(16)).hex().upper()], "hex(v)"),
    typed("Ring", one(Kind.GEOMETRY, source_type="linestring"), [LINE], [f"[{TEXT_A},{TEXT_B},{TEXT_C}]"]),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseTarget]:
    with EmbeddedServer(tmp_path_factory.mktemp("clickhouse") / "data") as server:
        target = ClickHouseTarget("127.0.0.1", server.port, database="types")
        yield target
        disconnect(target)


def choose(target: ClickHouseTarget, chosen: dict[str, Any]) -> ClickHouseSink:
    return ClickHouseSink(target, SinkChoices(tuple(chosen.items())))


def schema_of(*columns: Column) -> TableSchema:
    key = Column("id", Kind.UINT32, nullable=False)
    return TableSchema(TableName("any", f"t_{secrets.token_hex(6)}"), (key, *columns), ("id",))


def to_array(column: Column, values: list[Any]) -> Any:
    match column.kind:
        case Kind.ENUM | Kind.SET:
            return pa.array(values, pa.string()).dictionary_encode()
        case Kind.DATE:
            return pa.array(values, pa.int32()).view(pa.date32())
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return pa.array(values, pa.int64()).view(column.arrow_type)
        case Kind.FLOAT32:
            return pa.array(np.array([0 if v is None else v for v in values], dtype=np.float32), mask=np.array([v is None for v in values]))
    return pa.array(values, column.arrow_type)


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
    """What an added column shows in old rows is what a block with that value would have stored."""
    asked: list[tuple[str, str, str]] = []
    for case in CHOICES + TYPES:
        for value, shown in zip(case.values, case.shown, strict=True):
            written = None if value is None else constant_in(case.column, case.stored, value)
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
    stored = {column.name: column.type for column in sink.layout(schema).columns}
    assert stored == {
        "id": "UInt32",
        "a": "Nullable(Int64)",
        "b": "Nullable(String)",
        "c": "Nullable(DateTime64(3, 'UTC'))",
        "d": "Nullable(Int16)",
    }


def test_a_table_that_is_there_is_written_in_its_own_types_and_names(target: ClickHouseTarget, caplog: pytest.LogCaptureFixture) -> None:
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
    """Random documents are stored, and what comes back is what is said to be kept; a changed one is found."""
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
