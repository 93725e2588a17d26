"""Columns, the ClickHouse types that may be chosen for them, extreme values, and their text in ClickHouse."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.options import (
    BitAs,
    DatetimeAs,
    DecimalAs,
    EnumAs,
    GeometryAs,
    JsonAs,
    SetAs,
    TimeAs,
    TinyintAs,
    UnsignedAs,
    YearAs,
)

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


def schema_of(*columns: Column) -> TableSchema:
    """Return a table with the key `id` and these columns."""
    key = Column("id", Kind.UINT32, nullable=False)
    return TableSchema(TableName("any", f"t_{secrets.token_hex(6)}"), (key, *columns), ("id",))


def to_array(column: Column, values: list[Any]) -> Any:
    """Arrow values from integers (dates, times) or plain Python values."""
    match column.kind:
        case Kind.ENUM | Kind.SET:
            return pa.array(values, pa.string()).dictionary_encode()
        case Kind.DATE:
            return pa.array(values, pa.int32()).view(pa.date32())
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return pa.array(values, pa.int64()).view(column.arrow_type)
        case Kind.FLOAT32 | Kind.FLOAT64:
            width = np.float32 if column.kind is Kind.FLOAT32 else np.float64
            numbers = np.array([0 if v is None else v for v in values], dtype=width)
            return pa.array(numbers, mask=np.array([v is None for v in values]))
    return pa.array(values, column.arrow_type)
