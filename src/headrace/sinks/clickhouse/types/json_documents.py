"""Normalises JSON documents as ClickHouse's JSON type stores them, so that source text and stored text can be compared.

The type stores values by path (keys joined by dots) and renders its own document. It loses the order of keys, keys whose value is null or
an empty object, the difference between `{"a.b": 1}` and `{"a": {"b": 1}}`, and number formats. An integer beyond 64 bits becomes text, and
one beyond 53 bits in an array may become a fraction. Equal results here mean equal documents. Runs row by row in Python, and only for
comparisons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def normalize_source_documents(array: Any) -> Any:
    """Return the source's documents as the type stores them."""
    return _canonical(array, _source_integer)


def normalize_stored_documents(array: Any) -> Any:
    """Return the stored documents in the same form."""
    return _canonical(array.cast(pa.string()), _stored_integer)


def _canonical(array: Any, integer: Any) -> Any:
    texts = [None if text is None else _canonical_text(text, integer) for text in array.to_pylist()]
    return pa.array(texts, pa.string())


def _canonical_text(text: str, integer: Any) -> str:
    return json.dumps(_kept(json.loads(text, parse_int=integer)), sort_keys=True, ensure_ascii=False)


def _source_integer(digits: str) -> int | float | str:
    number = int(digits)
    if digits == "-0":
        return -0.0
    return number if _LEAST <= number <= _MOST else digits


def _stored_integer(digits: str) -> int | float:
    """Parse an integer that the type rendered: an integer, or a float with an integral value."""
    number = int(digits)
    return number if _LEAST <= number <= _MOST and digits != "-0" else float(digits)


def _kept(value: Any) -> Any:
    match value:
        case dict():
            return dict(_paths(value))
        case list():
            return [_kept(float(one) if type(one) is int else one) for one in value]
        case float() if value.is_integer() and _LEAST <= value <= _MOST and str(value) != "-0.0":
            return int(value)
    return value


def _paths(document: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{before}{key}.")
        elif value is not None:
            yield before + key, _kept(value)
