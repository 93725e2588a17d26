"""Values that are not in an event because they did not change and the source did not log them (PostgreSQL's TOAST).

Debezium puts a placeholder there, in a form that depends on the field's type. It is no value, and not NULL: what the sink has is to stay.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from base64 import b64encode, urlsafe_b64encode
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sources.debezium.events.fields import ConnectField, WireFormat
from headrace.sources.debezium.types.binary import Array, Mask, struct_parts

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's default; a connector may set another `unavailable.value.placeholder`."""


def unavailable(array: Array, field: ConnectField, column: Column, wire: WireFormat, placeholder: str = UNAVAILABLE) -> Mask | None:
    """The rows that hold the placeholder; None if there are none."""
    found = _find(array, field, column, wire, placeholder)
    return found if found is not None and found.any() else None


def _find(array: Array, field: ConnectField, column: Column, wire: WireFormat, placeholder: str) -> Mask | None:
    match field.type:
        case "string" | "map" if pa.types.is_string(array.type):
            return _one_of(array, _texts(column, placeholder))
        case "bytes":
            raw = placeholder.encode()
            return _one_of(array, [b64encode(raw).decode()] if wire is WireFormat.JSON else [raw])
        case "array" if pa.types.is_list(array.type):
            return _lists(array, placeholder)
        case "struct" if pa.types.is_struct(array.type):
            inner = next((part for part in field.fields if part.name in ("wkb", "value") and part.type == "bytes"), None)
            return None if inner is None else _find(struct_parts(array)[inner.name], inner, column, wire, placeholder)
    return None


def _texts(column: Column, placeholder: str) -> list[str]:
    raw = placeholder.encode()
    texts = [placeholder, f'{{"{placeholder}":"{placeholder}"}}']
    if column.form is ValueForm.BYTES:
        texts += [b64encode(raw).decode(), urlsafe_b64encode(raw).decode(), raw.hex()]
    return texts


def _one_of(array: Array, values: list[Any]) -> Mask:
    size = pc.binary_length(array)
    # The length rules out nearly every value without reading its bytes.
    lengths = pa.array([len(value.encode() if isinstance(value, str) else value) for value in values], size.type)
    if not pc.any(pc.is_in(size, lengths)).as_py():
        return np.zeros(len(array), np.bool_)
    found = pc.is_in(array, pa.array(values, array.type))
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _lists(array: Array, placeholder: str) -> Mask:
    """A list of the one text (of UUIDs: of the one that Java makes of it), or of the numbers of its bytes."""
    found = np.zeros(len(array), np.bool_)
    text = pa.types.is_string(array.type.value_type)
    if not text and not pa.types.is_integer(array.type.value_type):
        return found
    expected: list[list[Any]] = [[placeholder], [_name_uuid(placeholder)]] if text else [list(placeholder.encode())]
    lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(lengths == len(expected[0])):
        found[row] = array[int(row)].as_py() in expected
    return found


@functools.cache
def _name_uuid(placeholder: str) -> str:
    """The UUID that is named by a text, as Java's `nameUUIDFromBytes` has it."""
    return str(uuid.UUID(bytes=hashlib.md5(placeholder.encode(), usedforsecurity=False).digest(), version=3))
