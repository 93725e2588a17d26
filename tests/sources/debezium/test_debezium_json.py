"""The compiled JSON scanner, compared with Python's parser: fields in any order, any spacing and escapes, and damaged texts."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.sources.debezium.events.parsed_events import ConnectField
from headrace.sources.debezium.formats.json_columns import ScannedRecords, TextColumn, build_program, members_of_paths, wire_array
from headrace.sources.debezium.formats.json_records import group_records

pytestmark = pytest.mark.scaled

FIELDS = (
    ConnectField("id", "int64"),
    ConnectField("small", "int16"),
    ConnectField("text", "string"),
    ConnectField('odd "name\\ é', "string"),
    ConnectField("double", "float64"),
    ConnectField("flag", "boolean"),
    ConnectField("geo", "struct", fields=(ConnectField("wkb", "bytes"), ConnectField("srid", "int32"))),
    ConnectField("list", "array", items=ConnectField("item", "float64")),
    ConnectField("map", "map"),
)
PROGRAM = build_program(members_of_paths(FIELDS))
ROW = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "small": st.none() | st.integers(-(1 << 15), (1 << 15) - 1),
        "text": st.none() | st.text(max_size=30),
        'odd "name\\ é': st.none() | st.text(max_size=5),
        "double": st.none() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.none() | st.booleans(),
        "geo": st.none() | st.fixed_dictionaries({}, optional={"wkb": st.text(max_size=4), "srid": st.none() | st.integers(-9, 9)}),
        "list": st.none() | st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=4),
        "map": st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3),
        "unwanted": st.recursive(
            st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
            max_leaves=8,
        ),
    },
)


def written(row: Any, dice: random.Random) -> str:
    """A document with random spacing and escapes."""
    match row:
        case dict():
            members = list(row.items())
            dice.shuffle(members)
            inside = ",".join(f"{gap(dice)}{written(name, dice)}{gap(dice)}:{written(value, dice)}" for name, value in members)
            found = f"{{{inside or gap(dice)}}}"
        case list():
            found = f"[{','.join(written(value, dice) for value in row) or gap(dice)}]"
        case str() if dice.random() < 0.3:
            found = '"' + "".join(escaped(character, dice) for character in row) + '"'
        case _:
            found = json.dumps(row, ensure_ascii=dice.random() < 0.5)
    return gap(dice) + found + gap(dice)


def gap(dice: random.Random) -> str:
    return dice.choice(["", "", "", " ", "\n", "\t\r "])


def escaped(character: str, dice: random.Random) -> str:
    if character in '"\\' or character < " " or dice.random() < 0.5:
        return "".join(f"\\u{unit:04x}" for unit in np.frombuffer(character.encode("utf-16-le"), np.uint16))
    return "\\/" if character == "/" and dice.random() < 0.5 else character


def scanned(texts: list[bytes]) -> ScannedRecords:
    return ScannedRecords(TextColumn.of(pa.array(texts, pa.binary())), PROGRAM)


def expected(row: dict[str, Any], field: ConnectField) -> Any:
    value = row.get(field.name)
    if value is None:
        return None
    match field.type:
        case "struct":
            return {inner.name: value.get(inner.name) for inner in field.fields}
        case "float64":
            return float(value)
    return value


@given(st.lists(ROW, max_size=5), st.integers(0, 1 << 32))
def test_rows_are_read_however_they_are_written(rows: list[dict[str, Any]], seed: int) -> None:
    dice = random.Random(seed)
    found = scanned([written(row, dice).encode() for row in rows])
    arrays = {field.name: wire_array(found, field, (field.name,)).to_pylist() for field in FIELDS}
    assert found.problems == {}
    for place, row in enumerate(rows):
        for field in FIELDS:
            value = arrays[field.name][place]
            if field.type == "map" and value is not None:
                value = json.loads(value)
            assert value == expected(row, field)
            if field.type == "float64" and value is not None:
                assert math.copysign(1, value) == math.copysign(1, expected(row, field))


def refusal(text: bytes) -> bool:
    """Whether Python's parser, or the rules of an event, reject a text."""
    try:
        decoded = text.decode()
        document = json.loads(decoded, object_pairs_hook=unique, parse_constant=no_constant)
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return True
    return not isinstance(document, dict)


class Twice(dict[str, Any]):
    """An object with a repeated member."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Twice(found)


def no_constant(name: str) -> Any:
    raise ValueError(name)


SAMPLE = json.dumps(
    {"id": -12, "text": 'a\\"é🙂', "unwanted": [{"x": [1.5e-3, True, None]}, "\\"], "geo": {"wkb": "AQ==", "srid": 4}, "list": [1, 2.5]},
    ensure_ascii=False,
).encode()


@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 3), st.binary(min_size=1, max_size=2)), max_size=4))
@example([(0, 1, b" ")])
def test_damaged_texts_are_refused_exactly_when_they_are_no_json(wounds: list[tuple[int, int, bytes]]) -> None:
    text = bytearray(SAMPLE)
    for at, how, with_what in wounds:
        place = at % max(len(text), 1)
        match how:
            case 0:
                text[place : place + 1] = with_what
            case 1:
                text[place:place] = with_what
            case 2:
                del text[place:]
            case 3:
                text[place:place] = text[place : place + 20]
    whole = bytes(text)
    found = scanned([SAMPLE, whole, SAMPLE])
    assert 0 not in found.problems
    assert 2 not in found.problems
    if 1 in found.problems and "twice" in found.problems[1]:
        return
    assert (1 in found.problems) == refusal(whole), (whole, found.problems)
    if 1 not in found.problems:
        same_as_parsed(found, whole)


def same_as_parsed(found: ScannedRecords, text: bytes) -> None:
    """Accepted texts give Python's values, or an error of type."""
    document = json.loads(text)
    for field in FIELDS:
        value = wire_array(found, field, (field.name,)).to_pylist()[1]
        if 1 in found.problems:
            return
        read = document.get(field.name)
        if field.type == "map" and value is not None:
            value = json.loads(value)
        elif field.type == "struct" and isinstance(read, dict):
            read = {inner.name: read.get(inner.name) for inner in field.fields}
        assert value == read, (field.name, text)


@given(
    st.lists(
        st.sampled_from([b"{", b"}", b"[", b"]", b'"', b",", b":", b"1", b"-", b".", b"e", b"null", b"\\", b" ", b"\xc3", b"\xa9"]),
        max_size=12,
    )
)
def test_any_bytes_are_read_as_python_reads_them(parts: list[bytes]) -> None:
    text = b"".join(parts)
    found = scanned([text])
    assert (0 in found.problems) == refusal(text), (text, found.problems)


@given(ROW, ROW, st.booleans(), st.integers(0, 1 << 32))
def test_schemas_are_taken_off_wherever_they_stand(one: dict[str, Any], other: dict[str, Any], last: bool, seed: int) -> None:
    schema = {"type": "struct", "optional": False, "fields": [{"type": "int64", "optional": True, "field": "id"}], "name": "a.b.c.Value"}
    dice = random.Random(seed)
    texts = []
    for row in (one, one, other, one):
        wrapped = {"schema": schema, "payload": row} if last else {"payload": row, "schema": schema}
        texts.append(
            json.dumps(wrapped, separators=dice.choice([(",", ":"), (", ", ": ")])).encode() + dice.choice([b"", b" "]).strip(b"\n")
        )
    plain = json.dumps({"schema": "a text", "payload": 1}).encode()
    values = TextColumn.of(pa.array([*texts, plain], pa.binary()))
    parts = group_records(values, TextColumn.of(pa.array([None] * 5, pa.binary()))).parts
    payloads: dict[int, Any] = {}
    for part in parts:
        assert (part.value is None) == (4 in part.rows)
        for place, row in enumerate(part.rows.tolist()):
            payloads[row] = json.loads(part.payloads.text(place))
    assert payloads == {0: one, 1: one, 2: other, 3: one, 4: {"schema": "a text", "payload": 1}}
