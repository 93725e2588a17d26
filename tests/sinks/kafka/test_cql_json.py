"""CQL values as JSON, read by Python's parser."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.types import CqlType
from headrace.sinks.kafka.scylla.log_documents import json_of
from testkit.generators.cql_values import cql_types, cql_values, serialised

pytestmark = pytest.mark.scaled


@st.composite
def columns(draw: st.DrawFn) -> tuple[CqlType, list[Any]]:
    kind = draw(cql_types())
    return kind, draw(st.lists(st.none() | cql_values(kind), min_size=1, max_size=6))


class Object(list[tuple[str, Any]]):
    """An object's members, in order."""


def _as_json(kind: CqlType, value: Any) -> Any:
    """Return the parser's expected result; objects as their members in order."""
    if value is None:
        return None
    match kind.name:
        case "list" | "set" | "vector":
            return [_as_json(kind.args[0], part) for part in value]
        case "tuple":
            return [_as_json(arg, part) for arg, part in zip(kind.args, value, strict=True)]
        case "udt":
            return Object((name, _as_json(arg, part)) for name, arg, part in zip(kind.fields, kind.args, value, strict=True))
        case "map":
            return Object((_member(_as_json(kind.args[0], key)), _as_json(kind.args[1], part)) for key, part in value)
        case "duration":
            return Object((name, getattr(value, name)) for name in ("months", "days", "nanoseconds"))
        case "blob":
            return "0x" + value.hex()
        case "date":
            return str(np.datetime64(value.days_from_epoch, "D"))
        case "time":
            return f"{value.hour:02}:{value.minute:02}:{value.second:02}.{value.nanosecond:09}"
        case "timestamp":
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
            return f"{moment.year:04}" + moment.strftime("-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
        case "float" | "double":
            return value if np.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
        case "bigint" | "int" | "smallint" | "tinyint" | "boolean":
            return value
        case _:
            return str(value)


def _member(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)


def _same(kind: CqlType, ours: Any, wanted: Any) -> bool:
    if kind.name == "float" and isinstance(wanted, float):
        return bool(np.float32(ours) == np.float32(wanted))
    if isinstance(wanted, Object) and kind.name == "udt":
        return [n for n, _ in ours] == list(kind.fields) and all(
            _same(arg, a, b) for arg, (_, a), (_, b) in zip(kind.args, ours, wanted, strict=True)
        )
    if isinstance(wanted, Object) and kind.name == "map":
        names = kind.args[0].name in ("ascii", "text", "int", "uuid", "blob", "boolean", "inet", "varint")
        return len(ours) == len(wanted) and all(
            (not names or a == b) and _same(kind.args[1], x, y) for (a, x), (b, y) in zip(ours, wanted, strict=True)
        )
    if isinstance(wanted, list) and kind.name in ("list", "set", "vector"):
        return len(ours) == len(wanted) and all(_same(kind.args[0], a, b) for a, b in zip(ours, wanted, strict=True))
    if isinstance(wanted, list) and kind.name == "tuple":
        return all(_same(arg, a, b) for arg, a, b in zip(kind.args, ours, wanted, strict=True))
    return type(ours) is type(wanted) and bool(ours == wanted)


@given(columns())
def test_written_values_are_read_back(made: tuple[CqlType, list[Any]]) -> None:
    kind, values = made
    raw = pa.array([None if value is None else serialised(kind, value) for value in values], pa.binary())
    texts = json_of(kind, to_arrow(kind, raw, "v"))
    for text, value in zip(texts.to_pylist(), values, strict=True):
        ours = None if text is None else json.loads(text, object_pairs_hook=Object)
        assert _same(kind, ours, _as_json(kind, value)), (kind, text, value)


def test_corners() -> None:
    def encoded(kind: str, *raw: bytes) -> list[Any]:
        return list(json_of(CqlType(kind), to_arrow(CqlType(kind), pa.array(raw, pa.binary()))).to_pylist())

    assert encoded("double", b"\x7f\xf8" + bytes(6), b"\xff\xf0" + bytes(6), b"\x40\x59" + bytes(6)) == ['"NaN"', '"-Infinity"', "100.0"]
    assert encoded("timestamp", b"\x80" + bytes(7), b"\x7f" + b"\xff" * 7, bytes(8)) == [
        '"-292275055-05-16T16:47:04.192Z"',
        '"292278994-08-17T07:12:55.807Z"',
        '"1970-01-01T00:00:00.000Z"',
    ]
    assert encoded("date", bytes(4), b"\xff" * 4, b"\x80\0\0\0") == ['"-5877641-06-23"', '"5881580-07-11"', '"1970-01-01"']
    assert encoded("text", 'a"\n€'.encode(), b"") == ['"a\\"\\n€"', '""']
    assert encoded("blob", b"", b"\0\xff") == ['"0x"', '"0x00ff"']
