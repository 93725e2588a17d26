"""Converts single rows to readable JSON and back, for every kind of column.

Invariant: `rows_from_json(schema, [row_to_json(...)])` equals the original rows, bit for bit. Never used on whole blocks.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, assert_never
from uuid import UUID

import pyarrow as pa

from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.clickhouse.server.scalar_values import plain_value, time_text
from headrace.sinks.clickhouse.server.server_limits import DAY_US

Json = Any
_DAY: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)")
_CLOCK: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_INSTANTS: Final = (Kind.DATETIME, Kind.TIMESTAMP)


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
    match column.kind:
        case Kind.FLOAT32 | Kind.FLOAT64:
            number = scalar.as_py()
            return number if math.isfinite(number) else repr(number)
        case Kind.DECIMAL:
            return f"{scalar.as_py():f}"
        case Kind.BYTES | Kind.GEOMETRY:
            return scalar.as_py().hex()
        case Kind.UUID:
            return str(UUID(bytes=scalar.as_py()))
        case Kind.INET4:
            return str(IPv4Address(scalar.as_py()))
        case Kind.INET6:
            return str(IPv6Address(scalar.as_py()))
        case Kind.TIME:
            return time_text(scalar.value)
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            text = _moment_text(scalar)
            # A value that has no text form is stored as its number.
            return text if _ticks(column, text) == scalar.value else scalar.value
        case Kind.INT8 | Kind.INT16 | Kind.INT32 | Kind.INT64 | Kind.UINT8 | Kind.UINT16 | Kind.UINT32 | Kind.UINT64:
            return scalar.as_py()
        case Kind.YEAR | Kind.BIT | Kind.STRING | Kind.JSON | Kind.ENUM | Kind.SET | Kind.VECTOR:
            return scalar.as_py()
        case _:
            assert_never(column.kind)


def _moment_text(scalar: Any) -> str:
    plain = plain_value(scalar)
    return plain if isinstance(plain, str) else str(plain).removesuffix("+00:00")


def _to_array(column: Column, values: list[Json]) -> Any:
    match column.kind:
        case Kind.FLOAT32 | Kind.FLOAT64:
            return pa.array([None if value is None else float(value) for value in values], column.arrow_type)
        case Kind.DECIMAL:
            return pa.array([None if value is None else Decimal(value) for value in values], column.arrow_type)
        case Kind.BYTES | Kind.GEOMETRY:
            return _packed(column, values, bytes.fromhex)
        case Kind.UUID:
            return _packed(column, values, lambda text: UUID(text).bytes)
        case Kind.INET4:
            return _packed(column, values, lambda text: IPv4Address(text).packed)
        case Kind.INET6:
            return _packed(column, values, lambda text: IPv6Address(text).packed)
        case Kind.DATE:
            return pa.array([_ticks(column, value) for value in values], pa.int32()).cast(pa.date32())
        case Kind.DATETIME | Kind.TIMESTAMP:
            return pa.array([_ticks(column, value) for value in values], pa.int64()).cast(column.arrow_type)
        case Kind.TIME:
            return pa.array([_ticks(column, value) for value in values], pa.int64()).view(pa.time64("us"))
        case Kind.ENUM | Kind.SET:
            return pa.array(values, pa.string()).dictionary_encode()
        case Kind.INT8 | Kind.INT16 | Kind.INT32 | Kind.INT64 | Kind.UINT8 | Kind.UINT16 | Kind.UINT32 | Kind.UINT64:
            return pa.array(values, column.arrow_type)
        case Kind.YEAR | Kind.BIT | Kind.STRING | Kind.JSON | Kind.VECTOR:
            return pa.array(values, column.arrow_type)
        case _:
            assert_never(column.kind)


def _packed(column: Column, values: list[Json], pack: Any) -> Any:
    return pa.array([None if value is None else pack(value) for value in values], column.arrow_type)


def _ticks(column: Column, value: Json) -> int | None:
    """Return days for a date, microseconds for other kinds."""
    if value is None or isinstance(value, int):
        return value
    if column.kind is Kind.TIME:
        return _clock_us(value)
    day, _, clock = value.partition(" ")
    found = _DAY.fullmatch(day)
    if found is None:
        return None
    days = _days_of(*map(int, found.groups()))
    return days * DAY_US + _clock_us(clock or "00:00:00") if column.kind in _INSTANTS else days


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
