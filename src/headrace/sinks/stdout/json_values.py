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
from headrace.sinks.kafka.debezium.json_fragments import in_base64, quoted
from headrace.sinks.stdout.terminal_escapes import as_text, escape_unsafe

NULL: Final = "null"

Render = Callable[[Any], Any]


def renderer(column: Column, *, big_as_text: bool = False) -> Render:
    """What makes pieces of JSON of a column's values; NULL stays NULL."""
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return _in_quotes if big_as_text and column.type.bits == 64 else as_text
        case ValueForm.FLOAT:
            return _floats
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
            return _lists
        case ValueForm.TEXT | ValueForm.JSON:
            return lambda array: escape_unsafe(quoted(array))
        case ValueForm.FIXED_BYTES:
            text = fixed_bytes_printer(column)
            return lambda array: _around(text(array))
        case unknown:
            assert_never(unknown)


def or_null(texts: Any) -> Any:
    """Pieces in which NULL is JSON's word for it."""
    return pc.fill_null(texts, NULL) if texts.null_count else texts


def join(*parts: Any) -> Any:
    """Texts and columns of texts, row by row."""
    return pc.binary_join_element_wise(*parts, "")


def _around(texts: Any, end: str = "") -> Any:
    return join('"', texts, f'{end}"')


def _in_quotes(array: Any) -> Any:
    return _around(as_text(array))


def _floats(array: Any) -> Any:
    """The shortest digits that give the same bits, never like those of a whole number."""
    digits = as_text(array)
    return pc.if_else(pc.match_substring_regex(digits, "[.e]"), digits, join(digits, ".0"))


def _members(array: Any) -> Any:
    return (
        escape_unsafe(quoted(array.dictionary)).take(array.indices) if pa.types.is_dictionary(array.type) else escape_unsafe(quoted(array))
    )


def _lists(array: Any) -> Any:
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    inner = pa.ListArray.from_arrays(pa.array(offsets), _floats(array.values))
    made = join("[", pc.binary_join(inner, ","), "]")
    return pc.if_else(array.is_valid(), made, pa.scalar(None, pa.string())) if array.null_count else made
