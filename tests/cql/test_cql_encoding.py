"""Values and literals to serialised form (the driver's codecs are the reference), and the order of serialised values."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest
from cassandra.util import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cql.decode.value_order import order_key
from headrace.cql.language.lexer import CqlCursor
from headrace.cql.language.terms import Markers, Parameters, SerializedValue, read_term
from headrace.cql.language.value_encoder import encode, serialize
from headrace.cql.types import CqlType, parse_type
from headrace.errors import DefiniteError
from testkit.generators.cql_values import cql_types, cql_values, oracle_value, serialised

UDT = CqlType("udt", (CqlType("int"), CqlType("text")), keyspace="ks", udt="ut", fields=("a", "b c"))
_UNSORTED = {"set", "map"}


def _holds(kind: CqlType, names: set[str]) -> bool:
    return kind.name in names or any(_holds(arg, names) for arg in kind.args)


@settings(max_examples=80, deadline=None)
@given(cql_types().filter(lambda kind: not _holds(kind, _UNSORTED)).flatmap(lambda kind: st.tuples(st.just(kind), cql_values(kind))))
def test_values_are_serialised_as_the_driver_does(made: tuple[CqlType, object]) -> None:
    kind, value = made
    assert encode(kind, value) == serialised(kind, value)


def literal(kind: str, text: str, *parameters: object) -> object:
    """Return the value that the driver reads for a literal."""
    found = parse_type(kind, {"ut": UDT})
    return oracle_value(found, serialize(found, read_term(CqlCursor(text), Markers()), Parameters(parameters)))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "-5", -5),
        ("bigint", "9223372036854775807", (1 << 63) - 1),
        ("varint", "-170141183460469231731687303715884105729", str(-(1 << 127) - 1)),
        ("decimal", "-1.50", "-1.50"),
        ("decimal", "1e3", "1E+3"),
        ("double", "1", (1.0, 1.0)),
        ("double", "-Infinity", (float("-inf"), -1.0)),
        ("boolean", "TRUE", True),
        ("text", "'it''s'", "it's"),
        ("text", "$$it's$$", "it's"),
        ("blob", "0xCAfe", b"\xca\xfe"),
        ("blob", "0x", b""),
        ("inet", "'::1'", "::1"),
        ("uuid", "123E4567-e89b-12d3-a456-426614174000", UUID("123e4567-e89b-12d3-a456-426614174000").bytes),
        ("date", "'2020-02-29'", 18321),
        ("date", "2147483648", 0),
        ("time", "'01:02:03.000000004'", 3_723_000_000_004),
        ("timestamp", "'2020-01-01'", None),
        ("timestamp", "'2020-01-01T00:00:00.5Z'", 1_577_836_800_500),
        ("timestamp", "'2020-01-01 02:00+0200'", 1_577_836_800_000),
        ("timestamp", "'2020-01-01+00'", 1_577_836_800_000),
        ("timestamp", "-1", -1),
        ("duration", "1y2mo3w4d5h6m7s8ms9us10ns", {"months": 14, "days": 25, "nanoseconds": 18_367_008_009_010}),
        ("duration", "-P1Y2M3DT4H", {"months": -14, "days": -3, "nanoseconds": -14_400_000_000_000}),
        ("duration", "P2W", {"months": 0, "days": 14, "nanoseconds": 0}),
        ("duration", "P0001-02-03T04:05:06", {"months": 14, "days": 3, "nanoseconds": 14_706_000_000_000}),
        ("frozen<list<int>>", "[3, 1, 3]", [3, 1, 3]),
        ("frozen<set<int>>", "{3, -1, 3}", [-1, 3]),
        ("frozen<map<text, int>>", "{'b': 1, 'a': 2}", [("a", 2), ("b", 1)]),
        ("frozen<map<int, frozen<set<text>>>>", "{1: {'z', 'y'}, -1: {}}", [(-1, []), (1, ["y", "z"])]),
        ("tuple<int, text>", "(1, null)", {"1": 1, "2": None}),
        ("frozen<ut>", "{\"b c\": 'x'}", {"a": None, "b c": "x"}),
        ("vector<float, 2>", "[1, -2.5]", [(1.0, 1.0), (-2.5, -1.0)]),
        ("vector<text, 2>", "['a', 'bc']", ["a", "bc"]),
    ],
)
def test_literals_mean_what_the_driver_reads(kind: str, text: str, value: object) -> None:
    if value is None:
        with pytest.raises(DefiniteError, match="zone"):
            literal(kind, text)
    else:
        assert literal(kind, text) == value


def test_parameters_stand_anywhere_in_a_literal() -> None:
    assert literal("frozen<map<text, int>>", "{?: 1, 'a': ?}", "b", SerializedValue(b"\0\0\0\2")) == [("a", 2), ("b", 1)]
    assert literal("frozen<ut>", "?", {"a": 1}) == {"a": 1, "b c": None}
    assert literal("duration", "?", Duration(1, 2, 3)) == {"months": 1, "days": 2, "nanoseconds": 3}
    assert literal("decimal", "?", Decimal("1.5")) == "1.5"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("int", "1.5", "1.5 is no value of type int"),
        ("int", "2147483648", "no value of type int"),
        ("tinyint", "'1'", "'?1'? is no value"),
        ("boolean", "yes", "no value of type boolean"),
        ("ascii", "'ä'", "no value of type ascii"),
        ("timeuuid", "00000000-0000-4000-8000-000000000000", "no value of type timeuuid"),
        ("time", "'25:00:00'", "no value of type time"),
        ("frozen<list<int>>", "[1, null]", "null is not allowed"),
        ("frozen<list<int>>", "{1}", "1} is no value"),
        ("frozen<map<int, int>>", "{1: 1, 1: 2}", "twice"),
        ("frozen<ut>", "{z: 1}", "no field z"),
        ("frozen<ut>", "{{a: 1}}", "no value of type frozen<ut>"),
        ("vector<int, 2>", "[1]", "no value of type vector"),
        ("tuple<int>", "(1, 2)", "no value of type tuple"),
        ("uuid", "uuid()", "known to the server alone"),
        ("int", "?", "no parameter for marker 1"),
    ],
)
def test_values_that_do_not_fit_are_rejected(kind: str, text: str, said: str) -> None:
    with pytest.raises(DefiniteError, match=said):
        literal(kind, text)


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        ("int", ["-2", "-1", "0", "5"]),
        ("double", ["-1e300", "-1.5", "-0.0", "0.0", "2.5", "Infinity", "NaN"]),
        ("decimal", ["-2.5", "0", "0.10", "1.5", "10"]),
        ("varint", ["-1000000000000000000000", "-1", "0", "1000000000000000000000"]),
        ("text", ["''", "'a'", "'aa'", "'b'", "'ä'"]),
        ("boolean", ["false", "true"]),
        ("date", ["'1969-12-31'", "'1970-01-01'"]),
        (
            "timeuuid",
            ["50554d6e-29bb-11e5-b345-feff819cdc9f", "8ac6d1e0-29bb-11e5-b345-feff819cdc9f", "00000000-29bc-11e5-b345-feff819cdc9f"],
        ),
        ("uuid", ["ffffffff-29bb-11e5-b345-feff819cdc9f", "00000000-0000-4000-8000-000000000000", "ffffffff-ffff-4fff-bfff-ffffffffffff"]),
        ("tuple<int, int>", ["(null, 5)", "(-1, 2)", "(1, null)", "(1, 1)"]),
        ("frozen<list<int>>", ["[]", "[-1, 5]", "[1]", "[1, 2]"]),
        ("frozen<map<int, int>>", ["{-1: 5}", "{1: 0}", "{1: 0, 2: 0}", "{1: 1}"]),
        ("vector<text, 2>", ["['a', 'z']", "['b', 'a']"]),
    ],
)
def test_serialised_values_are_ordered_as_servers_do(kind: str, ordered: list[str]) -> None:
    found = parse_type(kind)
    raw = [serialize(found, read_term(CqlCursor(text), Markers()), Parameters()) or b"" for text in ordered]
    assert sorted(raw[1::2] + raw[::2], key=order_key(found)) == raw
