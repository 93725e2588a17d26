"""Conversion of column values to and from mypipe's messages.

Invariant: for every kind, a value that is written and read back is equal; nothing is rounded, cut or dropped. Conversions work on whole
columns. A generic message holds a column in one of four maps, chosen by its kind alone; a specific message holds it in a field with a
fitting Avro type and logical type. Text is as the source displays it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind
from headrace.model.text_values import fixed_bytes, text_functions

Recode = Callable[[Any], Any]
INTEGERS, LONGS, STRINGS, BYTES = "integers", "longs", "strings", "bytes"
WIRE_TYPES: Final = {INTEGERS: pa.int32(), LONGS: pa.int64(), STRINGS: pa.string(), BYTES: pa.binary()}
_INSTANTS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_TEXTS: Final = re.compile(r"(tiny|medium|long)?text\b", re.IGNORECASE)
_UNSIGNED_DIGITS: Final = 20
_MOST_LONG: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ValueMapping:
    """What may be chosen of the mapping."""

    text_as_bytes: bool = True
    """Generic: TEXT columns as UTF-8 in `bytes`, as mypipe has them."""
    unsigned_as_long: bool = False
    """BIGINT UNSIGNED as a long; a larger number is rejected."""


def map_of(column: Column, mapping: ValueMapping) -> str:
    """Return the name of the map in which a generic message holds the column."""
    match column.kind:
        case Kind.INT8 | Kind.INT16 | Kind.INT32 | Kind.UINT8 | Kind.UINT16 | Kind.YEAR:
            return INTEGERS
        case Kind.INT64 | Kind.UINT32:
            return LONGS
        case Kind.UINT64:
            return LONGS if mapping.unsigned_as_long else STRINGS
        case Kind.BYTES | Kind.GEOMETRY | Kind.VECTOR | Kind.BIT:
            return BYTES
        case Kind.STRING:
            return BYTES if mapping.text_as_bytes and _TEXTS.match(column.source_type) else STRINGS
        case Kind.FLOAT32 | Kind.FLOAT64 | Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return STRINGS
        case Kind.ENUM | Kind.SET | Kind.JSON | Kind.UUID | Kind.INET4 | Kind.INET6:
            return STRINGS
        case unknown:
            assert_never(unknown)


def to_map(column: Column, array: pa.Array, name: str) -> pa.Array:
    """Convert the column's values for the map of this name."""
    match name:
        case "integers":
            return array.cast(pa.int32())
        case "longs":
            return _long(column, array)
        case "bytes":
            return _raw(column, array)
    return _text(column, array)


def from_map(column: Column, array: pa.Array, name: str) -> pa.Array:
    """The values of a map as the column's own."""
    match name:
        case "integers" | "longs":
            return array.cast(column.arrow_type)
        case "bytes":
            return _from_raw(column, array)
    return _from_text(column, array)


def avro_type(column: Column, mapping: ValueMapping) -> str | dict[str, Any]:
    """Return the Avro type of the column's field in a specific message."""
    match column.kind:
        case Kind.INT8 | Kind.INT16 | Kind.INT32 | Kind.UINT8 | Kind.UINT16 | Kind.YEAR:
            return "int"
        case Kind.INT64 | Kind.UINT32:
            return "long"
        case Kind.UINT64 if mapping.unsigned_as_long:
            return "long"
        case Kind.UINT64:
            return {"type": "bytes", "logicalType": "decimal", "precision": _UNSIGNED_DIGITS, "scale": 0}
        case Kind.BYTES | Kind.GEOMETRY | Kind.VECTOR | Kind.BIT:
            return "bytes"
        case Kind.DECIMAL:
            return {"type": "bytes", "logicalType": "decimal", "precision": column.precision, "scale": column.scale}
        case Kind.FLOAT32:
            return "float"
        case Kind.FLOAT64:
            return "double"
        case Kind.DATE:
            return {"type": "int", "logicalType": "date"}
        case Kind.DATETIME:
            return {"type": "long", "logicalType": "local-timestamp-micros"}
        case Kind.TIMESTAMP:
            return {"type": "long", "logicalType": "timestamp-micros"}
        case Kind.TIME:
            # Microseconds; not `time-micros`, which is a time of day: MySQL's times go from -838:59:59 to 838:59:59.
            return "long"
        case Kind.UUID:
            return {"type": "string", "logicalType": "uuid"}
        case Kind.STRING | Kind.ENUM | Kind.SET | Kind.JSON | Kind.INET4 | Kind.INET6:
            return "string"
        case unknown:
            assert_never(unknown)


def to_field(column: Column, array: pa.Array, mapping: ValueMapping) -> pa.Array:
    """Return the column's values as its field holds them, in Arrow's type for the Avro type."""
    match column.kind:
        case Kind.INT8 | Kind.INT16 | Kind.INT32 | Kind.UINT8 | Kind.UINT16 | Kind.YEAR:
            return array.cast(pa.int32())
        case Kind.INT64 | Kind.UINT32:
            return _long(column, array)
        case Kind.UINT64 if mapping.unsigned_as_long:
            return _long(column, array)
        case Kind.UINT64:
            return decimal_bytes(array.cast(pa.decimal128(_UNSIGNED_DIGITS, 0)))
        case Kind.BYTES | Kind.GEOMETRY | Kind.VECTOR | Kind.BIT:
            return _raw(column, array)
        case Kind.DECIMAL:
            return decimal_bytes(array)
        case Kind.FLOAT32 | Kind.FLOAT64:
            return array
        case Kind.DATE:
            return array.view(pa.int32())
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return array.view(pa.int64())
        case Kind.STRING | Kind.ENUM | Kind.SET | Kind.JSON | Kind.UUID | Kind.INET4 | Kind.INET6:
            return _text(column, array)
        case unknown:
            assert_never(unknown)


def from_field(column: Column, array: pa.Array) -> pa.Array:
    """A field's values as the column's own."""
    kind = column.kind
    if kind in (Kind.DECIMAL, Kind.UINT64) and pa.types.is_binary(array.type):
        digits = pa.decimal128(_UNSIGNED_DIGITS, 0) if kind is Kind.UINT64 else column.arrow_type
        return read_decimals(array, digits).cast(column.arrow_type)
    if kind is Kind.DATE and pa.types.is_integer(array.type):
        return array.view(column.arrow_type)
    if kind in _INSTANTS and pa.types.is_integer(array.type):
        return array.view(column.arrow_type)
    if pa.types.is_binary(array.type):
        return _from_raw(column, array)
    return _from_text(column, array) if pa.types.is_string(array.type) else array.cast(column.arrow_type)


def _long(column: Column, array: pa.Array) -> pa.Array:
    if column.kind is Kind.UINT64:
        beyond = pc.max(array).as_py()
        if beyond is not None and beyond > _MOST_LONG:
            raise DefiniteError(
                f"the number {beyond} does not fit a long",
                place=f"column {column.name}",
                hint="choose kafka.bigint_unsigned = exact: consumers then find the column's digits as text (generic) or as a decimal",
            )
    return array.cast(pa.int64())


def _text(column: Column, array: pa.Array) -> pa.Array:
    if column.kind is Kind.INET6:
        return _spelled_distinct(array, lambda value: socket.inet_ntop(socket.AF_INET6, value), pa.string())
    spelled = text_functions(column)
    assert spelled is not None, f"kind {column.kind} has no text"
    return spelled[0](array)


def _from_text(column: Column, array: pa.Array) -> pa.Array:
    if column.kind is Kind.INET6:
        return _spelled_distinct(array, lambda value: socket.inet_pton(socket.AF_INET6, value), pa.binary(16))
    spelled = text_functions(column)
    assert spelled is not None, f"kind {column.kind} has no text"
    return spelled[1](array)


def _spelled_distinct(array: pa.Array, spell: Callable[[Any], Any], made: pa.DataType) -> pa.Array:
    # Python per distinct value: neither Arrow nor numpy knows the short form of an address, and the type is rare.
    coded = array.dictionary_encode()
    return pa.array([spell(value) for value in coded.dictionary.to_pylist()], made).take(coded.indices)


def _raw(column: Column, array: pa.Array) -> pa.Array:
    match column.kind:
        case Kind.BIT:
            return bit_bytes(array, column.precision or 64)
        case Kind.VECTOR:
            return vector_bytes(array)
    return array.cast(pa.binary())


def _from_raw(column: Column, array: pa.Array) -> pa.Array:
    match column.kind:
        case Kind.BIT:
            return read_bit_bytes(array)
        case Kind.VECTOR:
            return read_vector_bytes(array)
    return array.cast(column.arrow_type)


def bit_bytes(array: pa.Array, bits: int) -> pa.Array:
    """Encode BIT(n) as the server stores it: the bytes that n bits need, most significant first."""
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(">u8")
    width = (bits + 7) // 8
    rows = numbers.view(np.uint8).reshape(-1, 8)[:, 8 - width :]
    return _with_nulls_of(array, fixed_bytes(rows).cast(pa.binary()))


def read_bit_bytes(array: pa.Array) -> pa.Array:
    numbers = np.zeros((len(array), 8), dtype=np.uint8)
    _right_align(array, numbers)
    return _with_nulls_of(array, pa.array(numbers.view(">u8").reshape(-1).astype(np.uint64)))


def vector_bytes(array: pa.Array) -> pa.Array:
    """Encode VECTOR as the server stores it: four bytes per number, least significant first."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    numbers = array.values.to_numpy(zero_copy_only=False).astype("<f4", copy=False)
    made = pa.Array.from_buffers(
        pa.binary(), len(array), [None, pa.py_buffer((offsets * 4).astype(np.int32)), pa.py_buffer(np.ascontiguousarray(numbers))]
    )
    return _with_nulls_of(array, made)


def read_vector_bytes(array: pa.Array) -> pa.Array:
    offsets, data = _parts(pc.fill_null(array, b""))
    if (offsets % 4).any():
        raise DefiniteError("a vector whose bytes are no numbers of four bytes", hint="the message was not written by Headrace")
    numbers = pa.array(data[offsets[0] : offsets[-1]].view("<f4"))
    lists = pa.ListArray.from_arrays(
        pa.array(((offsets - offsets[0]) // 4).astype(np.int32)), numbers, type=pa.list_(pa.field("item", pa.float32(), nullable=False))
    )
    return _with_nulls_of(array, lists)


def decimal_bytes(array: pa.Array) -> pa.Array:
    """Decimals as Avro has them: the number without its point, in two's complement, the most significant byte first; one width a column."""
    size = 32 if pa.types.is_decimal256(array.type) else 16
    width = _decimal_width(array.type.precision)
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8, count=(array.offset + len(array)) * size)[array.offset * size :]
    rows = raw.reshape(-1, size)[:, width - 1 :: -1] if width < size else raw.reshape(-1, size)[:, ::-1]
    return _with_nulls_of(array, fixed_bytes(rows).cast(pa.binary()))


def read_decimals(array: pa.Array, made: pa.DataType) -> pa.Array:
    size = 32 if pa.types.is_decimal256(made) else 16
    rows = np.zeros((len(array), size), dtype=np.uint8)
    _right_align(array, rows, signed=True)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows[:, ::-1]))]
    return _with_nulls_of(array, pa.Array.from_buffers(made, len(array), buffers))


def _decimal_width(precision: int) -> int:
    """How many bytes a number of so many digits needs, with its sign."""
    most: int = 10**precision - 1
    return (most.bit_length() + 8) // 8


def _right_align(array: pa.Array, rows: npt.NDArray[np.uint8], *, signed: bool = False) -> None:
    """Put big-endian numbers of any length at the right of rows of one width."""
    offsets, data = _parts(pc.fill_null(array, b""))
    lengths = np.diff(offsets)
    width = rows.shape[1]
    if lengths.size and lengths.max() > width:
        raise DefiniteError(f"a number of {lengths.max()} bytes where {width} is the most", hint="the message was not written by Headrace")
    for length in np.unique(lengths[lengths > 0]):
        at = np.flatnonzero(lengths == length)
        numbers = data[offsets[at][:, None] + np.arange(length)]
        if signed:
            rows[at, : width - length] = np.where(numbers[:, :1] > 127, np.uint8(255), np.uint8(0))
        rows[at, width - length :] = numbers


def _parts(array: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Offsets and data of a binary array."""
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    return offsets, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)


def _with_nulls_of(array: pa.Array, made: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), made, pa.scalar(None, made.type)) if array.null_count else made
