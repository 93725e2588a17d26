"""Converts the raw bytes of a column to the Arrow type of its kind, a block at a time.

The compiled decoders copy variable-width values unchanged from the log or from a query's result. A *finisher* converts the raw array of a
whole column to the final one. Columns that need no conversion (numbers, times) have no finisher.

Invariant: a finisher returns the exact values or raises a definite error; damaged bytes never become other values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sources.mysql.charsets.charsets import NotUnicode, TextTooLarge, UnknownCharset, transcoder
from headrace.sources.mysql.events import table_map
from headrace.sources.mysql.kernels.arrow_arena import Slot

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Finisher = Callable[[Array], Array]

UnreadableText = (NotUnicode, TextTooLarge)
"""What a finisher of text may raise. The caller, which knows the place, converts it with `unreadable_text`."""
_ZLIB: Final = 8


def finisher(column: Column, stored: int | None, metadata: int, place: str) -> Finisher | None:
    """Return the function that converts the raw array to the final one; None if the raw one is final.

    `stored` and `metadata` are the storage type of the table map, or None and 0 for the result of a query: a server answers queries in
    UTF-8, whatever the column's character set.
    """
    if stored in (table_map.VARCHAR_COMPRESSED, table_map.BLOB_COMPRESSED):
        plain = finisher(column, table_map.BLOB, metadata, place)
        return lambda raw: _after(plain, decompress(column, raw, place), column)
    match column.form:
        case ValueForm.VECTOR:
            return lambda raw: _vectors(column, raw, place)
        case ValueForm.FIXED_BYTES:
            return lambda raw: _fixed_bytes(column, raw, column.arrow_type.byte_width, place)
        case ValueForm.TEXT:
            return _text(column, "utf8mb4" if stored is None else column.charset or "utf8mb4", place)
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.MEMBERS:
            return None
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME | ValueForm.JSON | ValueForm.BYTES | ValueForm.GEOMETRY:
            return None
        case unknown:
            assert_never(unknown)


def slot_for(column: Column, *, names_as_text: bool, finished_later: bool = False) -> Slot:
    """Return how the arena stores a column before the finisher runs. ENUM and SET are numbers in the binary log and text in query results.

    `finished_later`: a finisher converts the decoder's output to the column's own type.
    """
    match column.form:
        case ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.FIXED_BYTES:
            return Slot(0, pa.binary())
        case ValueForm.TEXT | ValueForm.BYTES | ValueForm.JSON:
            return Slot(0, pa.binary() if finished_later else column.arrow_type)
        case ValueForm.MEMBERS if names_as_text:
            return Slot(0, pa.string())
        case ValueForm.MEMBERS:
            return Slot(8, pa.uint64()) if column.type.multiple else Slot(4, pa.int32())
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.DECIMAL:
            return Slot(column.arrow_type.bit_width // 8, column.arrow_type)
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return Slot(column.arrow_type.bit_width // 8, column.arrow_type)
        case unknown:
            assert_never(unknown)


def _after(finish: Finisher | None, raw: Array, column: Column) -> Array:
    return raw.view(column.arrow_type) if finish is None else finish(raw)


def decompress(column: Column, raw: Array, place: str) -> Array:
    """Decompress the values of a MariaDB COMPRESSED column: each is empty, or a method byte and the data.

    Method 0: the data is the value. Method 8: the low three bits are the size of the value's length, which follows, most significant byte
    first; then deflated data, without zlib's header if the next bit is set.
    """
    values = [None if value is None else _decompressed(column, value, place) for value in raw.to_pylist()]
    return pa.array(values, pa.binary())


def _decompressed(column: Column, value: bytes, place: str) -> bytes:
    if value[:1] in (b"", b"\0"):
        return value[1:]
    method, bare, width = value[0] >> 4, bool(value[0] & 8), value[0] & 7
    size = int.from_bytes(value[1 : 1 + width], "big")
    try:
        stream = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS)
        # Request one more byte, to detect data that is longer than its length field.
        plain = stream.decompress(value[1 + width :], size + 1)
    except zlib.error as error:
        raise _damaged(column, "a compressed value that cannot be read", place) from error
    if method != _ZLIB or not 1 <= width <= 4 or len(plain) != size or not stream.eof or stream.unused_data:
        raise _damaged(column, "a compressed value that cannot be read", place)
    return plain


def _text(column: Column, charset: str, place: str) -> Finisher:
    try:
        return transcoder(charset)
    except UnknownCharset as error:
        raise DefiniteError(
            f"column {column.name} is in character set {charset}, which no server that Headrace knows has",
            place=f"{place}, column {column.name}",
            hint="use utf8mb4 for it, or leave the table out with --exclude",
        ) from error


def unreadable_text(error: NotUnicode | TextTooLarge, column: Column, place: str) -> DefiniteError:
    if isinstance(error, TextTooLarge):
        return DefiniteError(f"column {column.name} holds more text in one row than can be carried", place=f"{place}, column {column.name}")
    return DefiniteError(
        f"column {column.name} ({column.source_type}) holds bytes that are not text (half of a surrogate pair, or not UTF-8)",
        place=f"{place}, column {column.name}",
        hint="correct the value in the source and resync the table, or make the column binary",
    )


def _vectors(column: Column, raw: Array, place: str) -> Array:
    """Return bytes as lists of four-byte floats over the same memory."""
    offsets = _offsets(raw)
    if np.any(offsets & 3):
        raise _damaged(column, "a vector of a broken number", place)
    validity, _, data = raw.buffers()
    floats = pa.Array.from_buffers(pa.float32(), int(offsets[-1]) // 4, [None, data])
    return pa.Array.from_buffers(column.arrow_type, len(raw), [validity, pa.py_buffer(offsets >> 2)], children=[floats])


def _fixed_bytes(column: Column, raw: Array, width: int, place: str) -> Array:
    """Return bytes of one size as Arrow's fixed-size type. NULLs, which have no bytes, become zeros."""
    offsets = _offsets(raw)
    sizes = np.diff(offsets)
    validity, _, data = raw.buffers()
    if raw.null_count == 0:
        if np.any(sizes != width):
            raise _damaged(column, f"a value that is not of {width} bytes", place)
        return pa.Array.from_buffers(column.arrow_type, len(raw), [None, data])
    there = np.asarray(raw.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    if np.any(sizes != np.where(there, width, 0)):
        raise _damaged(column, f"a value that is not of {width} bytes", place)
    spread = np.zeros((len(raw), width), dtype=np.uint8)
    spread[there] = np.frombuffer(data, dtype=np.uint8, count=int(offsets[-1])).reshape(-1, width)
    return pa.Array.from_buffers(column.arrow_type, len(raw), [validity, pa.py_buffer(spread)])


def _offsets(raw: Array) -> npt.NDArray[np.int32]:
    """Return the offsets of a raw array, which starts at the beginning of its buffers."""
    return np.frombuffer(raw.buffers()[1], dtype=np.int32, count=len(raw) + 1)


def _damaged(column: Column, what: str, place: str) -> DefiniteError:
    return DefiniteError(f"column {column.name} ({column.source_type}) holds {what}", place=f"{place}, column {column.name}")
