"""The keys of messages: a row's key columns as a JSON object, such as {"id":7}.

Invariant: equal keys give equal bytes, different keys different ones; so all messages of a row are in one partition, and a compacted topic
keeps the last of them. Integers are numbers, everything else is text as the source shows it, bytes are in hex. Whole columns only.
"""

from __future__ import annotations

import json
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kafka.mypipe.values import ValueMapping, map_of, to_map
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema

_HEX: Final = np.array([list(f"{n:02x}".encode()) for n in range(256)], dtype=np.uint8)
_TEXTUAL: Final = ValueMapping(text_as_bytes=False)


def encode_keys(schema: TableSchema, images: pa.RecordBatch) -> pa.BinaryArray:
    """Return the key of each image; NULL for a table without one."""
    if not schema.row_key:
        return pa.nulls(images.num_rows, pa.binary())
    parts: list[Any] = []
    for place, name in enumerate(schema.row_key):
        opening = "{" if not place else ","
        parts += [f"{opening}{json.dumps(name, ensure_ascii=False)}:", _fragment(schema.column(name), images.column(name))]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _fragment(column: Column, array: pa.Array) -> pa.Array:
    """The column's values as pieces of JSON."""
    if column.form is ValueForm.INTEGER:
        return array.cast(pa.string())
    name = map_of(column, _TEXTUAL)
    values = to_map(column, array, name)
    match name:
        case "integers" | "longs":
            return values.cast(pa.string())
        case "bytes":
            return pc.binary_join_element_wise('"', _hex(values), '"', "")
        case "strings":
            return _quoted(values)
        case unknown:
            assert_never(unknown)


def _quoted(array: pa.Array) -> pa.Array:
    if not _needs_escapes(array):
        return pc.binary_join_element_wise('"', array, '"', "")
    # Quotes and control characters in a key are rare: Python's own escapes, for blocks that have any.
    return pa.array([json.dumps(text, ensure_ascii=False) for text in array.to_pylist()], pa.string())


def _needs_escapes(array: pa.Array) -> bool:
    offsets, data = _parts(array)
    used = data[offsets[0] : offsets[-1]]
    return bool(((used < 0x20) | (used == 0x22) | (used == 0x5C)).any())


def _hex(array: pa.Array) -> pa.Array:
    offsets, data = _parts(array)
    digits = _HEX[data[offsets[0] : offsets[-1]]]
    doubled = ((offsets - offsets[0]) * 2).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(array), [None, pa.py_buffer(doubled), pa.py_buffer(np.ascontiguousarray(digits))])


def _parts(array: pa.Array) -> tuple[Any, Any]:
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    return offsets, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
