"""Dataclasses that are stored or sent as JSON objects with one key per field.

Invariant: a record that is encoded and decoded is equal. A field may hold JSON values, tuples of one type, enumerations, other dataclasses,
and classes with their own `to_json` and `from_json`. A key that is missing takes the field's default, so old files stay readable.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Self, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """Base of frozen dataclasses; the types of their fields decide how values are decoded."""

    def to_json(self) -> dict[str, Any]:
        return _encode_fields(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls(**_decode_fields(cls, raw))


_field_types = functools.cache(get_type_hints)


def _encode_fields(record: Any) -> dict[str, Any]:
    return {one.name: _encode(getattr(record, one.name)) for one in fields(record)}


def _encode(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return _encode_fields(value)
    return [_encode(one) for one in value] if isinstance(value, tuple) else value


def _decode_fields(kind: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    kinds = _field_types(kind)
    return {name: _decode(kinds.get(name), value) for name, value in raw.items()}


def _decode(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, types.UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        return tuple(_decode(get_args(kind)[0], one) for one in value)
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if not isinstance(kind, type):
        return value
    if is_dataclass(kind):
        return kind(**_decode_fields(kind, value))
    return kind(value) if issubclass(kind, Enum) else value
