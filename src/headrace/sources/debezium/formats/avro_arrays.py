"""Converts arrays of the Avro decoder to the wire types of events (`wire_type`)."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pyarrow as pa

from headrace.sources.debezium.events.fields import ConnectField, WireFormat
from headrace.sources.debezium.events.parsed_events import wire_type


def as_wire(array: pa.Array, field: ConnectField) -> pa.Array:
    """Return the values with maps as JSON documents and fixed types as bytes."""
    wanted = wire_type(field, WireFormat.AVRO)
    if array.type == wanted:
        return array
    if field.type == "struct":
        return _struct(array, field, wanted)
    if field.type == "array" and field.items is not None:
        items = as_wire(array.values, field.items)
        buffers = array.buffers()
        return pa.Array.from_buffers(wanted, len(array), buffers[:2], array.null_count, array.offset, children=[items])
    if field.type == "map":
        return pa.array([None if row is None else orjson.dumps(_document(row)).decode() for row in array.to_pylist()], pa.string())
    return array.cast(wanted)


def _struct(array: pa.Array, field: ConnectField, wanted: pa.DataType) -> pa.Array:
    parts = [as_wire(array.field(array.type.get_field_index(part.name)), part) for part in field.fields]
    gone = array.is_null()
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=gone if array.null_count else None)


def _document(row: Any) -> Any:
    """Return a map's entries, or the key-value records that Connect writes for keys that are not strings."""
    pairs = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in row]
    return {
        _json_value(key) if isinstance(_json_value(key), str) else orjson.dumps(_json_value(key)).decode(): _json_value(value)
        for key, value in pairs
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    if isinstance(value, dict):
        return {key: _json_value(one) for key, one in value.items()}
    return value
