"""Masks and hashes of whole columns.

Invariant: NULL stays NULL, and equal values stay equal. A hash covers the salt followed by the value's text as the source displays it (for
binary columns, the bytes). So it does not depend on how the column is stored, and the source's own functions can reproduce it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import text_functions
from headrace.transforms.column_types import column_of
from headrace.transforms.options import Hash, Mask, MaskKind

_WITH_EMPTY_VALUE: Final = (ValueForm.INTEGER, ValueForm.FLOAT, ValueForm.DECIMAL, ValueForm.TEXT, ValueForm.BYTES)
_STAR: Final = pa.scalar("*")
_EMAIL: Final = r"(?s)^(?P<first>.).*@(?P<domain>[^@]*)$"
_WIDTHS: Final = {Hash.SHA256: 64, Hash.MD5: 32}


def masked_column(column: Column, mask: Mask) -> Column:
    """Return the column that a mask produces; raise `DefiniteError` (without a location) if the mask does not apply to it."""
    plain = replace(column, default=None, auto_increment=False, generated="")
    match mask.kind:
        case MaskKind.NULL:
            return replace(plain, nullable=True)
        case MaskKind.EMPTY:
            if column.form not in _WITH_EMPTY_VALUE:
                raise DefiniteError(f"there is no empty value of {column.source_type or column.kind}", hint="mask it with null")
            return plain
        case MaskKind.TEXT | MaskKind.FIRST | MaskKind.LAST | MaskKind.EMAIL:
            if _is_raw(column) or column.form in (ValueForm.VECTOR, ValueForm.JSON):
                raise DefiniteError(f"{column.source_type or column.kind} is no text", hint="mask it with null, or hash it")
            return plain if column.form is ValueForm.TEXT else column_of(column.name, "VARCHAR", pa.string(), nullable=column.nullable)
        case unknown:
            assert_never(unknown)


def masked(column: Column, mask: Mask, array: Any) -> Any:
    match mask.kind:
        case MaskKind.NULL:
            return pa.nulls(len(array), column.arrow_type)
        case MaskKind.EMPTY:
            return _constant(array, _empty(column))
        case MaskKind.TEXT:
            return _constant(array, pa.scalar(mask.text, pa.string()))
        case MaskKind.EMAIL:
            return _email(_to_text(column, array))
        case MaskKind.FIRST | MaskKind.LAST:
            return _partly(_to_text(column, array), mask)
        case unknown:
            assert_never(unknown)


def hashed_column(column: Column, how: Hash) -> Column:
    """Return the column that a hash produces; raise `DefiniteError` (without a location) if it cannot be hashed."""
    if column.form is ValueForm.VECTOR:
        raise DefiniteError("a vector has no text to be hashed", hint="mask it with null, or drop it")
    if how is Hash.NUMBER:
        return column_of(column.name, "UBIGINT", pa.uint64(), nullable=column.nullable)
    return replace(column_of(column.name, "VARCHAR", pa.string(), nullable=column.nullable), source_type=f"varchar({_WIDTHS[how]})")


def hash_input(column: Column, array: Any) -> Any:
    """What is hashed of a column: text or bytes."""
    return array.cast(pa.binary()) if _is_raw(column) else _to_text(column, array)


def hash_expression(how: Hash, name: str, parameter: int | None) -> str:
    """Return DuckDB's expression of the hash."""
    whole = name if parameter is None else f"${parameter} || {name}"
    return f"{'md5' if how is Hash.MD5 else 'sha256'}({whole})"


def salt_for(column: Column, salt: bytes) -> str | bytes:
    """The salt in the type of the column's input."""
    return salt if _is_raw(column) else salt.decode()


def hashed(how: Hash, digits: Any) -> Any:
    """Convert the digits of a hash to its column's values."""
    if how is not Hash.NUMBER:
        return digits
    first = pc.fill_null(pc.utf8_slice_codeunits(digits, 0, 16), "0" * 16).cast(pa.binary()).cast(pa.binary(16))
    letters = np.frombuffer(first.buffers()[1], dtype=np.uint8, count=16 * len(first), offset=16 * first.offset).reshape(-1, 16)
    nibbles = np.where(letters >= ord("a"), letters - np.uint8(ord("a") - 10), letters - np.uint8(ord("0")))
    packed = np.ascontiguousarray((nibbles[:, 0::2] << 4) | nibbles[:, 1::2])
    numbers = packed.view(">u8").reshape(-1).astype(np.uint64)
    return pa.array(numbers, mask=np.asarray(digits.is_null().to_numpy(zero_copy_only=False), dtype=bool))


def _is_raw(column: Column) -> bool:
    """Whether the bytes of the values are hashed, not a text."""
    unprintable = column.form is ValueForm.FIXED_BYTES and not column.type.printed_alike
    return unprintable or column.form in (ValueForm.BYTES, ValueForm.GEOMETRY)


def _to_text(column: Column, array: Any) -> Any:
    found = text_functions(column)
    assert found is not None, "kinds without a text are refused"
    return found[0](array)


def _constant(array: Any, value: Any) -> Any:
    made = pa.repeat(value, len(array))
    return pc.if_else(array.is_valid(), made, pa.scalar(None, value.type)) if array.null_count else made


def _empty(column: Column) -> Any:
    kind = column.arrow_type
    if column.form is ValueForm.TEXT:
        return pa.scalar("", kind)
    return pa.scalar(b"", kind) if column.form is ValueForm.BYTES else pa.scalar(0, kind)


def _partly(text: Any, mask: Mask) -> Any:
    """Replace all but the first or last characters by stars; a text that is not longer than that becomes all stars."""
    length, count = pc.utf8_length(text), mask.count
    shown = pc.and_(pc.greater(length, count), pa.scalar(count > 0))
    stars = pc.binary_repeat(pc.if_else(text.is_valid(), _STAR, None), pc.if_else(shown, pc.subtract(length, count), length))
    if not count:
        return stars
    if mask.kind is MaskKind.LAST:
        return pc.binary_join_element_wise(stars, pc.if_else(shown, pc.utf8_slice_codeunits(text, -count), ""), "")
    return pc.binary_join_element_wise(pc.if_else(shown, pc.utf8_slice_codeunits(text, 0, count), ""), stars, "")


def _email(text: Any) -> Any:
    """Keep the first character and the domain of an address; other texts become three stars."""
    found = pc.extract_regex(text, _EMAIL)
    shown = pc.binary_join_element_wise(pc.struct_field(found, "first"), "***@", pc.struct_field(found, "domain"), "")
    other = pc.if_else(text.is_valid(), pa.scalar("***"), pa.scalar(None, pa.string()))
    return pc.if_else(pc.fill_null(found.is_valid(), False), shown, other)
