"""Lists, maps and structs of events as JSON text.

What lies in them is what a column of its own would show: a date is a date, a decimal all its digits in text, bytes are base64. These rows
are gone through one by one; no other values are.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sources.debezium.events.fields import ConnectField
from headrace.sources.debezium.types.binary import Array, Mask, ParsedColumn, struct_parts, valid_rows

Leaf = Callable[[Array, ConnectField], tuple[list[Any], Mask]]
"""Values that hold no others, as Python has them, and which of them are bad."""


def documents(array: Array, field: ConnectField, leaf: Leaf) -> ParsedColumn:
    """Return nested values as JSON texts; strings stay unchanged."""
    if not pa.types.is_nested(array.type):
        return ParsedColumn(array.cast(pa.string()))
    values, bad = _plain(array, field, leaf)
    texts = [None if value is None else orjson.dumps(value).decode() for value in values]
    made = pa.array(texts, pa.string(), mask=bad) if bad.any() else pa.array(texts, pa.string())
    return ParsedColumn(made, bad if bad.any() else None)


def _plain(array: Array, field: ConnectField, leaf: Leaf) -> tuple[list[Any], Mask]:
    if pa.types.is_list(array.type) and field.items is not None:
        return _list(array, field.items, leaf)
    if pa.types.is_struct(array.type) and not field.semantic.startswith("io.debezium.data."):
        return _struct(array, field, leaf)
    if field.type == "map" and pa.types.is_string(array.type):
        return [None if text is None else orjson.loads(text) for text in array.to_pylist()], np.zeros(len(array), np.bool_)
    values, bad = leaf(array, field)
    return [_json_value(value) for value in values], bad


def _list(array: Array, items: ConnectField, leaf: Leaf) -> tuple[list[Any], Mask]:
    inner, wrong = _plain(array.flatten(), items, leaf)
    bad = np.zeros(len(array), np.bool_)
    if wrong.any():
        bad[pc.list_parent_indices(array).to_numpy()[wrong]] = True
    values: list[Any] = []
    at = 0
    for size in pc.list_value_length(array).to_pylist():
        values.append(None if size is None else inner[at : at + size])
        at += size or 0
    return values, bad


def _struct(array: Array, field: ConnectField, leaf: Leaf) -> tuple[list[Any], Mask]:
    bad = np.zeros(len(array), np.bool_)
    parts: dict[str, list[Any]] = {}
    inner = struct_parts(array)
    for part in field.fields:
        parts[part.name], wrong = _plain(inner[part.name], part, leaf)
        bad |= wrong
    there = valid_rows(array)
    rows = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    return [row if valid else None for row, valid in zip(rows, there, strict=True)], bad & there


def _json_value(value: Any) -> Any:
    """What JSON has no form for, as text."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
