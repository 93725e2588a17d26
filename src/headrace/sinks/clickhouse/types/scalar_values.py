"""Single values, as text in messages, as SQL constants and as JSON. Never used on whole columns.

Invariant: a value that Python's types cannot hold keeps its meaning: a negative time or one above 24 hours becomes a timedelta, a date or
datetime outside of years 1 to 9999 becomes text. A constant of a stored type equals what the column would store for the same value in a
block, because it uses the column's codec. `rows_from_json(schema, [row_to_json(...)])` equals the original rows, bit for bit.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, assert_never
from uuid import UUID

import pyarrow as pa

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.server_limits import ANY_SERVER, DAY_US
from headrace.sinks.clickhouse.types.codec_registry import codec_for
from headrace.sinks.clickhouse.types.type_names import parse_stored_type

_FIRST_PYTHON_DAY, _LAST_PYTHON_DAY = -719_162, 2_932_896
_DAYS_PER_400_YEARS = 146_097
_MICROSECOND = timedelta(microseconds=1)
_DAY: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)")
_CLOCK: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
Json = Any


def plain_value(scalar: Any) -> object:
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
            return _written("", scalar.cast(pa.float64()))
        case ValueForm.DECIMAL:
            return f"CAST({_written('', scalar)} AS Decimal({column.precision}, {column.scale}))"
        case ValueForm.TIME:
            return str(scalar.value)
        case ValueForm.FIXED_BYTES:
            return f"to{column.type.clickhouse}('{column.type.print_value(scalar.as_py())}')"
        case ValueForm.VECTOR:
            return str(scalar.as_py())
        case (
            ValueForm.DATE
            | ValueForm.TIMESTAMP
            | ValueForm.BYTES
            | ValueForm.GEOMETRY
            | ValueForm.TEXT
            | ValueForm.JSON
            | ValueForm.MEMBERS
        ):
            return _written("", scalar)
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return _written("", scalar)
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


def constant_sql(column: Column, stored: str, value: object) -> str | None:
    """Return a value as a SQL constant (dates as days, times as microseconds); None if the type does not store it unchanged."""
    codec = codec_for(column, stored, ANY_SERVER)
    array = _array(column, value)
    if codec.loses or any(check.find(array) is not None for check in codec.checks):
        return None
    try:
        sent = array if codec.recode is None else codec.recode(array)
    except pa.ArrowInvalid:
        return None
    return f"CAST({_written(parse_stored_type(stored).plain.name, sent[0])}, {quote_text(stored)})"


def scalar_value(scalar: Any) -> object:
    """Return an Arrow scalar as `constant_sql` takes it."""
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def from_ticks(column: Column, ticks: list[Any]) -> Any:
    """Return dates, times or timestamps from days or microseconds."""
    return pa.array(ticks, pa.int32() if column.form is ValueForm.DATE else pa.int64()).view(column.arrow_type)


def _array(column: Column, value: object) -> Any:
    match column.form:
        case ValueForm.MEMBERS:
            return pa.array([value], pa.string()).dictionary_encode()
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return from_ticks(column, [value])
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.TEXT | ValueForm.JSON:
            return pa.array([value], column.arrow_type)
        case ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return pa.array([value], column.arrow_type)
        case unknown:
            assert_never(unknown)


def _written(stored: str, sent: Any) -> str:
    """Render an encoded value as SQL."""
    match stored:
        case "UUID":
            return f"'{UUID(bytes=sent.as_py())}'"
        case "IPv4":
            return f"'{IPv4Address(sent.as_py())}'"
        case "IPv6":
            return f"'{IPv6Address(sent.as_py())}'"
    kind = sent.type
    if pa.types.is_time64(kind):
        return f"'{time_text(sent.value)}'"
    if pa.types.is_date32(kind):
        return f"addDays(toDate32('1970-01-01'), {sent.value})"
    if pa.types.is_timestamp(kind):
        return f"addMicroseconds(toDateTime64('1970-01-01 00:00:00', 6, 'UTC'), {sent.value})"
    if pa.types.is_list(kind):
        return f"[{', '.join(_written('', one) for one in sent)}]"
    value = sent.as_py()
    if pa.types.is_float32(kind):
        return f"reinterpretAsFloat32(toUInt32({int.from_bytes(struct.pack('<f', value), 'little')}))"
    if pa.types.is_float64(kind):
        return f"reinterpretAsFloat64(toUInt64({int.from_bytes(struct.pack('<d', value), 'little')}))"
    if pa.types.is_decimal(kind):
        return f"'{value:f}'"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    return quote_text(value) if isinstance(value, str) else str(int(value))


def row_to_json(images: pa.RecordBatch, schema: TableSchema, row: int) -> dict[str, Json]:
    return {column.name: _to_json(column, images.column(place)[row]) for place, column in enumerate(schema.columns)}


def rows_from_json(schema: TableSchema, rows: list[dict[str, Json]]) -> pa.RecordBatch:
    arrays = [_to_array(column, [row[column.name] for row in rows]) for column in schema.columns]
    return pa.record_batch(arrays, schema=schema.arrow_schema)


def _to_json(column: Column, scalar: Any) -> Json:
    if not scalar.is_valid:
        return None
    match column.form:
        case ValueForm.FLOAT:
            number = scalar.as_py()
            return number if math.isfinite(number) else repr(number)
        case ValueForm.DECIMAL:
            return f"{scalar.as_py():f}"
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return scalar.as_py().hex()
        case ValueForm.FIXED_BYTES:
            return column.type.print_value(scalar.as_py())
        case ValueForm.TIME:
            return time_text(scalar.value)
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            text = str(plain_value(scalar)).removesuffix("+00:00")
            # A value that has no text form is stored as its number.
            return text if _ticks(column, text) == scalar.value else scalar.value
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.VECTOR:
            return scalar.as_py()
        case unknown:
            assert_never(unknown)


def _to_array(column: Column, values: list[Json]) -> Any:
    match column.form:
        case ValueForm.FLOAT:
            return pa.array([None if value is None else float(value) for value in values], column.arrow_type)
        case ValueForm.DECIMAL:
            return pa.array([None if value is None else Decimal(value) for value in values], column.arrow_type)
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.FIXED_BYTES:
            parse = column.type.parse_value if column.form is ValueForm.FIXED_BYTES else bytes.fromhex
            return pa.array([None if value is None else parse(value) for value in values], column.arrow_type)
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return from_ticks(column, [_ticks(column, value) for value in values])
        case ValueForm.MEMBERS:
            return pa.array(values, pa.string()).dictionary_encode()
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.TEXT | ValueForm.JSON | ValueForm.VECTOR:
            return pa.array(values, column.arrow_type)
        case unknown:
            assert_never(unknown)


def _ticks(column: Column, value: Json) -> int | None:
    """Return days for a date, microseconds for other kinds."""
    if value is None or isinstance(value, int):
        return value
    if column.form is ValueForm.TIME:
        return _clock_us(value)
    day, _, clock = value.partition(" ")
    found = _DAY.fullmatch(day)
    if found is None:
        return None
    days = _days_of(*map(int, found.groups()))
    return days * DAY_US + _clock_us(clock or "00:00:00") if column.form is ValueForm.TIMESTAMP else days


def _clock_us(text: str) -> int:
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time")
    sign, hours, minutes, seconds, fraction = found.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return (-1 if sign else 1) * (whole * 1_000_000 + int((fraction or "").ljust(6, "0")))


def _days_of(year: int, month: int, day: int) -> int:
    """Return days since 1970 in the Gregorian calendar, including year 0 and years beyond 9999."""
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
