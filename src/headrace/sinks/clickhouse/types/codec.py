"""How one column's values travel into one stored type, and back.

Invariant: a value that passes a carrier's checks and its recoding is stored as it is, and comes back equal (where a type keeps less than
the source, `loses` says what). A recoding is strict: it raises `pa.ArrowInvalid` for a value that the type cannot hold. Everything works
on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Recode = Callable[[Any], Any]
CONVERSION_SETTINGS: Final = {
    # Text that looks like a date, and a boolean beside other things, stay what they are.
    "input_format_try_infer_dates": "0",
    "input_format_try_infer_datetimes": "0",
    "input_format_json_read_bools_as_strings": "0",
    "input_format_json_read_bools_as_numbers": "0",
    "input_format_json_read_numbers_as_strings": "0",
}
"""What keeps the server from seeing types in a document that it has not. They do not reach the conversions of an Arrow stream, only those
that a statement spells out."""
COLUMN: Final = "{}"
"""Stands for the column in an expression."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that a recoding would not notice."""

    why: str
    """What is said of a value that fails."""
    find: Callable[[Any], Any | None]
    """The values that fail, as an array of booleans; None if none does."""


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """A source's column in a stored type."""

    wire: pa.DataType
    """The Arrow type in which ClickHouse takes it."""
    recode: Recode | None = None
    """An array of the column's own type as one of `wire`; strict. None: it is one."""
    restore: Recode | None = None
    """ClickHouse's answer (chunked) as the column's own type; strict. None: a cast."""
    checks: tuple[Check, ...] = ()
    nullable: bool = False
    """Whether NULLs are sent as NULLs."""
    null_as_value: bool = False
    """Whether a NULL is sent as a value that the column cannot have otherwise."""
    sent_as: str = ""
    """The ClickHouse type in which it is sent if the server is to convert it, under `CONVERSION_SETTINGS`; empty: its own."""
    read: str = COLUMN
    """The expression whose Arrow form `restore` takes."""
    canonical: str | None = COLUMN
    """The expression that gives the value in the column's default type, or in a wider one of its family (any integer type, any
    decimal, DateTime64 of any precision; a TIME as Int64 of microseconds); None where SQL has no exact one."""
    comparable: bool = True
    """Whether the column itself orders and compares like its `canonical` form, so that indexes serve."""
    caution: str = ""
    """Which values of the source's type it cannot hold and would halt at; empty: none."""
    loses: str = ""
    """What of a value is not kept, by nature of the type; empty: nothing."""
    kept: Recode | None = None
    """Where something is lost: the source's values without it, for a comparison with what `restore` gives."""

    def expression(self, quoted: str) -> str:
        """What to select, for `restore`."""
        return self.read.replace(COLUMN, quoted)

    def canonical_expression(self, quoted: str) -> str | None:
        return None if self.canonical is None else self.canonical.replace(COLUMN, quoted)

    def restored(self, values: Any, to: pa.DataType) -> Any:
        """The column's values from what the server answered, chunk by chunk."""
        if self.restore is None:
            return values.cast(to)
        return pa.chunked_array([self.restore(chunk) for chunk in values.chunks], to)


def find_failing_values(array: Any, recode: Recode) -> Any:
    """Which values a strict recoding refuses, as booleans: halves of a column are tried until what fails stands alone."""
    bad = np.zeros(len(array), dtype=bool)
    waiting = [(0, len(array))]
    while waiting:
        start, end = waiting.pop()
        try:
            recode(array[start:end])
        except pa.ArrowInvalid:
            if end - start == 1:
                bad[start] = True
            else:
                middle = (start + end) // 2
                waiting += [(start, middle), (middle, end)]
    return pa.array(bad)


def compose(*recodes: Recode | None) -> Recode | None:
    """One recoding after the other."""
    steps = [one for one in recodes if one is not None]
    if not steps:
        return None

    def run(array: Any) -> Any:
        for step in steps:
            array = step(array)
        return array

    return run


def cast_to(wanted: pa.DataType) -> Recode:
    """A strict cast."""
    return lambda array: array.cast(wanted)


def reinterpret_as(wanted: pa.DataType) -> Recode:
    """The same bits under another type."""
    return lambda array: array.view(wanted)


def check_range(integer: pa.DataType, first: int, last: int, why: str) -> Check:
    """Values outside first..last, both included, of a type that `integer` has the width of."""

    def find(array: Any) -> Any | None:
        numbers = array.view(integer)
        bounds = pc.min_max(numbers)
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        if least is None or (least >= first and most <= last):
            return None
        return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))

    return Check(why, find)
