"""Conversion of column values to and from mypipe's messages.

Invariant: for every kind, a value that is written and read back is equal; nothing is rounded, cut or dropped. Conversions work on whole
columns. A generic message holds a column in one of four maps, chosen by its kind alone; a specific message holds it in a field with a
fitting Avro type and logical type. Text is as the source displays it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import fixed_bytes, format_hex, parse_hex, text_functions

Recode = Callable[[Any], Any]
MapName = Literal["integers", "longs", "strings", "bytes"]
_TEXTS: Final = re.compile(r"(tiny|medium|long)?text\b", re.IGNORECASE)
_BINARY: Final = (ValueForm.BYTES, ValueForm.GEOMETRY, ValueForm.VECTOR)
_UNSIGNED_DIGITS: Final = 20
_MOST_INT: Final = 2**31 - 1
_MOST_LONG: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ValueMapping:
    text_as_bytes: bool = True
    """Generic: TEXT columns as UTF-8 in `bytes`, as mypipe has them."""
    unsigned_as_long: bool = False
    """BIGINT UNSIGNED as a long; a larger number is rejected."""
    has_bytes_map: bool = True
    """Generic: whether there is a map `bytes`; without it, `strings` holds text as it is and bytes as hexadecimal digits."""


def map_of(column: Column, mapping: ValueMapping) -> MapName:
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR if column.type.value_range[1] <= _MOST_INT:
            return "integers"
        case ValueForm.INTEGER | ValueForm.YEAR:
            return "strings" if _is_beyond_long(column) and not mapping.unsigned_as_long else "longs"
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.BITS:
            return "bytes" if mapping.has_bytes_map else "strings"
        case ValueForm.TEXT:
            return "bytes" if mapping.has_bytes_map and mapping.text_as_bytes and _TEXTS.match(column.source_type) else "strings"
        case ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return "strings"
        case ValueForm.MEMBERS | ValueForm.JSON | ValueForm.FIXED_BYTES:
            return "strings"
        case unknown:
            assert_never(unknown)


def _is_beyond_long(column: Column) -> bool:
    return column.form is ValueForm.INTEGER and column.type.value_range[1] > _MOST_LONG


def to_map(column: Column, array: pa.Array, name: MapName) -> pa.Array:
    match name:
        case "integers":
            return array.cast(pa.int32())
        case "longs":
            return _long(column, array)
        case "bytes":
            return _raw(column, array)
        case "strings":
            return _text(column, array)
        case unknown:
            assert_never(unknown)


def from_map(column: Column, array: pa.Array, name: MapName) -> pa.Array:
    match name:
        case "integers" | "longs":
            return array.cast(column.arrow_type)
        case "bytes":
            return _from_raw(column, array)
        case "strings":
            return _from_text(column, array)
        case unknown:
            assert_never(unknown)


def avro_type(column: Column, mapping: ValueMapping) -> str | dict[str, Any]:
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR if column.type.value_range[1] <= _MOST_INT:
            return "int"
        case ValueForm.INTEGER | ValueForm.YEAR if not _is_beyond_long(column) or mapping.unsigned_as_long:
            return "long"
        case ValueForm.INTEGER | ValueForm.YEAR:
            return {"type": "bytes", "logicalType": "decimal", "precision": _UNSIGNED_DIGITS, "scale": 0}
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.BITS:
            return "bytes"
        case ValueForm.DECIMAL:
            return {"type": "bytes", "logicalType": "decimal", "precision": column.precision, "scale": column.scale}
        case ValueForm.FLOAT:
            return "float" if column.type.bits == 32 else "double"
        case ValueForm.DATE:
            return {"type": "int", "logicalType": "date"}
        case ValueForm.TIMESTAMP:
            return {"type": "long", "logicalType": "timestamp-micros" if column.type.zoned else "local-timestamp-micros"}
        case ValueForm.TIME:
            # Microseconds; not `time-micros`, which is a time of day: MySQL's times go from -838:59:59 to 838:59:59.
            return "long"
        case ValueForm.FIXED_BYTES if column.type.avro_logical:
            return {"type": "string", "logicalType": column.type.avro_logical}
        case ValueForm.FIXED_BYTES | ValueForm.TEXT | ValueForm.MEMBERS | ValueForm.JSON:
            return "string"
        case unknown:
            assert_never(unknown)


def to_field(column: Column, array: pa.Array, mapping: ValueMapping) -> pa.Array:
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR if column.type.value_range[1] <= _MOST_INT:
            return array.cast(pa.int32())
        case ValueForm.INTEGER | ValueForm.YEAR if not _is_beyond_long(column) or mapping.unsigned_as_long:
            return _long(column, array)
        case ValueForm.INTEGER | ValueForm.YEAR:
            return decimal_bytes(array.cast(pa.decimal128(_UNSIGNED_DIGITS, 0)))
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.BITS:
            return _raw(column, array)
        case ValueForm.DECIMAL:
            return decimal_bytes(array)
        case ValueForm.FLOAT:
            return array
        case ValueForm.DATE:
            return array.view(pa.int32())
        case ValueForm.TIMESTAMP | ValueForm.TIME:
            return array.view(pa.int64())
        case ValueForm.TEXT | ValueForm.MEMBERS | ValueForm.JSON | ValueForm.FIXED_BYTES:
            return _text(column, array)
        case unknown:
            assert_never(unknown)


def from_field(column: Column, array: pa.Array) -> pa.Array:
    is_binary = pa.types.is_binary(array.type)
    match column.form:
        case ValueForm.DECIMAL:
            own = read_decimals(array, column.arrow_type) if is_binary else None
        case ValueForm.INTEGER:
            digits = is_binary and _is_beyond_long(column)
            own = read_decimals(array, pa.decimal128(_UNSIGNED_DIGITS, 0)).cast(column.arrow_type) if digits else None
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            own = array.view(column.arrow_type) if pa.types.is_integer(array.type) else None
        case ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS:
            own = None
        case ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            own = None
        case unknown:
            assert_never(unknown)
    if own is not None:
        return own
    # A field may have another type than `avro_type` gives: a message of another version of the table, or of another program.
    if is_binary:
        return _from_raw(column, array)
    return _from_text(column, array) if pa.types.is_string(array.type) else array.cast(column.arrow_type)


def _long(column: Column, array: pa.Array) -> pa.Array:
    if _is_beyond_long(column):
        beyond = pc.max(array).as_py()
        if beyond is not None and beyond > _MOST_LONG:
            raise DefiniteError(
                f"the number {beyond} does not fit a long",
                place=f"column {column.name}",
                hint="choose kafka.bigint_unsigned = exact: consumers then find the column's digits as text (generic) or as a decimal",
            )
    return array.cast(pa.int64())


def _text(column: Column, array: pa.Array) -> pa.Array:
    if column.form in _BINARY:
        return format_hex(_raw(column, array))
    if column.form is ValueForm.FIXED_BYTES and not column.type.printed_alike:
        return _spelled_distinct(array, column.type.display_value or column.type.print_value, pa.string())
    spelled = text_functions(column)
    assert spelled is not None, f"kind {column.kind} has no text"
    return spelled[0](array)


def _from_text(column: Column, array: pa.Array) -> pa.Array:
    if column.form in _BINARY:
        return _from_raw(column, parse_hex(array))
    if column.form is ValueForm.FIXED_BYTES and not column.type.printed_alike:
        return _spelled_distinct(array, column.type.parse_value, column.arrow_type)
    spelled = text_functions(column)
    assert spelled is not None, f"kind {column.kind} has no text"
    return spelled[1](array)


def _spelled_distinct(array: pa.Array, spell: Callable[[Any], Any], made: pa.DataType) -> pa.Array:
    # Python per distinct value: neither Arrow nor numpy knows the short form of an address, and the type is rare.
    coded = array.dictionary_encode()
    return pa.array([spell(value) for value in coded.dictionary.to_pylist()], made).take(coded.indices)


def _raw(column: Column, array: pa.Array) -> pa.Array:
    match column.form:
        case ValueForm.BITS:
            return bit_bytes(array, column.precision or 64)
        case ValueForm.VECTOR:
            return vector_bytes(array)
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.FIXED_BYTES:
            return array.cast(pa.binary())
        case (
            ValueForm.INTEGER | ValueForm.YEAR | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME
        ):
            raise AssertionError(f"kind {column.kind} is not stored as bytes")
        case unknown:
            assert_never(unknown)


def _from_raw(column: Column, array: pa.Array) -> pa.Array:
    match column.form:
        case ValueForm.BITS:
            return read_bit_bytes(array)
        case ValueForm.VECTOR:
            return read_vector_bytes(array)
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.FIXED_BYTES:
            return array.cast(column.arrow_type)
        case (
            ValueForm.INTEGER | ValueForm.YEAR | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME
        ):
            return array.cast(column.arrow_type)
        case unknown:
            assert_never(unknown)


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
    most: int = 10**array.type.precision - 1
    # The bytes that a number of so many digits needs, with its sign.
    width = (most.bit_length() + 8) // 8
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8, count=(array.offset + len(array)) * size)[array.offset * size :]
    rows = raw.reshape(-1, size)[:, width - 1 :: -1] if width < size else raw.reshape(-1, size)[:, ::-1]
    return _with_nulls_of(array, fixed_bytes(rows).cast(pa.binary()))


def read_decimals(array: pa.Array, made: pa.DataType) -> pa.Array:
    size = 32 if pa.types.is_decimal256(made) else 16
    rows = np.zeros((len(array), size), dtype=np.uint8)
    _right_align(array, rows, signed=True)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows[:, ::-1]))]
    return _with_nulls_of(array, pa.Array.from_buffers(made, len(array), buffers))


def _right_align(array: pa.Array, rows: npt.NDArray[np.uint8], *, signed: bool = False) -> None:
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
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    return offsets, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)


def _with_nulls_of(array: pa.Array, made: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), made, pa.scalar(None, made.type)) if array.null_count else made
