"""Numbers of events, a column at a time: integers, floats, and decimals in all of Debezium's encodings.

Invariant: a number is converted exactly, or its row is bad. A decimal sent as a double gets the shortest digits that give that double: the
source's digits, if there were at most fifteen.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import format_decimals
from headrace.sources.debezium.kernels.values import BAD, read_digits
from headrace.sources.debezium.types.binary import (
    WIDE,
    Array,
    Mask,
    ParsedColumn,
    from_base64,
    spans,
    struct_parts,
    valid_rows,
    whole_numbers,
    with_nulls_at,
)
from headrace.sources.debezium.types.column_mapping import MOST_DIGITS
from headrace.sources.debezium.types.temporal import each

_DIGITS: Final = 38
_EXACT: Final = Context(prec=200_000)
_PLAIN_NUMBER: Final = r"^[+-]?0*(?P<before>[0-9]*?)(?:\.(?P<after>[0-9]+))?$"
_RAISED: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,5}")
_SHORT: Final = 18
_MOST_PLACES: Final = 200
"""An exponent beyond this fits no column: such a text is not written out."""


def integers(array: Array, column: Column, wraps: bool) -> ParsedColumn:
    """Whole numbers of a column's width. `wraps`: those below zero are 64 bits without a sign, as Debezium's `long` mode has them."""
    kind = column.arrow_type
    if wraps and column.form is ValueForm.INTEGER and pa.types.is_uint64(kind) and pa.types.is_signed_integer(array.type):
        return ParsedColumn(array.cast(pa.int64()).view(kind))
    if not pa.types.is_integer(array.type):
        numbers = array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array
        return each(numbers, kind, lambda part: part.cast(kind))
    least, most = column.type.value_range
    if column.form is ValueForm.BITS and column.precision:
        most = min(most, (1 << column.precision) - 1)
    bounds = pc.min_max(array).as_py()
    if bounds["min"] is None or (bounds["min"] >= least and bounds["max"] <= most):
        return ParsedColumn(array.cast(kind))
    # Compared as decimals: no integer type holds the bounds of all others.
    wide = array.cast(pa.decimal128(_DIGITS, 0))
    outside = pc.or_(pc.less(wide, pa.scalar(least, wide.type)), pc.greater(wide, pa.scalar(most, wide.type)))
    bad = np.asarray(pc.fill_null(outside, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return ParsedColumn(with_nulls_at(array, bad).cast(kind), bad)


def floats(array: Array, column: Column) -> ParsedColumn:
    """Fractions; texts as Java writes what JSON has no number for (`NaN`, `Infinity`)."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    # What a float carries was a float in the source: from the double that it was written as, the nearest one is it.
    unsafe = pa.types.is_floating(array.type) or pa.types.is_decimal(array.type)
    return each(array, column.arrow_type, lambda part: part.cast(column.arrow_type, safe=not unsafe))


def decimal_bytes(array: Array, scale: int) -> ParsedColumn:
    """Decimals as Connect writes them: the digits as two's complement (in JSON: as base64), with one scale for all."""
    bad: Mask | None = None
    if pa.types.is_string(array.type):
        array, bad = from_base64(array)
    found = whole_numbers(array)
    return ParsedColumn(_scaled(found.array, scale), either(bad, found.bad))


def _scaled(whole: Array, scale: int) -> Array:
    """The same digits with a point before the last `scale` of them."""
    wide = pa.types.is_decimal256(whole.type)
    kind = pa.decimal256(76, scale) if wide else pa.decimal128(38, scale)
    return pa.Array.from_buffers(kind, len(whole), whole.buffers(), offset=whole.offset)


def variable_texts(array: Array) -> ParsedColumn:
    """All digits of decimals of any scale and length (structs of a scale and digits), as text."""
    members = struct_parts(array)
    scales, digits = members["scale"].cast(pa.int64()), members["value"]
    bad: Mask | None = None
    if pa.types.is_string(digits.type):
        digits, bad = from_base64(digits)
    parts, order = [pa.nulls(0, pa.string())], [np.empty(0, np.int64)]
    for scale in pc.unique(scales.drop_null()).to_pylist():
        there = pc.and_(pc.equal(scales, scale), pc.is_valid(digits))
        where = np.flatnonzero(pc.fill_null(there, False).to_numpy(zero_copy_only=False))
        parts.append(_to_text(digits.take(pa.array(where)), int(scale)))
        order.append(where)
    return ParsedColumn(_scattered(len(array), parts, order), bad)


def variable_as(array: Array, column: Column) -> ParsedColumn:
    texts = variable_texts(array)
    found = _decimals_of_texts(texts.array, column)
    return ParsedColumn(found.array, either(texts.bad, found.bad))


def decimals_of_bytes(array: Array, scale: int, column: Column) -> ParsedColumn:
    if 0 <= scale <= MOST_DIGITS:
        return fitted(decimal_bytes(array, scale), column)
    texts = decimal_texts(array, scale)
    found = _decimals_of_texts(texts.array, column)
    return ParsedColumn(found.array, either(texts.bad, found.bad))


def decimal_texts(array: Array, scale: int) -> ParsedColumn:
    """All digits of `decimal_bytes`, as text: of any length, and of any scale (12E+3 has a negative one, which Arrow does not support)."""
    digits, bad = from_base64(array) if pa.types.is_string(array.type) else ParsedColumn(array)
    empty = np.asarray(pc.fill_null(pc.equal(pc.binary_length(digits), 0), False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    if empty.any():
        digits, bad = with_nulls_at(digits, empty), either(bad, empty)
    return ParsedColumn(_to_text(digits, scale), bad)


def _scattered(rows: int, parts: list[Array], order: list[Any]) -> Array:
    """Parts of a column put where their rows are; NULL everywhere else."""
    made, places = pa.concat_arrays(parts), np.concatenate(order)
    index = np.full(rows, -1, np.int64)
    index[places] = np.arange(len(places))
    return made.take(pa.array(index, mask=index < 0))


def _to_text(digits: Array, scale: int) -> Array:
    longest = pc.max(pc.binary_length(digits)).as_py() or 0
    if longest < WIDE and 0 <= scale < 76:
        whole = whole_numbers(digits).array
        return format_decimals(_scaled(whole, scale), whole.type.precision, scale)
    # Beyond what any decimal type holds: by Python's own numbers, which no column of ordinary values comes to.
    numbers = (None if value is None else int.from_bytes(value, "big", signed=True) for value in digits.to_pylist())
    texts = [None if number is None else format(Decimal(number).scaleb(-scale, _EXACT), "f") for number in numbers]
    return pa.array(texts, pa.string())


def fitted(found: ParsedColumn, column: Column) -> ParsedColumn:
    """Decimals in the digits of a column; those that have more are bad."""
    inside = _bounded(found.array, column)
    made = each(inside.array, column.arrow_type, lambda part: part.cast(column.arrow_type))
    return ParsedColumn(made.array, either(found.bad, either(inside.bad, made.bad)))


def _bounded(array: Array, column: Column) -> ParsedColumn:
    """Decimals with no more digits before the point than a column has. Arrow's own cast takes some that have more for other numbers."""
    kind, before = array.type, column.precision - column.scale
    if before + kind.scale >= kind.precision:
        return ParsedColumn(array)
    bound = pa.scalar(Decimal(10) ** before, kind)
    outside = pc.greater_equal(pc.abs(array), bound)
    bad = np.asarray(pc.fill_null(outside, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return ParsedColumn(with_nulls_at(array, bad), bad) if bad.any() else ParsedColumn(array)


def decimals(array: Array, column: Column) -> ParsedColumn:
    """Decimals of what is no decimal by its type: texts, whole numbers, doubles."""
    if pa.types.is_integer(array.type):
        return fitted(ParsedColumn(array.cast(pa.decimal128(_DIGITS, 0))), column)
    if pa.types.is_floating(array.type):
        # Texts of doubles are their shortest digits; what is no number (NaN) is no decimal.
        array = array.cast(pa.float64()).cast(pa.string())
    return _decimals_of_texts(array.cast(pa.string()), column)


def _decimals_of_texts(texts: Array, column: Column) -> ParsedColumn:
    found = spans(texts)
    numbers, state = np.empty(len(texts), np.int64), np.empty(len(texts), np.uint8)
    if column.scale > _SHORT or read_digits(found.data, found.offsets, column.precision - column.scale, column.scale, numbers, state):
        return _long_decimals(texts, column)
    there = np.ones(len(texts), np.bool_) if found.valid is None else found.valid
    bad = there & (state == BAD)
    # The upper half is the sign.
    wide = np.stack([numbers, numbers >> 63], axis=1)
    nulls = pa.py_buffer(np.packbits(there & ~bad, bitorder="little").tobytes())
    made = pa.Array.from_buffers(pa.decimal128(_DIGITS, column.scale), len(texts), [nulls, pa.py_buffer(wide)])
    return ParsedColumn(made.cast(column.arrow_type), bad if bad.any() else None)


def _long_decimals(texts: Array, column: Column) -> ParsedColumn:
    """As `_bounded`: a text is only given to Arrow if its digits fit the column."""
    texts = _without_exponents(texts)
    digits = pc.extract_regex(texts, _PLAIN_NUMBER)
    before, after = digits.field(0), pc.utf8_rtrim(digits.field(1), "0")
    fits = pc.and_(
        pc.less_equal(pc.binary_length(before), column.precision - column.scale), pc.less_equal(pc.binary_length(after), column.scale)
    )
    fits = pc.and_(pc.and_(fits, pc.is_valid(digits)), pc.match_substring_regex(texts, "[0-9]"))
    bad = ~np.asarray(pc.fill_null(fits, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    bad &= valid_rows(texts)
    if bad.any():
        texts = with_nulls_at(texts, bad)
    # Zeros at the end may be more than any decimal type has digits.
    bare = pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1")
    # Of `.0` only the point would be left, which Arrow does not read.
    bare = pc.replace_substring_regex(bare, r"^([+-]?)\.", r"\10.")
    return ParsedColumn(bare.cast(column.arrow_type), bad if bad.any() else None)


def _without_exponents(texts: Array) -> Array:
    """Write numbers without exponents: `1E+3` is 1000. Texts that are no numbers stay, and fail later."""
    raised = np.flatnonzero(pc.fill_null(pc.match_substring_regex(texts, r"[0-9][eE]"), False).to_numpy(zero_copy_only=False))
    if not len(raised):
        return texts
    named = pc.dictionary_encode(texts.take(pa.array(raised)))
    written = pa.array([_written_out(text) for text in named.dictionary.to_pylist()], pa.string())
    others = np.setdiff1d(np.arange(len(texts)), raised)
    return _scattered(len(texts), [texts.take(pa.array(others)), written.take(named.indices)], [others, raised])


def _written_out(text: str) -> str:
    if not _RAISED.fullmatch(text):
        return text
    number = Decimal(text)
    return format(number, "f") if abs(number.adjusted()) <= _MOST_PLACES else text


def either(first: Mask | None, second: Mask | None) -> Mask | None:
    return second if first is None else first if second is None else first | second
