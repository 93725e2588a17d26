"""Converts columns of any kind to text and back, so that they fit a String column.

Invariant: `format` then `parse` gives the same values; `parse` rejects other text (`pa.ArrowInvalid`). The text is what the source
prints: decimals with all digits, times with the column's fractional digits, bits as that many digits, UUIDs in lower case. Floats have the
shortest digits that give the same bits. All functions work on whole columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import Kind, ValueForm
from headrace.model.schema import Column

Recode = Callable[[Any], Any]
_HYPHENS: Final = (8, 13, 18, 23)
_HEX_PLACES: Final = np.array([place for place in range(36) if place not in _HYPHENS])
_HEX: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NIBBLES: Final = np.full(256, 255, dtype=np.uint8)
_NIBBLES[_HEX] = np.arange(16, dtype=np.uint8)
_TIME: Final = r"^(?P<sign>-?)(?P<hours>\d{2,3}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)(?P<fraction>\.\d{1,6})?$"
_ADDRESS: Final = r"^(?P<a>\d{1,3})\.(?P<b>\d{1,3})\.(?P<c>\d{1,3})\.(?P<d>\d{1,3})$"


def text_functions(column: Column) -> tuple[Recode, Recode] | None:
    """Return the functions that print and parse the column's values; None for kinds without a text form."""
    mine = column.arrow_type
    match column.form:
        case ValueForm.DECIMAL:
            return (lambda array: format_decimals(array, column.precision, column.scale)), (lambda array: array.cast(mine))
        case ValueForm.DATE | ValueForm.INTEGER | ValueForm.FLOAT | ValueForm.TEXT | ValueForm.JSON:
            return _cast_text, (lambda array: array.cast(mine))
        case ValueForm.TIMESTAMP:
            digits = column.precision
            return (lambda array: format_timestamps(array, digits)), (lambda array: array.cast(pa.timestamp("us")).view(mine))
        case ValueForm.TIME:
            return (lambda array: format_times(array, column.precision)), parse_times
        case ValueForm.YEAR:
            return (lambda array: pc.utf8_lpad(_cast_text(array), 4, "0")), (lambda array: array.cast(mine))
        case ValueForm.BITS:
            return (lambda array: format_bits(array, column.precision or 64)), parse_bits
        case ValueForm.FIXED_BYTES:
            return (_PRINTERS[column.kind], _PARSERS[column.kind]) if column.type.printed_alike else None
        case ValueForm.MEMBERS:
            return _cast_text, (lambda array: array.dictionary_encode())
        case ValueForm.GEOMETRY | ValueForm.BYTES | ValueForm.VECTOR:
            return None
        case unknown:
            assert_never(unknown)


def _cast_text(array: Any) -> Any:
    return array.cast(pa.string())


def format_decimals(array: Any, precision: int, scale: int) -> Any:
    """Print decimals with all fractional digits and no exponent."""
    wide = pa.types.is_decimal256(array.type)
    whole = (pa.decimal256 if wide else pa.decimal128)(precision, 0)
    digits = pa.Array.from_buffers(whole, len(array), array.buffers(), offset=array.offset).cast(pa.string())
    if not scale:
        return digits
    negative = pc.starts_with(digits, "-")
    bare = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    text = pc.binary_join_element_wise(pc.utf8_slice_codeunits(bare, 0, -scale), pc.utf8_slice_codeunits(bare, -scale), ".")
    return pc.binary_join_element_wise(pc.if_else(negative, "-", ""), text, "")


def format_timestamps(array: Any, digits: int) -> Any:
    """Print the date and time with this many fractional digits; a TIMESTAMP in UTC."""
    return pc.utf8_slice_codeunits(array.view(pa.timestamp("us")).cast(pa.string()), 0, 20 + digits if digits else 19)


@functools.cache
def _digits(numbers: int, least: int) -> Any:
    """Return the texts of these numbers. (Made on first use: `pa.array` imports pandas.)"""
    return pa.array([f"{number:0{least}d}" for number in range(numbers)])


def format_times(array: Any, digits: int) -> Any:
    """Print times as the source does: at least two digits of hours, and a minus sign below zero."""
    numbers = array.view(pa.int64())
    ticks = np.abs(_filled(numbers))
    seconds, fraction = np.divmod(ticks, 1_000_000)
    minutes, second = np.divmod(seconds, 60)
    hour, minute = np.divmod(minutes, 60)
    if hour.size and hour.max() > 999:
        raise pa.ArrowInvalid("a time beyond 999 hours")
    text = pc.binary_join_element_wise(*(_digits(1000, 2).take(pa.array(part)) for part in (hour, minute, second)), ":")
    if digits:
        cut = pa.array(fraction // 10 ** (6 - digits)).cast(pa.string())
        text = pc.binary_join_element_wise(text, pc.utf8_lpad(cut, digits, "0"), ".")
    signed = pc.binary_join_element_wise(pc.if_else(pc.less(numbers, 0), "-", ""), text, "")
    return _with_nulls_of(numbers, signed)


def parse_times(array: Any) -> Any:
    found = _matched(array, _TIME, "time")
    parts = [_number(found.field(name)) for name in (1, 2, 3)]
    fraction = _number(pc.utf8_rpad(pc.utf8_slice_codeunits(found.field(4), 1), 6, "0"))
    ticks = ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1_000_000 + fraction
    negative = np.asarray(pc.equal(found.field(0), "-").to_numpy(zero_copy_only=False), dtype=bool)
    return _with_nulls_of(array, pa.array(np.where(negative, -ticks, ticks))).view(pa.time64("us"))


def format_bits(array: Any, bits: int) -> Any:
    """Print bits as digits, the most significant first."""
    numbers = _filled(array).astype(">u8")
    digits = np.unpackbits(numbers.view(np.uint8).reshape(-1, 8), axis=1)
    if bits < 64 and digits[:, : 64 - bits].any():
        raise pa.ArrowInvalid(f"a number of more than {bits} bits")
    return _with_nulls_of(array, _fixed_text(digits[:, 64 - bits :] + np.uint8(ord("0"))))


def parse_bits(array: Any) -> Any:
    padded = pc.utf8_lpad(array, 64, "0")
    digits = np.where(_validity(array)[:, None], _places(padded, 64) - np.uint8(ord("0")), np.uint8(0))
    if (digits > 1).any():
        raise pa.ArrowInvalid("text that is not made of 0 and 1")
    return _with_nulls_of(array, pa.array(np.packbits(digits, axis=1).view(">u8").reshape(-1).astype(np.uint64)))


def format_uuids(array: Any) -> Any:
    values = _places(array, 16)
    text = np.full((len(values), 36), ord("-"), dtype=np.uint8)
    text[:, _HEX_PLACES] = _HEX[np.stack((values >> 4, values & 15), axis=2).reshape(-1, 32)]
    return _with_nulls_of(array, _fixed_text(text))


def parse_uuids(array: Any) -> Any:
    """Parse UUIDs in lower case. Any other form is rejected, because printing would not give it back."""
    text = _places(array.cast(pa.binary()), 36)
    nibbles = _NIBBLES[text[:, _HEX_PLACES]]
    valid = _validity(array)
    wrong = (nibbles == 255).any(axis=1) | (text[:, _HYPHENS] != ord("-")).any(axis=1)
    if (wrong & valid).any():
        raise pa.ArrowInvalid("text that is not a UUID in lower case")
    packed = np.asarray((nibbles[:, 0::2] << 4) | (nibbles[:, 1::2] & 15), dtype=np.uint8)
    return _with_nulls_of(array, fixed_bytes(packed))


def format_hex(array: Any) -> Any:
    """Print bytes as two hexadecimal digits each, in lower case."""
    offsets, data = _binary_parts(array)
    text = _HEX[np.stack((data >> 4, data & 15), axis=1).reshape(-1)]
    buffers = [None, pa.py_buffer((offsets * 2).astype(np.int32)), pa.py_buffer(text)]
    return _with_nulls_of(array, pa.Array.from_buffers(pa.string(), len(array), buffers))


def parse_hex(array: Any) -> Any:
    """Parse what `format_hex` prints."""
    offsets, data = _binary_parts(array.cast(pa.binary()))
    nibbles = _NIBBLES[data]
    if (offsets % 2).any() or (nibbles == 255).any():
        raise pa.ArrowInvalid("text that is not hexadecimal digits in lower case")
    packed = np.asarray((nibbles[0::2] << 4) | nibbles[1::2], dtype=np.uint8)
    buffers = [None, pa.py_buffer((offsets // 2).astype(np.int32)), pa.py_buffer(packed)]
    return _with_nulls_of(array, pa.Array.from_buffers(pa.binary(), len(array), buffers))


def format_ipv4(array: Any) -> Any:
    octets = _places(array, 4)
    text = pc.binary_join_element_wise(*(_digits(256, 1).take(pa.array(octets[:, place])) for place in range(4)), ".")
    return _with_nulls_of(array, text)


def parse_ipv4(array: Any) -> Any:
    found = _matched(array, _ADDRESS, "address")
    parts = np.stack([_number(found.field(place)) for place in range(4)], axis=1)
    if (parts > 255).any():
        raise pa.ArrowInvalid("an address with a number above 255")
    return _with_nulls_of(array, fixed_bytes(parts.astype(np.uint8)))


def format_ipv6(array: Any) -> Any:
    """Print IPv6 addresses in full: eight groups of four digits."""
    bare = pc.replace_substring(format_uuids(array), "-", "")
    return pc.binary_join_element_wise(*(pc.utf8_slice_codeunits(bare, at, at + 4) for at in range(0, 32, 4)), ":")


_PRINTERS: Final = {Kind.UUID: format_uuids, Kind.INET4: format_ipv4, Kind.INET6: format_ipv6}
_PARSERS: Final = {Kind.UUID: parse_uuids, Kind.INET4: parse_ipv4}


def fixed_bytes_printer(column: Column) -> Recode:
    """Return the function that prints a FIXED_BYTES column, also if servers print its values in different ways."""
    return _PRINTERS[column.kind]


def fixed_bytes(rows: npt.NDArray[np.uint8]) -> Any:
    """Return rows of bytes as an array of that width."""
    return pa.Array.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def _fixed_text(rows: npt.NDArray[np.uint8]) -> Any:
    return fixed_bytes(rows).cast(pa.binary()).cast(pa.string())


def _places(array: Any, width: int) -> npt.NDArray[np.uint8]:
    """Return values of one width as rows of bytes, NULL as zeros; reject other widths."""
    fixed = array if pa.types.is_fixed_size_binary(array.type) else array.cast(pa.binary()).cast(pa.binary(width))
    if not len(fixed):
        return np.zeros((0, width), dtype=np.uint8)
    rows = np.frombuffer(fixed.buffers()[1], dtype=np.uint8, count=len(fixed) * width, offset=fixed.offset * width).reshape(-1, width)
    return np.where(_validity(array)[:, None], rows, np.uint8(0))


def _binary_parts(array: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return offsets from 0 and the bytes between them; NULL has no bytes."""
    filled = pc.fill_null(array, b"") if array.null_count else array
    _, starts, data = filled.buffers()
    offsets = np.frombuffer(starts, dtype=np.int32, count=len(filled) + 1 + filled.offset)[filled.offset :].astype(np.int64)
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    return offsets - offsets[0], raw[offsets[0] : offsets[-1]]


def _filled(array: Any) -> Any:
    return pc.fill_null(array, 0).to_numpy(zero_copy_only=False)


def _validity(array: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=bool)


def _with_nulls_of(array: Any, made: Any) -> Any:
    return pc.if_else(array.is_valid(), made, pa.scalar(None, made.type)) if array.null_count else made


def _matched(array: Any, pattern: str, what: str) -> Any:
    found = pc.extract_regex(array, pattern)
    if found.null_count != array.null_count:
        raise pa.ArrowInvalid(f"text that is no {what}")
    return found


def _number(text: Any) -> npt.NDArray[np.int64]:
    filled = pc.if_else(pc.equal(text, ""), "0", text)
    return np.asarray(filled.cast(pa.int64()).to_numpy(zero_copy_only=False))
