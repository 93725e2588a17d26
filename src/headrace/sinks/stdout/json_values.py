"""Converts columns to JSON fragments without loss.

Whole numbers are numbers with all their digits (in quotes, if that was chosen for those of 64 bits, which JavaScript's numbers do not
hold); decimals, dates and times are text as the source shows them, a TIMESTAMP in UTC with a Z; bytes and geometries (reference and
well-known binary) are base64; a JSON column is the text of its document. Whole columns only: no Python runs per value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import fixed_bytes_printer, format_decimals, format_times, format_timestamps
from headrace.sinks.kafka.debezium.json_fragments import float_lists, floats, in_base64, join, quoted
from headrace.terminal_text import FORMAT_RANGES, UNSAFE, escape_text

_PATTERN: Final = "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in FORMAT_RANGES) + "]"
_SUSPECT: Final = np.zeros(256, dtype=bool)
_SUSPECT[[chr(code).encode()[0] for first, last in FORMAT_RANGES for code in range(first, last + 1)]] = True
Render = Callable[[Any], Any]


def escape_unsafe(texts: Any) -> Any:
    """Escape the characters of quoted texts that control a terminal, end a line, or reorder text; with one scan of the bytes.

    They are escaped in JSON's own way (a backslash, u and four digits): in a line of JSON the value stays the same. JSON's quoting already
    escapes the control characters below the space.
    """
    data = texts.buffers()[2]
    if data is None or not _SUSPECT[np.frombuffer(data, dtype=np.uint8)].any():
        return texts
    found = texts.filter(pc.fill_null(pc.match_substring_regex(texts, _PATTERN), False))
    # Usually few rows: collect the distinct characters of all of them first.
    there = {character for text in pc.unique(found).to_pylist() for character in UNSAFE.findall(text)} if len(found) else set()
    for character in sorted(there):
        texts = pc.replace_substring(texts, character, escape_text(character))
    return texts


def as_text(array: Any) -> Any:
    return array.cast(pa.string())


def renderer(column: Column, *, big_as_text: bool = False) -> Render:
    """What makes pieces of JSON of a column's values; NULL stays NULL."""
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return _in_quotes if big_as_text and column.type.bits == 64 else as_text
        case ValueForm.FLOAT:
            return floats
        case ValueForm.DECIMAL:
            return lambda array: _around(format_decimals(array, column.precision, column.scale))
        case ValueForm.DATE:
            return _in_quotes
        case ValueForm.TIMESTAMP if column.type.zoned:
            return lambda array: _around(pc.replace_substring(format_timestamps(array, column.precision), " ", "T"), "Z")
        case ValueForm.TIMESTAMP:
            return lambda array: _around(format_timestamps(array, column.precision))
        case ValueForm.TIME:
            return lambda array: _around(format_times(array, column.precision))
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return in_base64
        case ValueForm.MEMBERS:
            return _members
        case ValueForm.VECTOR:
            return float_lists
        case ValueForm.TEXT | ValueForm.JSON:
            return lambda array: escape_unsafe(quoted(array))
        case ValueForm.FIXED_BYTES:
            text = fixed_bytes_printer(column)
            return lambda array: _around(text(array))
        case unknown:
            assert_never(unknown)


def _around(texts: Any, end: str = "") -> Any:
    return join('"', texts, f'{end}"')


def _in_quotes(array: Any) -> Any:
    return _around(as_text(array))


def _members(array: Any) -> Any:
    if pa.types.is_dictionary(array.type):
        return escape_unsafe(quoted(array.dictionary)).take(array.indices)
    return escape_unsafe(quoted(array))
