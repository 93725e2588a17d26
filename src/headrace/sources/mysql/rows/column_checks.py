"""Checks that decoded columns hold values that their definitions allow, before a block leaves the source.

Servers never send the values that are rejected here; damage without a checksum does. A sink would misread them: a NULL in a NOT NULL column
as zero, bytes that are not UTF-8 as text. The checks work on whole columns, in a few passes per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.column_types import DATE_FORMS, ValueForm
from headrace.model.schema import Column, TableSchema, ZeroDates
from headrace.sources.mysql.events.event_types import DAMAGE_HINT
from headrace.sources.mysql.rows.zero_dates import zero_date_in_key

_LAST_YEAR: Final = 2155


def check_values(
    schema: TableSchema, arrays: Sequence[Any], unvalidated: frozenset[ValueForm], place: str, zero_dates: ZeroDates = ZeroDates.HALT
) -> None:
    """Raise a definite error that names the first column with an invalid value.

    unvalidated: forms whose values the decoder has not validated. zero_dates: with NULL, the decoder writes a NULL for an invalid date.
    """
    for column, array in zip(schema.columns, arrays, strict=True):
        if zero_dates is ZeroDates.NULL and column.form in DATE_FORMS and not column.nullable and array.null_count:
            raise zero_date_in_key(schema.name, column.name, place)
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
