"""Converts CQL values to JSON, a column at a time; no Python runs per value.

As CQL's own `toJson` has them (a map is an object, a set, list, tuple or vector an array, a user type an object, a blob `"0x…"`), but for
what a reader of JSON would round or could not read: `varint` and `decimal` are strings, a duration is an object of its three numbers, and
`NaN` and `Infinity` are strings. A null value stays NULL, so that the caller can leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.types import CqlType
from headrace.model.text_values import format_uuids
from headrace.sinks.kafka.debezium.json_fragments import quoted

Texts = Any  # pa.StringArray, which pyarrow's stubs cannot narrow
NULL: Final = "null"
_TEXTS: Final = frozenset(("ascii", "text", "varint", "decimal", "inet"))
_UUIDS: Final = frozenset(("uuid", "timeuuid"))
_FLOATS: Final = frozenset(("float", "double"))
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")
_EARLIEST: Final = "-292275055-05-16T16:47:04.192"
"""The timestamp that numpy treats as null."""


def json_of(kind: CqlType, array: Any) -> Texts:
    """Encode each value of an array of `headrace.cql.decode.arrow_arrays.arrow_type(kind)` as JSON."""
    name = kind.name
    if name in _TEXTS:
        return quoted(array)
    if name in _UUIDS:
        return _in_quotes(format_uuids(array))
    if name in _FLOATS:
        return _floats(array)
    match name:
        case "blob":
            return _in_quotes(_hex(array))
        case "date":
            return _in_quotes(_days(array))
        case "timestamp":
            return _in_quotes(_moments(array))
        case "time":
            return _in_quotes(array.cast(pa.string()))
        case "duration":
            fields = [array.field(place).cast(pa.string()) for place in range(3)]
            return with_nulls_of(array, in_object([f.name for f in array.type], fields))
        case "list" | "set" | "vector":
            return with_nulls_of(array, in_lists(array.offsets, json_of(kind.args[0], array.values)))
        case "map":
            pairs = joined(member_names(kind.args[0], array.keys), ":", or_null(json_of(kind.args[1], array.items)))
            return with_nulls_of(array, in_lists(array.offsets, pairs, "{", "}"))
        case "tuple":
            parts = [or_null(json_of(part, array.field(place))) for place, part in enumerate(kind.args)]
            return with_nulls_of(array, joined("[", pc.binary_join_element_wise(*parts, ","), "]"))
        case "udt":
            fields = [or_null(json_of(part, array.field(place))) for place, part in enumerate(kind.args)]
            return with_nulls_of(array, in_object(kind.fields, fields))
    return array.cast(pa.string())


def member_names(kind: CqlType, keys: Any) -> Texts:
    """Encode keys of a map as JSON member names; other types become strings."""
    texts = json_of(kind, keys)
    if kind.name in _TEXTS or kind.name in _UUIDS or kind.name in ("blob", "date", "timestamp", "time"):
        return texts
    if kind.name in _FLOATS:
        return pc.if_else(pc.starts_with(texts, '"'), texts, _in_quotes(texts))
    return quoted(texts)


def joined(*parts: Any) -> Texts:
    """Concatenate texts; null if one of them is."""
    return pc.binary_join_element_wise(*parts, "")


def or_null(texts: Texts) -> Texts:
    """Replace NULL by JSON's null."""
    return pc.fill_null(texts, NULL) if texts.null_count else texts


def in_lists(offsets: Any, texts: Texts, opening: str = "[", closing: str = "]") -> Texts:
    """Join lists of texts to JSON arrays."""
    lists = pa.ListArray.from_arrays(offsets, or_null(texts))
    return joined(opening, pc.binary_join(lists, ","), closing)


def in_object(names: Sequence[str], texts: Sequence[Texts]) -> Texts:
    """Return JSON objects with all members."""
    members = [joined(f"{json.dumps(name, ensure_ascii=False)}:", text) for name, text in zip(names, texts, strict=True)]
    return joined("{", pc.binary_join_element_wise(*members, ","), "}")


def object_of(names: Sequence[str], texts: Sequence[Texts], rows: int) -> Texts:
    """Return JSON objects with the members that are not NULL."""
    if not names:
        return pa.array(["{}"] * rows, pa.string())
    members = [joined(f",{json.dumps(name, ensure_ascii=False)}:", text) for name, text in zip(names, texts, strict=True)]
    found = joined(*(pc.fill_null(member, "") for member in members))
    return pc.replace_substring(joined("{", found, "}"), "{,", "{", max_replacements=1)


def list_of(texts: Sequence[Texts], rows: int) -> Texts:
    """Return JSON arrays of the texts that are not NULL."""
    if not texts:
        return pa.array(["[]"] * rows, pa.string())
    found = joined(*(pc.fill_null(joined(",", text), "") for text in texts))
    return pc.replace_substring(joined("[", found, "]"), "[,", "[", max_replacements=1)


def only_where(condition: Any, texts: Texts) -> Texts:
    """Set NULL where a condition is false."""
    return pc.if_else(condition, texts, pa.scalar(None, pa.string()))


def with_nulls_of(array: Any, texts: Texts) -> Texts:
    return only_where(array.is_valid(), texts) if array.null_count else texts


def _in_quotes(texts: Texts) -> Texts:
    return joined('"', texts, '"')


def _floats(array: Any) -> Texts:
    """Return the shortest digits that give the same bits, always with a point."""
    digits = array.cast(pa.string())
    finite = pc.if_else(pc.match_substring_regex(digits, "[.e]"), digits, joined(digits, ".0"))
    if pc.all(pc.is_finite(array)).as_py() in (True, None):
        return finite
    named = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0.0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(pc.is_finite(array), finite, named)


def _hex(array: Any) -> Texts:
    rows = len(array)
    _, starts, content = array.buffers()
    if not rows or starts is None:
        return array.cast(pa.string())
    offsets = np.frombuffer(starts, np.int32)[array.offset : array.offset + rows + 1]
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content is not None else np.empty(0, np.uint8)
    places = ((offsets - offsets[0]) * 2).astype(np.int32)
    digits = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(places), pa.py_buffer(_HEX[data])])
    return with_nulls_of(array, joined("0x", digits))


def _days(array: Any) -> Texts:
    # Arrow spells no year above 32767.
    days = pc.fill_null(array.view(pa.int32()), 0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    return with_nulls_of(array, pa.array(np.datetime_as_string(days)))


def _moments(array: Any) -> Texts:
    millis = pc.fill_null(array.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    texts = np.datetime_as_string(millis.astype("datetime64[ms]"))
    if (texts == "NaT").any():
        texts = np.where(texts == "NaT", _EARLIEST, texts)
    return with_nulls_of(array, joined(pa.array(texts), "Z"))
