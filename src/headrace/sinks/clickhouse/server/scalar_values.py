"""Single values, for messages and for the bounds of key ranges. Never used on whole columns.

Invariant: a value that Python's types cannot hold keeps its meaning: a negative time or one above 24 hours becomes a timedelta, a date or
datetime outside of years 1 to 9999 becomes text.
"""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any, assert_never

import pyarrow as pa

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.server_limits import DAY_US

_FIRST_PYTHON_DAY, _LAST_PYTHON_DAY = -719_162, 2_932_896
_DAYS_PER_400_YEARS = 146_097
_MICROSECOND = timedelta(microseconds=1)


def plain_value(scalar: Any) -> object:
    """Return the scalar as a Python value."""
    if not scalar.is_valid:
        return None
    if pa.types.is_time64(scalar.type):
        return timedelta(microseconds=scalar.value)
    if pa.types.is_date32(scalar.type) and not _FIRST_PYTHON_DAY <= scalar.value <= _LAST_PYTHON_DAY:
        return _day_text(scalar.value)
    if pa.types.is_timestamp(scalar.type):
        day, rest_us = divmod(scalar.value, DAY_US)
        if not _FIRST_PYTHON_DAY <= day <= _LAST_PYTHON_DAY:
            return f"{_day_text(day)} {_clock_text(rest_us)}"
    return scalar.as_py()


def render_value(scalar: Any) -> str:
    """Format the scalar for messages, on one line."""
    value = plain_value(scalar)
    if isinstance(value, timedelta):
        return time_text(value // _MICROSECOND)
    if isinstance(value, str | bytes) and not pa.types.is_temporal(scalar.type):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:80]}..."
    return "NULL" if value is None else str(value)


def time_text(microseconds: int) -> str:
    """Format a time as SQL, with six fractional digits."""
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{_clock_text(abs(microseconds))}"


def to_scalar(column: Column, value: object) -> Any:
    """Return a Python value of the column as an Arrow scalar."""
    if isinstance(value, pa.Scalar):
        return value
    if column.form is ValueForm.TIME and isinstance(value, timedelta):
        return pa.array([value // _MICROSECOND], pa.int64()).view(pa.time64("us"))[0]
    if column.form is ValueForm.MEMBERS:
        return pa.scalar(value, pa.string())
    return pa.scalar(value, column.arrow_type)


def literal(column: Column, value: object) -> str:
    """Return the value as a SQL constant that compares exactly with the column's canonical form (a TIME in microseconds)."""
    scalar = to_scalar(column, value)
    match column.form:
        case ValueForm.FLOAT:
            bits = int.from_bytes(struct.pack("<d", scalar.as_py()), "little")
            return f"reinterpretAsFloat64(toUInt64({bits}))"
        case ValueForm.DECIMAL:
            return f"CAST('{scalar.as_py():f}' AS Decimal({column.precision}, {column.scale}))"
        case ValueForm.DATE:
            return f"addDays(toDate32('1970-01-01'), {scalar.value})"
        case ValueForm.TIMESTAMP:
            return f"addMicroseconds(toDateTime64('1970-01-01 00:00:00', 6, 'UTC'), {scalar.value})"
        case ValueForm.TIME:
            return str(scalar.value)
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return f"unhex('{scalar.as_py().hex()}')"
        case ValueForm.FIXED_BYTES:
            return f"to{column.type.clickhouse}('{column.type.print_value(scalar.as_py())}')"
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS:
            return quote_text(str(scalar.as_py()))
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.VECTOR:
            return str(scalar.as_py())
        case unknown:
            assert_never(unknown)


def _day_text(day: int) -> str:
    """Format a date outside of Python's years; the calendar repeats every 400 years."""
    cycles = (_FIRST_PYTHON_DAY - day) // _DAYS_PER_400_YEARS + 1 if day < 0 else -((day - _LAST_PYTHON_DAY) // _DAYS_PER_400_YEARS + 1)
    shifted = pa.scalar(day + cycles * _DAYS_PER_400_YEARS, pa.int32()).cast(pa.date32()).as_py()
    return f"{shifted.year - cycles * 400:04d}-{shifted.month:02d}-{shifted.day:02d}"


def _clock_text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{fraction:06d}"
