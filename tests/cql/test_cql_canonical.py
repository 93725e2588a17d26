"""Canonical bytes are equal exactly if the values are, and can be decoded."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.decode.canonical_bytes import canonical, to_python
from headrace.cql.language.value_encoder import encode
from headrace.cql.types import CqlType, parse_type
from testkit.generators.cql_values import cql_types, cql_values, oracle_value, serialised

PAIRS = cql_types().flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | cql_values(kind), min_size=1, max_size=4)))


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_values_are_equal_just_where_their_bytes_are(drawn: tuple[CqlType, list[object]]) -> None:
    kind, values = drawn
    raw = [None if value is None else serialised(kind, _once(kind, value)) for value in values]
    found = canonical(kind, to_arrow(kind, pa.array(raw, pa.binary()))).to_pylist()
    again = canonical(kind, pa.concat_arrays([to_arrow(kind, pa.array([one], pa.binary())) for one in raw])).to_pylist()
    assert found == again
    plain = [_plain(kind, oracle_value(kind, one)) for one in raw]
    assert [[one == other for other in plain] for one in plain] == [[one == other for other in found] for one in found]
    for one, other in zip(raw, found, strict=True):
        alone = canonical(kind, to_arrow(kind, pa.array([None, one, None], pa.binary()))[1:2]).to_pylist()
        assert alone == [other]
        # (Sets and maps are unordered here, and empty collections are null.)
        if kind.name not in {"set", "map", "list", "vector", "tuple", "udt", "duration"}:
            assert encode(kind, to_python(kind, other)) == one
        else:
            to_python(kind, other)


def _once(kind: CqlType, value: Any) -> Any:
    """A value as servers store it: elements of sets and keys of maps are unique."""
    match kind.name:
        case _ if value is None:
            return None
        case "list" | "vector":
            return [_once(kind.args[0], part) for part in value]
        case "set":
            return list({serialised(kind.args[0], part): part for part in (_once(kind.args[0], part) for part in value)}.values())
        case "map":
            pairs = [(_once(kind.args[0], key), _once(kind.args[1], part)) for key, part in value]
            return list({serialised(kind.args[0], key): (key, part) for key, part in pairs}.values())
        case "tuple" | "udt":
            return tuple(_once(arg, part) for arg, part in zip(kind.args, value, strict=True))
        case _:
            return value


def _plain(kind: CqlType, value: Any) -> Any:
    """Return the driver's value with null for empty collections."""
    match kind.name:
        case "list" | "vector":
            return [_plain(kind.args[0], part) for part in value] if value else None
        case "set":
            return sorted(repr(_plain(kind.args[0], part)) for part in value) if value else None
        case "map":
            return sorted(repr([_plain(arg, part) for arg, part in zip(kind.args, pair, strict=True)]) for pair in value) if value else None
        case "tuple" | "udt":
            parts = [_plain(arg, part) for arg, part in zip(kind.args, value.values(), strict=True)] if value else []
            return parts if any(part is not None for part in parts) else None
        case _:
            return value


def _one(text: str, array: pa.Array) -> list[object]:
    kind = parse_type(text)
    return [to_python(kind, raw) for raw in canonical(kind, array).to_pylist()]


def test_sets_and_maps_have_no_order_and_lists_have() -> None:
    maps = pa.array([[(2, "b"), (1, "a")], [(1, "a"), (2, "b")], [], None], pa.map_(pa.int32(), pa.string()))
    first, second, empty, null = canonical(parse_type("map<int, text>"), maps).to_pylist()
    assert first == second
    assert empty is None
    assert null is None
    lists = pa.array([[2, 1], [1, 2], [2, 1]], pa.list_(pa.int32()))
    found = canonical(parse_type("list<int>"), lists).to_pylist()
    assert found[0] == found[2] != found[1]
    assert len(set(canonical(parse_type("set<int>"), lists).to_pylist())) == 1
    assert _one("map<int, text>", maps)[0] == {1: "a", 2: "b"}
    assert _one("list<int>", lists) == [[2, 1], [1, 2], [2, 1]]


def test_what_clickhouse_gives_is_what_arrow_has() -> None:
    uuids = pa.array([b"\1" * 16, None], pa.uuid())
    assert canonical(CqlType("uuid"), uuids).equals(canonical(CqlType("uuid"), pa.array([b"\1" * 16, None], pa.binary(16))))
    assert _one("uuid", uuids) == [UUID("01010101-0101-0101-0101-010101010101"), None]
    texts = canonical(CqlType("text"), pa.chunked_array([["a", None], [""]]))
    assert texts.equals(canonical(CqlType("text"), pa.array([b"a", None, b""])))
    zeros = canonical(CqlType("double"), pa.array([0.0, -0.0])).to_pylist()
    assert zeros[0] != zeros[1]
    durations = pa.array(
        [{"months": 1, "days": 2, "nanoseconds": 3}, None], pa.struct({"months": pa.int32(), "days": pa.int32(), "nanoseconds": pa.int64()})
    )
    assert _one("duration", durations) == [(1, 2, 3), None]
    empty = pa.array([{"1": None, "2": None}, None, {"1": 1, "2": None}], pa.struct({"1": pa.int32(), "2": pa.string()}))
    assert _one("tuple<int, text>", empty) == [None, None, (1, None)]
