"""Records as JSON: nested records, enumerations, tuples and defaults come back equal; unknown keys are errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from headrace.model.json_record import JsonRecord
from headrace.model.schema import Column, Kind, TableName, TableSchema


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part(JsonRecord):
    colours: tuple[Colour, ...] = ()
    inner: Part | None = None


@dataclass(frozen=True, slots=True)
class Whole(JsonRecord):
    table: TableSchema
    names: tuple[TableName, ...]
    part: Part
    raw: dict[str, Any]
    size: int = 7


WHOLE = Whole(
    TableSchema(TableName("shop", "t"), (Column("id", Kind.INT32),), ("id",)),
    (TableName("a", "b"),),
    Part((Colour.RED,), Part()),
    {"k": [1, None]},
)


def test_records_come_back_equal() -> None:
    text = json.dumps(WHOLE.to_json())
    found = Whole.from_json(json.loads(text))
    assert found == WHOLE
    assert type(found.part.colours[0]) is Colour
    assert json.loads(text)["part"] == {"colours": ["red"], "inner": {"colours": [], "inner": None}}


def test_missing_keys_take_defaults_and_unknown_ones_are_errors() -> None:
    raw = {name: value for name, value in WHOLE.to_json().items() if name != "size"}
    assert Whole.from_json(raw) == WHOLE
    for wrong in ({**raw, "colour": 1}, {"size": 1}):
        with pytest.raises(TypeError):
            Whole.from_json(wrong)
    with pytest.raises(ValueError, match="blue"):
        Part.from_json({"colours": ["blue"]})
