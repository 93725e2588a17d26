"""Serialised CQL values to Arrow, by bytes written out: extremes, empty values, nulls in made types, short tuples, every kind of damage."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.cql.decode.arrow_arrays import Cells, arrow_type, split_collections, split_tuples, to_arrow
from headrace.cql.types import NATIVE, CqlType, parse_type
from headrace.errors import DefiniteError
from testkit.generators.cql_values import oracle_value, plain_values, serialised

UDT = CqlType("udt", (CqlType("int"), CqlType("text"), CqlType("bigint")), True, "ks", "ut", ("a", "b", "c"))


def _kind(text: str) -> CqlType:
    return parse_type(text, {"ut": UDT})


def _read(text: str, *raw: bytes | None) -> list[Any]:
    kind = _kind(text)
    return plain_values(kind, to_arrow(kind, pa.array(raw, pa.binary()), "v"))


def _value(raw: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if raw is None else struct.pack(">i", len(raw)) + raw


def _collection(*parts: bytes | None, count: int | None = None) -> bytes:
    return struct.pack(">i", len(parts) if count is None else count) + b"".join(map(_value, parts))


def _int(number: int) -> bytes:
    return struct.pack(">i", number)


def test_numbers() -> None:
    assert _read("tinyint", b"\x80", b"\x7f", None) == [-128, 127, None]
    assert _read("smallint", b"\x80\x00", b"\x7f\xff") == [-32768, 32767]
    assert _read("int", _int(-(2**31)), _int(2**31 - 1), _int(0)) == [-(2**31), 2**31 - 1, 0]
    assert _read("bigint", b"\x80" + b"\x00" * 7, b"\xff" * 8) == [-(2**63), -1]
    assert _read("boolean", b"\x00", b"\x01", b"\x02", None) == [False, True, True, None]
    assert _read("float", struct.pack(">f", -0.0), struct.pack(">f", float("inf"))) == [(0.0, -1.0), (float("inf"), 1.0)]
    found = to_arrow(CqlType("double"), pa.array([b"\x7f\xf8\x00\x00\x00\x00\x00\x01"], pa.binary()))
    assert found.buffers()[1].to_pybytes()[::-1] == b"\x7f\xf8\x00\x00\x00\x00\x00\x01"  # NaN, bit for bit


def test_moments() -> None:
    assert _read("date", b"\x00\x00\x00\x00", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff") == [-(2**31), 0, 2**31 - 1]
    assert _read("time", struct.pack(">q", 0), struct.pack(">q", 86_399_999_999_999)) == [0, 86_399_999_999_999]
    assert _read("timestamp", struct.pack(">q", -(2**63)), struct.pack(">q", 2**63 - 1)) == [-(2**63), 2**63 - 1]
    moment = to_arrow(CqlType("timestamp"), pa.array([struct.pack(">q", 1_606_390_225_588)], pa.binary()))
    assert moment[0].as_py() == datetime.fromisoformat("2020-11-26T11:30:25.588+00:00")


def test_long_numbers() -> None:
    numbers = [0, 1, -1, 127, 128, -128, -129, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**18, 10**76, -(10**200), 256**40, -(256**40)]
    raw = [number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True) for number in numbers]
    assert _read("varint", *raw, None, b"") == [*map(str, numbers), None, None]
    assert _read("varint", b"\x00" * 30 + b"\x05", b"\xff" * 30) == ["5", "-1"]  # longer than necessary
    scales = [0, 1, 5, -1, -7, 60, 2**31 - 1, -(2**31)]
    pairs = [(number, scale) for number in numbers for scale in scales]
    texts = _read("decimal", *(_int(scale) + raw[numbers.index(number)] for number, scale in pairs))
    assert texts == [str(Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))) for number, scale in pairs]
    assert texts[1] == "0.0"  # the scale is kept


def test_addresses() -> None:
    texts = [
        "0.0.0.0",
        "255.10.9.1",
        "::",
        "::1",
        "1::",
        "::ffff:1.2.3.4",
        "::1.2.3.4",
        "1:0:0:2::3",
        "0:1::",
        "fe80::aB:0:0:1",
        "1:2:3:4:5:6:7:8",
    ]
    texts += ["1:0:2:0:3:0:4:0", "::2", "0:0:1::", "::ffff:0:1", "64:ff9b::1"]
    raw = [ipaddress.ip_address(text).packed for text in texts]
    assert _read("inet", *raw) == [socket.inet_ntop(socket.AF_INET if len(one) == 4 else socket.AF_INET6, one) for one in raw]


def test_durations() -> None:
    raw = [b"\x00\x00\x00", b"\x02\x04\x06", b"\x01\x03\x05", bytes.fromhex("f0fffffffe f0fffffffe fffffffffffffffffe"), None]
    parts = [(0, 0, 0), (1, 2, 3), (-1, -2, -3), (2**31 - 1, 2**31 - 1, 2**63 - 1)]
    assert _read("duration", *raw) == [*({"months": m, "days": d, "nanoseconds": n} for m, d, n in parts), None]


def test_empty_values_are_null_but_for_texts_and_blobs() -> None:
    for name in sorted(NATIVE):
        expected: Any = {"text": "", "ascii": "", "blob": b""}.get(name)
        assert _read(name, b"", None) == [expected, None]
        if name not in {"text", "ascii", "blob"}:
            assert oracle_value(CqlType(name), b"") is None
    assert _read("list<int>", _collection(b"", _int(1))) == [[None, 1]]


def test_collections() -> None:
    assert _read("list<int>", _collection(_int(1), _int(2)), _collection(), None, _collection(None, _int(3))) == [
        [1, 2],
        [],
        None,
        [None, 3],
    ]
    pairs = _collection(_int(1), b"one", _int(2), None, count=2)
    assert _read("map<int, text>", pairs, None, _collection()) == [[(1, "one"), (2, None)], None, []]
    inner = _kind("list<frozen<map<text, frozen<set<int>>>>>")
    value = [[("a", [1, 2])], [], [("b", []), ("c", [3])]]
    raw = serialised(inner, value)
    assert plain_values(inner, to_arrow(inner, pa.array([raw, None, raw], pa.binary()))) == [value, None, value]


def test_short_tuples_have_nulls_at_their_end() -> None:
    """A user type's value from before ALTER TYPE ... ADD."""
    first, second = _value(_int(1)), _value(b"b")
    values = [first + second + _value(None), first + second, first, _value(None) * 3, None]
    assert _read("frozen<ut>", *values) == [
        {"a": 1, "b": "b", "c": None},
        {"a": 1, "b": "b", "c": None},
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": None, "c": None},
        None,
    ]
    assert _read("tuple<int, text>", first) == [{"1": 1, "2": None}]


def test_vectors() -> None:
    assert _read("vector<float, 2>", struct.pack(">2f", 1.5, -2.5), None) == [[(1.5, 1.0), (-2.5, -1.0)], None]
    assert _read("vector<text, 2>", b"\x01a\x00") == [["a", ""]]
    assert _read("vector<smallint, 2>", b"\x02\x00\x01\x02\xff\xff") == [[1, -1]]
    assert _read("vector<vector<int, 2>, 2>", b"".join(map(_int, range(4)))) == [[[0, 1], [2, 3]]]
    long = b"x" * 300
    assert _read("vector<blob, 1>", b"\x81\x2c" + long) == [[long]]


def test_parts_without_a_type() -> None:
    """The splitting functions return parts without copying them."""
    column = pa.array([_collection(_int(1), b"one", count=1), None, _collection(_int(2), None, _int(3), b"", count=2)], pa.binary())
    offsets, (keys, values) = split_collections(Cells.of(column), 2)
    assert offsets.tolist() == [0, 1, 1, 3]
    assert keys.binary().to_pylist() == [_int(1), _int(2), _int(3)]
    assert values.binary().to_pylist() == [b"one", None, b""]
    first, second = split_tuples(Cells.of(pa.array([_value(b"x") + _value(b"y"), _value(b"z"), None], pa.binary())), 2)
    assert first.binary().to_pylist() == [b"x", b"z", None]
    assert second.binary().to_pylist() == [b"y", None, None]
    assert second.take(first.sizes > 0).binary().to_pylist() == [b"y", None]


def test_no_rows() -> None:
    for name in [*sorted(NATIVE), "list<int>", "map<int, text>", "frozen<ut>", "vector<text, 3>", "vector<float, 3>"]:
        kind = _kind(name)
        assert to_arrow(kind, pa.array([], pa.binary())).type == arrow_type(kind)
        assert _read(name, None, None) == [None, None]


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        ("int", b"\x00", "it has not 4 bytes"),
        ("tinyint", b"\x00\x00", "it has not 1 byte"),
        ("uuid", b"\x00" * 15, "it has not 16 bytes"),
        ("inet", b"\x00" * 5, "neither 4 nor 16"),
        ("decimal", b"\x00\x00\x00\x01", "no digits"),
        ("decimal", b"\x00", "no digits"),
        ("time", struct.pack(">q", 86_400_000_000_000), "not within a day"),
        ("time", struct.pack(">q", -1), "not within a day"),
        ("text", b"a\xff", "not UTF-8"),
        ("ascii", b"abcdefgh\x80", "not ASCII"),
        ("duration", b"\x00\x00", "months, days and nanoseconds"),
        ("duration", b"\x02\x01\x00", "months, days and nanoseconds"),
        ("duration", bytes.fromhex("f800000002 00 00".replace(" ", "")), "months, days and nanoseconds"),
        ("duration", b"\x00\x00\x00\x00", "months, days and nanoseconds"),
        ("list<int>", b"\x00\x00", "number of elements"),
        ("list<int>", _int(-1), "number of elements"),
        ("list<int>", _int(2**31 - 1), "number of elements"),
        ("list<int>", _int(1) + _int(-2), "length is not possible"),
        ("list<int>", _int(1) + _int(5) + b"1234", "length is not possible"),
        ("list<int>", _collection(_int(1)) + b"x", "left over"),
        ("list<int>", _collection(b"\x00"), "within it, it has not 4 bytes"),
        ("set<int>", _collection(None), "within it, an element is null"),
        ("map<int, int>", _collection(None, _int(1), count=1), "within it, a key is null"),
        ("map<int, int>", _collection(b"", _int(1), count=1), "a key is empty"),
        ("map<int, int>", _collection(_int(1), count=1), "length is not possible"),
        ("frozen<ut>", _value(_int(1)) * 4, "more fields than its type"),
        ("frozen<ut>", _value(_int(1)) * 3, "it has not 8 bytes"),
        ("frozen<ut>", _value(None) * 4, "more fields than its type"),
        ("frozen<ut>", b"\x00\x00", "length is not possible"),
        ("frozen<ut>", _int(-2), "length is not possible"),
        ("vector<float, 2>", b"\x00" * 12, "has not 2 elements"),
        ("vector<text, 2>", b"\x01a", "length is not possible"),
        ("vector<text, 1>", b"\x05a", "length is not possible"),
        ("vector<text, 1>", b"\xff" * 9, "length is not possible"),
        ("vector<text, 1>", b"\x01ab", "left over"),
        ("list<frozen<list<text>>>", _collection(_collection(b"ok"), _collection(b"ok", b"\xff")), "within it, within it, it is not UTF-8"),
    ],
)
def test_damage_is_named(kind: str, raw: bytes, reason: str) -> None:
    column = pa.array([None, None, raw], pa.binary())
    with pytest.raises(DefiniteError, match=re.escape(reason)) as found:
        to_arrow(_kind(kind), column, "v")
    assert found.value.place == "column v, row 2"
    assert "0x" in found.value.message


def test_the_first_bad_text_of_many_is_found() -> None:
    raw = [b"fine"] * 1000
    raw[637] = raw[800] = b"\xc3\x28"
    with pytest.raises(DefiniteError) as found:
        to_arrow(CqlType("text"), pa.array(raw, pa.binary()), "v")
    assert found.value.place == "column v, row 637"
