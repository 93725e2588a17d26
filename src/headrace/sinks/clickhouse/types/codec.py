"""How one column's values are encoded for one ClickHouse type, and decoded.

Invariant: a value that passes a codec's checks and recoding is stored unchanged and is read back equal (where a type stores less than the
source has, `loses` says what). A recoding is strict: it raises `pa.ArrowInvalid` for a value that the type cannot hold. Everything works on
whole columns. Servers differ in the years that their date and time types represent, and silently clip the rest, so `ServerLimits` is
measured on the server in use.
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
    # Text that looks like a date stays text, and booleans stay booleans.
    "input_format_try_infer_dates": "0",
    "input_format_try_infer_datetimes": "0",
    "input_format_json_read_bools_as_strings": "0",
    "input_format_json_read_bools_as_numbers": "0",
    "input_format_json_read_numbers_as_strings": "0",
}
"""Settings that keep the server from inferring other types in a JSON document. They affect conversions in a statement, not those of an
Arrow stream."""
COLUMN: Final = "{}"
"""Placeholder of the column in an expression."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check for values that the recoding would change silently."""

    why: str
    """Error text for a value that fails."""
    find: Callable[[Any], Any | None]
    """Return a boolean array of the values that fail; None if none does."""


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """Encodes and decodes a source column for one stored type."""

    wire: pa.DataType
    """The Arrow type in which ClickHouse receives the column."""
    recode: Recode | None = None
    """Converts an array of the column's own type to `wire`; strict. None: the types are equal."""
    restore: Recode | None = None
    """Converts ClickHouse's response (chunked) to the column's own type; strict. None: a cast."""
    checks: tuple[Check, ...] = ()
    nullable: bool = False
    """Whether NULLs are sent as NULLs."""
    null_as_value: bool = False
    """Whether a NULL is sent as a value that the column cannot have otherwise."""
    sent_as: str = ""
    """The ClickHouse type in which the column is sent if the server converts it, with `CONVERSION_SETTINGS`; empty: the stored type."""
    read: str = COLUMN
    """The SQL expression whose result `restore` decodes."""
    canonical: str | None = COLUMN
    """The SQL expression of the value in the column's default type, or in a wider one of its family (any integer type, any decimal,
    DateTime64 of any precision; a TIME as Int64 of microseconds); None if SQL has no exact one."""
    comparable: bool = True
    """Whether the column itself orders and compares like its `canonical` form, so that indexes can be used."""
    caution: str = ""
    """The source values that the type cannot hold, at which the pipe would halt; empty: none."""
    loses: str = ""
    """What the type does not store of a value; empty: nothing."""
    kept: Recode | None = None
    """If something is lost: removes it from source values, for a comparison with what `restore` returns."""

    def expression(self, quoted: str) -> str:
        """Return the SQL expression to select for `restore`."""
        return self.read.replace(COLUMN, quoted)

    def canonical_expression(self, quoted: str) -> str | None:
        return None if self.canonical is None else self.canonical.replace(COLUMN, quoted)

    def restored(self, values: Any, to: pa.DataType) -> Any:
        """Decode the server's response, chunk by chunk."""
        if self.restore is None:
            return values.cast(to)
        return pa.chunked_array([self.restore(chunk) for chunk in values.chunks], to)


def find_failing_values(array: Any, recode: Recode) -> Any:
    """Return a boolean array of the values that a strict recoding rejects, found by bisection."""
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
    """Return one recoding that applies all given ones in order; None if there are none."""
    steps = [one for one in recodes if one is not None]
    if not steps:
        return None

    def run(array: Any) -> Any:
        for step in steps:
            array = step(array)
        return array

    return run


def cast_to(wanted: pa.DataType) -> Recode:
    """Return a strict cast."""
    return lambda array: array.cast(wanted)


def reinterpret_as(wanted: pa.DataType) -> Recode:
    """Return a recoding that views the same bits as another type."""
    return lambda array: array.view(wanted)


def check_range(integer: pa.DataType, first: int, last: int, why: str) -> Check:
    """Return a check for values outside of first..last (inclusive); `integer` has the width of the column's type."""

    def find(array: Any) -> Any | None:
        numbers = array.view(integer)
        bounds = pc.min_max(numbers)
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        if least is None or (least >= first and most <= last):
            return None
        return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))

    return Check(why, find)
