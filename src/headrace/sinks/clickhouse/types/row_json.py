"""Converts single rows to readable JSON and back, for every kind of column.

Invariant: `rows_from_json(schema, [row_to_json(...)])` equals the original rows, bit for bit. Never used on whole blocks.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final, assert_never

import pyarrow as pa

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.server.scalar_values import plain_value, time_text
from headrace.sinks.clickhouse.server.server_limits import DAY_US

Json = Any
_DAY: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)")
_CLOCK: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def row_to_json(images: pa.RecordBatch, schema: TableSchema, row: int) -> dict[str, Json]:
    """Return one row as JSON values by column."""
    return {column.name: _to_json(column, images.column(place)[row]) for place, column in enumerate(schema.columns)}


def rows_from_json(schema: TableSchema, rows: list[dict[str, Json]]) -> pa.RecordBatch:
    """Return rows from their JSON values."""
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
            text = _moment_text(scalar)
            # A value that has no text form is stored as its number.
            return text if _ticks(column, text) == scalar.value else scalar.value
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.VECTOR:
            return scalar.as_py()
        case unknown:
            assert_never(unknown)


def _moment_text(scalar: Any) -> str:
    plain = plain_value(scalar)
    return plain if isinstance(plain, str) else str(plain).removesuffix("+00:00")


def _to_array(column: Column, values: list[Json]) -> Any:
    match column.form:
        case ValueForm.FLOAT:
            return pa.array([None if value is None else float(value) for value in values], column.arrow_type)
        case ValueForm.DECIMAL:
            return pa.array([None if value is None else Decimal(value) for value in values], column.arrow_type)
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return _packed(column, values, bytes.fromhex)
        case ValueForm.FIXED_BYTES:
            return _packed(column, values, column.type.parse_value)
        case ValueForm.DATE:
            return pa.array([_ticks(column, value) for value in values], pa.int32()).cast(pa.date32())
        case ValueForm.TIMESTAMP:
            return pa.array([_ticks(column, value) for value in values], pa.int64()).cast(column.arrow_type)
        case ValueForm.TIME:
            return pa.array([_ticks(column, value) for value in values], pa.int64()).view(pa.time64("us"))
        case ValueForm.MEMBERS:
            return pa.array(values, pa.string()).dictionary_encode()
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.TEXT | ValueForm.JSON | ValueForm.VECTOR:
            return pa.array(values, column.arrow_type)
        case unknown:
            assert_never(unknown)


def _packed(column: Column, values: list[Json], pack: Any) -> Any:
    return pa.array([None if value is None else pack(value) for value in values], column.arrow_type)


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
