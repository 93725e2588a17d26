"""Values of events in every format of Debezium, converted to the columns' types. Expected values are literals or Python's."""

from __future__ import annotations

import struct
import uuid
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.model.schema import Column, Kind
from headrace.sources.debezium.events.parsed_events import ConnectField, WireFormat, wire_type
from headrace.sources.debezium.types.column_mapping import SOURCE_LENGTH, SOURCE_SCALE, SOURCE_TYPE, column_of
from headrace.sources.debezium.types.values import UNAVAILABLE, ConvertedColumn, convert_column, default_text

DECIMAL = "org.apache.kafka.connect.data.Decimal"


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _digits(number: int) -> str:
    """A number as Java's BigInteger writes its bytes, in base64."""
    return _base64(number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True))


def _finished(
    values: list[Any], field: ConnectField, column: Column | None = None, wire: WireFormat = WireFormat.JSON, **how: Any
) -> ConvertedColumn:
    column = column or column_of(field)
    found = convert_column(pa.array(values, wire_type(field, wire)), field, column, wire, **how)
    assert found.array.type == column.arrow_type
    if column.kind is not Kind.TIME:  # which holds more than a day
        found.array.validate(full=True)
    return found


def _values(values: list[Any], word: str, semantic: str = "", column: Column | None = None, **parameters: str) -> list[Any]:
    found = _finished(values, ConnectField("c", word, semantic, parameters), column)
    assert found.bad is None
    assert found.kept is None
    plain: list[Any] = found.array.view(pa.int64()).to_pylist() if pa.types.is_time64(found.array.type) else found.array.to_pylist()
    return plain


def _bad(found: ConvertedColumn) -> list[int]:
    return [] if found.bad is None else np.flatnonzero(found.bad).tolist()


def test_plain_values() -> None:
    assert _values([1, None, -128], "int8") == [1, None, -128]
    assert _values([1, None, -(2**63)], "int64") == [1, None, -(2**63)]
    assert _values([True, False, None], "boolean") == [1, 0, None]
    assert _values([1.1, None], "float64") == [1.1, None]
    assert _values([1.1, None], "float32") == [struct.unpack("<f", struct.pack("<f", 1.1))[0], None]
    assert _values(["café 日本 🙂", "", None], "string") == ["café 日本 🙂", "", None]
    assert _values(["AP8=", "", None, "YWIAAA=="], "bytes") == [b"\x00\xff", b"", None, b"ab\0\0"]
    assert _values([None, None], "string", "io.debezium.data.Uuid") == [None, None]


def test_dates_and_times() -> None:
    assert _values([20090, None, -1], "int32", "io.debezium.time.Date") == [date(2025, 1, 2), None, date(1969, 12, 31)]
    assert _values([20090], "int32", "org.apache.kafka.connect.data.Date") == [date(2025, 1, 2)]
    assert _values(["2025-01-02Z", None], "string", "io.debezium.time.IsoDate") == [date(2025, 1, 2), None]
    moment = datetime(2025, 1, 2, 3, 4, 5, 678901)
    micros = 1735787045678901
    assert _values([micros // 1000], "int64", "io.debezium.time.Timestamp") == [moment.replace(microsecond=678000)]
    assert _values([micros // 1000], "int64", "org.apache.kafka.connect.data.Timestamp") == [moment.replace(microsecond=678000)]
    assert _values([micros, None], "int64", "io.debezium.time.MicroTimestamp") == [moment, None]
    assert _values([micros * 1000], "int64", "io.debezium.time.NanoTimestamp") == [moment]
    assert _values(["2025-01-02T03:04:05.678901Z"], "string", "io.debezium.time.IsoTimestamp") == [moment]
    assert _values([-45296789012, 3020399999999, None], "int64", "io.debezium.time.MicroTime") == [-45296789012, 3020399999999, None]
    assert _values([-1, 86_400_000], "int32", "io.debezium.time.Time") == [-1000, 86_400_000_000]
    assert _values([-1000], "int64", "io.debezium.time.NanoTime") == [-1]
    assert _values(["20:05:23.123Z", "-838:59:59"], "string", "io.debezium.time.IsoTime") == [72323123000, -3020399000000]
    assert _values([2025, 0], "int32", "io.debezium.time.Year") == [2025, 0]
    assert _values([10_000_000], "int64", "io.debezium.time.MicroDuration") == [10_000_000]
    assert _values(["P1Y2M3DT4H5M6.7S"], "string", "io.debezium.time.Interval") == ["P1Y2M3DT4H5M6.7S"]
    assert _values(["10:11:12.123456Z"], "string", "io.debezium.time.ZonedTime") == ["10:11:12.123456Z"]


def test_instants_with_fractions_and_offsets_of_any_length() -> None:
    texts = ["2025-01-02T03:04:05.678Z", "2025-01-02T03:04:05Z", None, "2025-01-02T05:04:05.1+02:00", "2025-01-02T03:04:05.123456000-05:30"]
    found = _finished(texts, ConnectField("c", "string", "io.debezium.time.ZonedTimestamp"))
    expected = [None if text is None else datetime.fromisoformat(text.replace("000-", "-")).astimezone(UTC) for text in texts]
    assert found.array.to_pylist() == expected
    bad = _finished(["2025-01-02T03:04:05.1234567Z", "never", *texts], ConnectField("c", "string", "io.debezium.time.ZonedTimestamp"))
    assert _bad(bad) == [0, 1]
    assert bad.array.to_pylist()[2:] == expected
    assert "'never' is no value of timestamp" in bad.reason(1)


def test_moments_between_microseconds_or_beyond_them_are_bad() -> None:
    assert _bad(_finished([1000, 1001, -1], ConnectField("c", "int64", "io.debezium.time.NanoTimestamp"))) == [1, 2]
    assert _bad(_finished([0, 2**62], ConnectField("c", "int64", "io.debezium.time.Timestamp"))) == [1]
    assert _bad(_finished([0, 2**40], ConnectField("c", "int32", "io.debezium.time.Date"))) == [1]
    assert _bad(_finished(["2025-02-30Z", "2025-02-28Z"], ConnectField("c", "string", "io.debezium.time.IsoDate"))) == [0]


def test_decimals_in_every_form() -> None:
    precise = ConnectField("c", "bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "12"})
    assert _finished(["B1vNFQ==", None, _digits(-1)], precise).array.to_pylist() == [Decimal("1234567.89"), None, Decimal("-0.01")]
    wide = ConnectField("c", "bytes", DECIMAL, {"scale": "30", "connect.decimal.precision": "65"})
    number = int("9" * 65)
    assert _finished([_digits(-number)], wide).array.to_pylist() == [Decimal("-" + "9" * 35 + "." + "9" * 30)]
    twelve = Column("c", Kind.DECIMAL, precision=12, scale=2)
    assert _values(["1.5", "-0.010", "1E+3", None], "string", column=twelve) == [Decimal("1.50"), Decimal("-0.01"), Decimal(1000), None]
    assert _values([1.1, 1234567890.12, None], "float64", column=twelve) == [Decimal("1.10"), Decimal("1234567890.12"), None]
    assert _values([7], "int32", column=twelve) == [Decimal(7)]
    assert _bad(_finished([_digits(10**12 - 1), _digits(10**12), "!", "AAA"], precise)) == [1, 2, 3]
    assert _bad(_finished(["1.555", "x", "1"], ConnectField("c", "string"), twelve)) == [0, 1]
    assert _bad(_finished([1.555, float("nan"), 1.0], ConnectField("c", "float64"), twelve)) == [0, 1]
    in_avro = _finished([(-123).to_bytes(1, "big", signed=True), None], precise, wire=WireFormat.AVRO)
    assert in_avro.array.to_pylist() == [Decimal("-1.23"), None]


@pytest.mark.parametrize("scale", [-3, 0, 2, 76, 90])
def test_decimals_of_any_scale_and_length_in_columns_of_text_and_fractions(scale: int) -> None:
    """Oracle's NUMBER(5, -3) has a negative scale; more than 76 digits fit no decimal type."""
    field = ConnectField("c", "bytes", DECIMAL, {"scale": str(scale)})
    for numbers in ([12, 0, -7, None, 10**30], [10**99, -1]):
        values = [None if number is None else _digits(number) for number in numbers]
        exact = [None if number is None else Decimal(number).scaleb(-scale, Context(prec=300)) for number in numbers]
        texts = _finished(values, field, Column("c", Kind.STRING)).array.to_pylist()
        assert texts == [None if one is None else format(one, "f") for one in exact]
        fractions = _finished(values, field, Column("c", Kind.FLOAT64)).array.to_pylist()
        assert fractions == [None if one is None else float(one) for one in exact]
    assert _bad(_finished([_digits(1), ""], field, Column("c", Kind.STRING))) == [1]


@pytest.mark.parametrize("text", ["1.", "-1.", ".", "1.e5", "1.E+3", ".e1", "1e", "1E+", "0x1", "1,5", " 1"])
@pytest.mark.parametrize("precision", [12, 40])
def test_a_text_that_no_connector_writes_for_a_decimal_is_bad(text: str, precision: int) -> None:
    """Connectors write `BigDecimal.toString()` or `toPlainString()`: a point is always followed by a digit."""
    column = Column("c", Kind.DECIMAL, precision=precision, scale=2)
    found = _finished(["1.5", text, "1E+3"], ConnectField("c", "string"), column)
    assert found.array.to_pylist() == [Decimal("1.50"), None, Decimal(1000)]
    assert _bad(found) == [1]
    assert _bad(_finished(["1.5", text], ConnectField("c", "string"), column)) == [1]
    assert found.reason(1) == f"column c: {text!r} is no value of decimal({precision},2)"


def test_decimals_of_any_scale_are_text_with_all_their_digits() -> None:
    inner = (ConnectField("scale", "int32", optional=False), ConnectField("value", "bytes", optional=False))
    field = ConnectField("c", "struct", "io.debezium.data.VariableScaleDecimal", fields=inner)
    numbers = [
        Decimal("123.45"),
        None,
        Decimal(-5),
        Decimal("-0.00000001"),
        Decimal("7E+2"),
        Decimal("1." + "0" * 99 + "1"),
        Decimal("0.00"),
    ]
    values = [
        None if number is None else {"scale": -int(number.as_tuple().exponent), "value": _digits(int(number.scaleb(-exponent)))}
        for number in numbers
        for exponent in [0 if number is None else int(number.as_tuple().exponent)]
    ]
    # Python's decimal context would round a hundred digits.
    values[5] = {"scale": 100, "value": _digits(10**100 + 1)}
    found = _finished(values, field)
    assert found.array.to_pylist() == [None if number is None else format(number, "f") for number in numbers]
    as_decimal = _finished(values, field, Column("c", Kind.DECIMAL, precision=12, scale=2))
    assert _bad(as_decimal) == [3, 5]
    assert as_decimal.array.to_pylist()[:3] == [Decimal("123.45"), None, Decimal("-5.00")]
    assert as_decimal.array.to_pylist()[4] == Decimal(700)
    assert _finished(values[:3], field, Column("c", Kind.FLOAT64)).array.to_pylist() == [123.45, None, -5.0]


def test_unsigned_numbers_that_arrive_below_zero() -> None:
    unsigned = ConnectField("c", "int64", "", {SOURCE_TYPE: "BIGINT UNSIGNED"})
    assert _finished([-1, 1, None, -(2**63)], unsigned).array.to_pylist() == [2**64 - 1, 1, None, 2**63]
    precise = ConnectField("c", "bytes", DECIMAL, {"scale": "0", SOURCE_TYPE: "BIGINT UNSIGNED"})
    assert _finished([_digits(2**64 - 1), _digits(0)], precise).array.to_pylist() == [2**64 - 1, 0]
    assert _bad(_finished([_digits(2**64), _digits(-1), _digits(1)], precise)) == [0, 1]


def test_numbers_out_of_range_are_bad_alone() -> None:
    small = ConnectField("c", "int16", "", {SOURCE_TYPE: "TINYINT UNSIGNED"})
    found = _finished([0, 255, 256, -1, None], small)
    assert (_bad(found), found.array.to_pylist()) == ([2, 3], [0, 255, None, None, None])
    assert found.reason(2) == "column c: 256 is no value of uint8"
    assert _bad(_finished([0, -1], ConnectField("c", "int32", "io.debezium.time.Year"))) == [1]
    assert _bad(_finished(["5", "x"], ConnectField("c", "string"), Column("c", Kind.INT32))) == [1]


def test_bits() -> None:
    nine = ConnectField("c", "bytes", "io.debezium.data.Bits", {"length": "9"})
    found = _finished(["AQE=", None, "", _base64(b"\xff\x03")], nine)
    assert (found.array.to_pylist(), _bad(found)) == ([257, None, 0, None], [3])
    full = ConnectField("c", "bytes", "io.debezium.data.Bits", {"length": "64"})
    assert _finished([_base64(b"\xff" * 8)], full).array.to_pylist() == [2**64 - 1]
    long = ConnectField("c", "bytes", "io.debezium.data.Bits", {"length": "80"})
    assert _finished([_base64(b"\x01" * 10)], long).array.to_pylist() == [b"\x01" * 10]
    assert _finished([True, None], ConnectField("c", "boolean"), Column("c", Kind.BIT, precision=1)).array.to_pylist() == [1, None]


def test_names() -> None:
    assert _values(["paid", "new", None, "paid"], "string", "io.debezium.data.Enum", allowed="new,paid") == ["paid", "new", None, "paid"]
    assert _values(["a,b", "", None], "string", "io.debezium.data.EnumSet", allowed="a,b") == ["a,b", "", None]


def test_names_of_the_log_and_of_snapshots_are_the_same() -> None:
    """Debezium 3.6 sends `a\\,b` for a row of the binary log and `a,b` for one of a snapshot."""
    enum = ConnectField("c", "string", "io.debezium.data.Enum", {"allowed": "a\\,b,c'd,e\\\\f", SOURCE_TYPE: "ENUM"})
    assert _finished(["a,b", "a\\,b", "c'd", "e\\f", "e\\\\f", None, ""], enum).array.to_pylist() == [
        "a,b",
        "a,b",
        "c'd",
        "e\\f",
        "e\\f",
        None,
        "",
    ]
    names = ConnectField("c", "string", "io.debezium.data.EnumSet", {"allowed": "x\\\\,y", SOURCE_TYPE: "SET"})
    assert _finished(["x\\\\,y", "x\\,y", "y", ""], names).array.to_pylist() == ["x\\,y", "x\\,y", "y", ""]


def test_bytes_that_come_as_text() -> None:
    raw = bytes(range(256))
    field = ConnectField("c", "string", "", {SOURCE_TYPE: "BLOB"})
    assert _finished([raw.hex(), None], field, binaries="hex").array.to_pylist() == [raw, None]
    assert _finished([_base64(raw)], field, binaries="base64").array.to_pylist() == [raw]
    assert _finished([urlsafe_b64encode(raw).decode()], field, binaries="base64-url-safe").array.to_pylist() == [raw]
    assert _bad(_finished(["0", "0g", "00"], field, binaries="hex")) == [0, 1]
    assert _bad(_finished(["A", "AA=A", "A===", "*AAA", "AA==", ""], ConnectField("c", "bytes"))) == [0, 1, 2, 3]


def test_uuids_and_addresses() -> None:
    one = uuid.UUID("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")
    found = _finished([str(one), None, str(one).upper(), "x"], ConnectField("c", "string", "io.debezium.data.Uuid"))
    assert (found.array.to_pylist(), _bad(found)) == ([one.bytes, None, one.bytes, None], [3])
    six = _finished(["::1", None, "x", "2001:db8::ff"], ConnectField("c", "string"), Column("c", Kind.INET6))
    assert (six.array.to_pylist()[0], _bad(six)) == (bytes(15) + b"\x01", [2])
    assert _values(["10.0.0.255"], "string", column=Column("c", Kind.INET4)) == [b"\x0a\0\0\xff"]


def test_vectors() -> None:
    field = ConnectField("c", "array", "io.debezium.data.FloatVector", items=ConnectField("item", "float32", optional=False))
    found = _finished([[1.0, 2.5], None, [], [0.1]], field)
    assert found.array.to_pylist() == [[1.0, 2.5], None, [], [struct.unpack("<f", struct.pack("<f", 0.1))[0]]]
    assert _bad(_finished([[1.0, None], [2.0]], field)) == [0]
    sliced = convert_column(
        pa.array([[9.0], [1.0], None, [2.0, 3.0]], pa.list_(pa.float64()))[1:], field, column_of(field), WireFormat.JSON
    )
    assert sliced.array.to_pylist() == [[1.0], None, [2.0, 3.0]]


def test_shapes() -> None:
    inner = (ConnectField("wkb", "bytes"), ConnectField("srid", "int32"))
    field = ConnectField("c", "struct", "io.debezium.data.geometry.Geometry", fields=inner)
    point = struct.pack("<BIdd", 1, 1, 1.0, 2.0)
    little = struct.pack("<BIIdd", 1, 0x20000001, 4326, 1.0, 2.0)
    big = struct.pack(">BIIdd", 0, 0x20000001, 4326, 1.0, 2.0)
    shapes = [(point, None), None, (point, 4326), (little, 4326), (little, None), (big, None)]
    values = [None if shape is None else {"wkb": _base64(shape[0]), "srid": shape[1]} for shape in shapes]
    found = _finished(values, field)
    named = struct.pack("<I", 4326) + point
    plain_big = struct.pack("<I", 4326) + struct.pack(">BIdd", 0, 1, 1.0, 2.0)
    assert found.array.to_pylist() == [bytes(4) + point, None, named, named, named, plain_big]
    assert _bad(_finished([{"wkb": "!!", "srid": 1}, {"wkb": None, "srid": 1}, values[0]], field)) == [0, 1]
    parts = (ConnectField("x", "float64"), ConnectField("y", "float64"), *inner)
    points = ConnectField("c", "struct", "io.debezium.data.geometry.Point", fields=parts)
    assert _finished([{"x": 1.0, "y": 2.0, "wkb": None, "srid": None}, None], points).array.to_pylist() == [bytes(4) + point, None]


def test_lists_maps_and_structs_are_json_of_what_columns_would_show() -> None:
    dates = ConnectField("c", "array", items=ConnectField("item", "int32", "io.debezium.time.Date"))
    assert _finished([[20090, None], None, []], dates).array.to_pylist() == ['["2025-01-02",null]', None, "[]"]
    numbers = ConnectField("c", "array", items=ConnectField("item", "bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "10"}))
    assert _finished([[_digits(150)]], numbers).array.to_pylist() == ['["1.50"]']
    assert _bad(_finished([[_digits(150)], ["!"], []], numbers)) == [1]
    parts = (ConnectField("a", "int32"), ConnectField("b", "array", items=ConnectField("item", "boolean")))
    nested = ConnectField("c", "struct", "some.Type", fields=parts)
    assert _finished([{"a": 1, "b": [True, False]}, None], nested).array.to_pylist() == ['{"a":1,"b":[true,false]}', None]
    document = ConnectField("c", "string", "io.debezium.data.Json")
    assert _finished(['{"a":[1.5,null]}', None], document).array.to_pylist() == ['{"a":[1.5,null]}', None]
    assert _finished(['{"k":"v"}'], ConnectField("c", "map", items=ConnectField("item", "string"))).array.to_pylist() == ['{"k":"v"}']


@pytest.mark.parametrize("wire", list(WireFormat))
def test_values_that_were_not_logged_differ_from_null(wire: WireFormat) -> None:
    raw: Any = _base64(UNAVAILABLE.encode()) if wire is WireFormat.JSON else UNAVAILABLE.encode()
    some: Any = _base64(b"x") if wire is WireFormat.JSON else b"x"
    for field, values in (
        (ConnectField("c", "string"), ["x", UNAVAILABLE, None]),
        (ConnectField("c", "string", "io.debezium.data.Json"), ["{}", f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}', None]),
        (ConnectField("c", "bytes"), [some, raw, None]),
        (ConnectField("c", "array", items=ConnectField("item", "string")), [["x"], [UNAVAILABLE], None]),
        # As the connector sends an unchanged large uuid[].
        (
            ConnectField("c", "array", items=ConnectField("item", "string", "io.debezium.data.Uuid")),
            [["0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"], ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], None],
        ),
        (ConnectField("c", "array", items=ConnectField("item", "int32")), [[1], list(UNAVAILABLE.encode()), None]),
    ):
        found = _finished(values, field, wire=wire)
        assert found.bad is None
        assert found.kept is not None
        assert found.kept.tolist() == [False, True, False]
        assert [value is None for value in found.array.to_pylist()] == [False, True, True]
    for placeholder in ("-gone-", "-unverändert-"):
        own = _finished([placeholder, UNAVAILABLE], ConnectField("c", "string"), placeholder=placeholder)
        assert own.kept is not None
        assert own.kept.tolist() == [True, False]


def test_a_value_of_another_sort_is_bad_not_another_value() -> None:
    found = convert_column(
        pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])), ConnectField("c", "int32"), Column("c", Kind.INT32), WireFormat.JSON
    )
    assert _bad(found) == [0]
    assert convert_column(pa.nulls(3), ConnectField("c", "int32"), Column("c", Kind.DATE), WireFormat.JSON).array.equals(
        pa.nulls(3, pa.date32())
    )


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (ConnectField("c", "int32", default=5), "5"),
        (ConnectField("c", "string", default=""), ""),
        (ConnectField("c", "bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "5"}, default=_digits(150)), "1.50"),
        (ConnectField("c", "string", "", {SOURCE_TYPE: "DECIMAL", SOURCE_LENGTH: "5", SOURCE_SCALE: "2"}, default="1.5"), "1.50"),
        (ConnectField("c", "bytes", default="YQA="), "0x6100"),
        (ConnectField("c", "bytes", "io.debezium.data.Bits", {"length": "3"}, default="BQ=="), "b'101'"),
        (ConnectField("c", "int32", "io.debezium.time.Date", default=20090), "2025-01-02"),
        (ConnectField("c", "int64", "io.debezium.time.Timestamp", default=0), "(current_timestamp())"),
        (ConnectField("c", "int64", "io.debezium.time.Timestamp", default=1500), "1970-01-01 00:00:01.500"),
        (ConnectField("c", "string", "io.debezium.data.Enum", {"allowed": "a,b"}, default="b"), "b"),
        (ConnectField("c", "int32"), None),
        (ConnectField("c", "int32", default="x"), None),
    ],
)
def test_defaults_are_spelled_as_the_source_spells_them(field: ConnectField, text: str | None) -> None:
    assert default_text(field, column_of(field)) == text
