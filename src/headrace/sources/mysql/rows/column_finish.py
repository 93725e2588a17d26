"""Converts the raw bytes of a column to the Arrow type of its kind, a block at a time.

The compiled decoders copy variable-width values unchanged from the log or from a query's result. A *finisher* converts the raw array of a
whole column to the final one. Columns that need no conversion (numbers, times) have no finisher.

Invariant: a finisher returns the exact values or raises a definite error; damaged bytes never become other values. Before a block leaves
the source, `check_values` rejects values that servers never send, but damage without a checksum does. A sink would misread them: a NULL in
a NOT NULL column as zero, bytes that are not UTF-8 as text. An invalid date that is read as the epoch is never silent: every process warns
once per column, with the count of the first occurrence.
"""

from __future__ import annotations

import logging
import shlex
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.column_types import DATE_FORMS, ValueForm
from headrace.model.schema import Column, TableName, TableSchema, ZeroDates
from headrace.sources.mysql.charsets import NotUnicode, TextTooLarge, UnknownCharset, transcoder
from headrace.sources.mysql.events import table_map
from headrace.sources.mysql.events.event_types import DAMAGE_HINT
from headrace.sources.mysql.kernels import values
from headrace.sources.mysql.kernels.arrow_arena import Slot

log = logging.getLogger("headrace.mysql")

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Finisher = Callable[[Array], Array]

_ZLIB: Final = 8
_LAST_YEAR: Final = 2155
ZERO_CODES: Final = {
    ZeroDates.HALT: values.HALT_AT_ZERO,
    ZeroDates.NULL: values.NULL_FOR_ZERO,
    ZeroDates.EPOCH: values.EPOCH_FOR_ZERO,
}
_OTHER_CHOICE_HINT: Final = (
    "start again with --zero-dates null or --zero-dates epoch (zero_dates in Python and in a settings file), which replicate such dates as "
    "NULL or as 1970-01-01"
)
_warned: set[tuple[TableName, str]] = set()


def finisher(column: Column, stored: int | None, metadata: int, place: str) -> Finisher | None:
    """Return the function that converts the raw array to the final one; None if the raw one is final.

    `stored` and `metadata` are the storage type of the table map, or None and 0 for the result of a query: a server answers queries in
    UTF-8, whatever the column's character set.
    """
    if stored in (table_map.VARCHAR_COMPRESSED, table_map.BLOB_COMPRESSED):
        finish = finisher(column, table_map.BLOB, metadata, place) or (lambda raw: raw.view(column.arrow_type))
        return lambda raw: finish(decompress(column, raw, place))
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


def finish_column(column: Column, finish: Finisher | None, raw: Array, place: str) -> Array:
    try:
        return raw if finish is None else finish(raw)
    except TextTooLarge as error:
        what = f"column {column.name} holds more text in one row than can be carried"
        raise DefiniteError(what, place=f"{place}, column {column.name}") from error
    except NotUnicode as error:
        raise DefiniteError(
            f"column {column.name} ({column.source_type}) holds bytes that are not text (half of a surrogate pair, or not UTF-8)",
            place=f"{place}, column {column.name}",
            hint="correct the value in the source and resync the table, or make the column binary",
        ) from error


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


def check_values(
    schema: TableSchema, arrays: Sequence[Any], unvalidated: frozenset[ValueForm], place: str, zero_dates: ZeroDates = ZeroDates.HALT
) -> None:
    """Raise a definite error that names the first column with an invalid value.

    unvalidated: forms whose values the decoder has not validated. zero_dates: with NULL, the decoder writes a NULL for an invalid date.
    """
    for column, array in zip(schema.columns, arrays, strict=True):
        if zero_dates is ZeroDates.NULL and column.form in DATE_FORMS and not column.nullable and array.null_count:
            raise _zero_date_in_key(schema.name, column.name, place, "a column of the key cannot be NULL")
        what = _find_invalid(column, array, unvalidated)
        if what:
            raise DefiniteError(
                f"column {column.name} ({column.source_type}) holds {what}", place=f"{place}, column {column.name}", hint=DAMAGE_HINT
            )


def _find_invalid(column: Column, array: Any, unvalidated: frozenset[ValueForm]) -> str:
    if not column.nullable and array.null_count:
        return "NULL, and its table says that it cannot"
    if column.form is ValueForm.BITS and column.precision < 64 and (pc.max(array).as_py() or 0) >> column.precision:
        return f"more than its {column.precision} bits"
    if column.form is ValueForm.YEAR and (pc.max(array).as_py() or 0) > _LAST_YEAR:
        return f"a year after {_LAST_YEAR}"
    if column.form in unvalidated:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return "bytes that are not a value of its type"
    return ""


def warn_of_zero_dates(schema: TableSchema, columns: Sequence[str], counts: Any) -> None:
    if not counts.any():
        return
    for column, count in zip(columns, counts.tolist(), strict=True):
        if count and (schema.name, column) not in _warned:
            _warned.add((schema.name, column))
            log.warning(
                "%s: %d dates in column %s do not exist (such as 0000-00-00) and are stored as 1970-01-01; more of them are not reported",
                schema.name,
                count,
                column,
            )


def check_key_dates(schema: TableSchema, columns: Sequence[str], counts: Any, place: str) -> None:
    """Raise if a column of the key holds dates that are read as 1970-01-01: rows with different keys would get the same key."""
    if not counts.any():
        return
    for column, count in zip(columns, counts.tolist(), strict=True):
        if count and column in schema.row_key:
            raise _zero_date_in_key(schema.name, column, place, "as 1970-01-01 it could be the key of another row")


def scanned_zero_date(schema: TableSchema, column: str) -> DefiniteError:
    choice = "" if column in schema.row_key else f", or {_OTHER_CHOICE_HINT}"
    return _zero_date(schema.name, column, f"snapshot of {schema.name}", f"correct the value in the source and start again{choice}")


def logged_zero_date(schema: TableSchema, column: str, place: str) -> DefiniteError:
    """Return the error for a row event. A correction in the source does not change the log: the table needs a resync."""
    choice = "" if column in schema.row_key else f"{_OTHER_CHOICE_HINT}; or "
    return _zero_date(
        schema.name, column, place, f"{choice}correct the value in the source and have the table read again: {_resync(schema.name)}"
    )


def _zero_date_in_key(table: TableName, column: str, place: str, why: str) -> DefiniteError:
    hint = f"correct the value in the source, then have the table read again: {_resync(table)}; or leave the table out with --exclude"
    return _zero_date(table, column, place, hint, f", and {why}")


def _zero_date(table: TableName, column: str, place: str, hint: str, more: str = "") -> DefiniteError:
    message = f"column {column} of {table} holds a date that does not exist (a zero date such as 0000-00-00){more}"
    return DefiniteError(message, place=f"{place}, column {column}", hint=hint)


def _resync(table: TableName) -> str:
    return f"headrace resync {shlex.quote(str(table))}, then start again"
