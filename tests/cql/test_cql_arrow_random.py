"""Random CQL types and values: Headrace reads the same as the driver; damage is an error or harmless, never a crash."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from testkit.generators.cql_values import cql_types, cql_values, oracle_value, plain_values, serialised

pytestmark = pytest.mark.scaled


@st.composite
def columns(draw: st.DrawFn) -> tuple[CqlType, list[bytes | None]]:
    kind = draw(cql_types())
    values = draw(st.lists(st.none() | cql_values(kind), min_size=1, max_size=8))
    return kind, [None if value is None else serialised(kind, value) for value in values]


def _alike(kind: CqlType, ours: Any, theirs: Any) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    match kind.name:
        case "list" | "vector":
            return len(ours) == len(theirs) and all(_alike(kind.args[0], *pair) for pair in zip(ours, theirs, strict=True))
        case "set":
            return all(any(_alike(kind.args[0], one, other) for one in ours) for other in theirs) and all(
                any(_alike(kind.args[0], one, other) for other in theirs) for one in ours
            )
        case "map":
            return all(any(_alike(kind.args[0], a, b) and _alike(kind.args[1], v, w) for a, v in ours) for b, w in theirs) and all(
                any(_alike(kind.args[0], a, b) for b, _ in theirs) for a, _ in ours
            )
        case "tuple" | "udt":
            return list(ours) == list(theirs) and all(
                _alike(arg, ours[name], theirs[name]) for arg, name in zip(kind.args, ours, strict=True)
            )
        case _:
            return bool(ours == theirs)


@given(columns())
def test_as_the_driver_reads(made: tuple[CqlType, list[bytes | None]]) -> None:
    kind, raw = made
    theirs = [oracle_value(kind, value) for value in raw]
    # The array begins in the middle of its buffers, as a slice of a page may.
    column = pa.array([b"before", None, *raw], pa.binary())[2:]
    ours = plain_values(kind, to_arrow(kind, column, "v"))
    assert all(_alike(kind, one, other) for one, other in zip(ours, theirs, strict=True)), (kind, ours, theirs)


@given(columns(), st.data())
def test_damage_is_named_or_harmless(made: tuple[CqlType, list[bytes | None]], data: st.DataObject) -> None:
    kind, raw = made
    assume(any(raw))
    victim = data.draw(st.sampled_from([place for place, value in enumerate(raw) if value]))
    value = bytearray(raw[victim] or b"")
    place = data.draw(st.integers(0, len(value) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "grow"])):
        case "flip":
            value[place] ^= data.draw(st.integers(1, 255))
        case "cut":
            del value[place:]
        case _:
            value += data.draw(st.binary(min_size=1, max_size=5))
    column = pa.array([bytes(value) if at == victim else other for at, other in enumerate(raw)], pa.binary())
    place_of = _place_of_damage(kind, column)
    assert place_of in {None, f"column v, row {victim}"}


def _place_of_damage(kind: CqlType, column: Any) -> str | None:
    try:
        to_arrow(kind, column, "v").validate(full=True)
    except DefiniteError as error:
        return error.place
    return None
