"""Encodes values as bytes that are equal exactly if the values are: compares columns of any CQL type from any server.

Arrow cannot compare nested values, but it compares bytes. Sets and maps are compared regardless of element order. An empty collection
equals null, as in CQL, and a tuple or user type of nulls equals null, because ClickHouse does not distinguish them. Floats are compared by
their bits. Columns are encoded in bulk; `to_python` decodes single values.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.types import CqlType, unsupported_type

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow

_NUMBERS: Final = {
    **dict.fromkeys(("bigint", "counter", "time", "timestamp"), ("<i8", pa.int64())),
    **dict.fromkeys(("date", "int"), ("<i4", pa.int32())),
    "smallint": ("<i2", pa.int16()),
    "tinyint": ("<i1", pa.int8()),
    "boolean": ("<u1", pa.uint8()),
    "double": ("<f8", pa.float64()),
    "float": ("<f4", pa.float32()),
}
_DECODERS: Final[dict[str, Callable[[bytes], object]]] = {
    "blob": bytes,
    "decimal": lambda raw: Decimal(raw.decode()),
    "timeuuid": lambda raw: UUID(bytes=raw),
    "uuid": lambda raw: UUID(bytes=raw),
    "varint": int,
}
_DURATION: Final = (CqlType("int"), CqlType("int"), CqlType("bigint"))


def canonical(kind: CqlType, column: Array) -> Array:
    """Encode a column of a CQL type, from `headrace.cql.decode.arrow_arrays` or ClickHouse, as `binary`."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if kind.name in _NUMBERS:
        return _fixed(kind, array)
    match kind.name:
        case "list" | "vector":
            return _sequence(array, canonical(kind.args[0], array.flatten()))
        case "set":
            return _unordered(array, canonical(kind.args[0], array.flatten()))
        case "map":
            # Arrow flattens no maps. A null one has no entries.
            lists = pa.ListArray.from_arrays(
                pa.array(array.offsets.to_numpy()), pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
            )
            keys, values = (canonical(arg, part) for arg, part in zip(kind.args, lists.flatten().flatten(), strict=True))
            return _unordered(lists, _together([keys, values]))
        case "tuple" | "udt" | "duration":
            return _record(_fields(kind), array)
        case "text" | "ascii" | "inet":
            return array.cast(pa.binary())
        case name if name in _DECODERS:
            return array.cast(pa.binary())
        case _:
            raise unsupported_type(kind)


def to_python(kind: CqlType, raw: bytes | None) -> object:
    """Decode one encoded value to a Python object, for messages and for `headrace.cql.language.value_encoder`."""
    if raw is None:
        return None
    if kind.name in _NUMBERS:
        value = np.frombuffer(raw, _NUMBERS[kind.name][0])[0].item()
        return bool(value) if kind.name == "boolean" else value
    if kind.name in _DECODERS:
        return _DECODERS[kind.name](raw)
    parts = _parts(raw) if kind.args or kind.name == "duration" else []
    match kind.name:
        case "list" | "vector" | "set":
            return [to_python(kind.args[0], part) for part in parts]
        case "map":
            pairs = [_parts(part or b"") for part in parts]
            return {_hashable(to_python(kind.args[0], key)): to_python(kind.args[1], value) for key, value in pairs}
        case "tuple" | "udt" | "duration":
            found = [to_python(arg, part) for arg, part in zip(_fields(kind), parts, strict=True)]
            return dict(zip(kind.fields, found, strict=True)) if kind.name == "udt" else tuple(found)
        case "text" | "ascii" | "inet":
            return raw.decode()
        case _:
            raise unsupported_type(kind)


def _fields(kind: CqlType) -> tuple[CqlType, ...]:
    return _DURATION if kind.name == "duration" else kind.args


def _fixed(kind: CqlType, array: Array) -> Array:
    stored, number = _NUMBERS[kind.name]
    numbers = array.cast(number)
    data = np.ascontiguousarray(numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(stored))
    width = data.dtype.itemsize
    validity = _bitmap(np.asarray(array.is_valid().to_numpy(zero_copy_only=False)))
    return pa.Array.from_buffers(pa.binary(width), len(array), [validity, pa.py_buffer(data)]).cast(pa.binary())


def _framed(parts: Array) -> Array:
    """Prefix each value with its length; null has a special length."""
    sizes = pc.binary_length(parts).fill_null(-1).to_numpy(zero_copy_only=False).astype("<i4")
    heads = pa.Array.from_buffers(pa.binary(4), len(parts), [None, pa.py_buffer(np.ascontiguousarray(sizes))]).cast(pa.binary())
    return pc.binary_join_element_wise(heads, parts.fill_null(b""), b"")


def _together(columns: list[Array]) -> Array:
    return pc.binary_join_element_wise(*map(_framed, columns), b"")


def _sequence(lists: Array, elements: Array) -> Array:
    """Join the elements of each list; null for empty lists."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    framed = _framed(elements)
    _, offsets, data = framed.buffers()
    places = np.frombuffer(offsets, np.int32)[framed.offset :] if len(framed) else np.zeros(1, np.int32)
    ends = places[np.concatenate([[0], np.cumsum(counts)])].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(lists), [_bitmap(counts > 0), pa.py_buffer(ends), data or pa.py_buffer(b"")])


def _unordered(lists: Array, elements: Array) -> Array:
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = pc.sort_indices(pa.table({"row": rows, "element": elements}), [("row", "ascending"), ("element", "ascending")])
    return _sequence(lists, elements.take(order))


def _record(fields: tuple[CqlType, ...], array: Array) -> Array:
    parts = [canonical(arg, part) for arg, part in zip(fields, array.flatten(), strict=True)]
    missing = np.logical_and.reduce([part.is_null().to_numpy(zero_copy_only=False) for part in parts])
    return pc.if_else(pa.array(missing, pa.bool_()), pa.scalar(None, pa.binary()), _together(parts))


def _bitmap(mask: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _parts(raw: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little", signed=True)
        found.append(None if size < 0 else raw[at + 4 : at + 4 + size])
        at += 4 + max(size, 0)
    return found


def _hashable(value: object) -> object:
    return repr(value) if isinstance(value, list | dict) else value
