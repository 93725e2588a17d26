"""Codecs of dates, times and timestamps.

Invariant: see `codec`. The server silently clips years and fractions that a type does not hold, so every block is checked against this
server's limits. A DATETIME is the source's wall clock; its column is labelled UTC, so that ClickHouse shows the same clock, and a column in
another zone is rejected. A TIMESTAMP is an instant, which a column of any zone can store.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import Column
from headrace.sinks.clickhouse.server.server_limits import ServerLimits
from headrace.sinks.clickhouse.types.codec import Check, ColumnCodec, cast_to, check_range, compose, reinterpret_as
from headrace.sinks.clickhouse.types.type_names import StoredType

_US: Final = pa.timestamp("us")
_UTC_US: Final = pa.timestamp("us", "UTC")
_LAST_DATE, _LAST_SECOND = 65_535, (1 << 32) - 1
_INT64: Final = 1 << 63
UTC_ZONES: Final = frozenset(
    {"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal", "GMT", "Etc/GMT", "Greenwich"}
)
MICROSECONDS_OF_TIME64: Final = "toInt64(toDecimal64({}, 6) * 1000000)"
"""Arrow's time of day cannot represent MySQL's TIME range; microseconds can."""


def date_codec(stored: StoredType, limits: ServerLimits) -> ColumnCodec | None:
    name = stored.plain.name
    outside = f"is outside what this server's {stored.sql_name} holds"
    if name == "Date32":
        return ColumnCodec(pa.date32(), checks=(check_range(pa.int32(), limits.first_day, limits.last_day, outside),))
    if name == "Date":
        checks = (check_range(pa.int32(), 0, _LAST_DATE, outside),)
        recode = compose(reinterpret_as(pa.int32()), cast_to(pa.uint16()))
        return ColumnCodec(pa.uint16(), recode, checks=checks, canonical="toDate32({})", caution="dates before 1970 or after 2149-06-06")
    return None


def timestamp_codec(column: Column, stored: StoredType, limits: ServerLimits) -> ColumnCodec | str | None:
    """For DATETIME and TIMESTAMP; a text tells why the type is rejected."""
    match stored.plain.name:
        case "DateTime64":
            return _datetime64_codec(column, stored, limits)
        case "DateTime":
            return _datetime_codec(column, stored, limits)
        case "Int64":
            # Microseconds since 1970, of the wall clock or the instant.
            return ColumnCodec(pa.int64(), reinterpret_as(pa.int64()), reinterpret_as(column.arrow_type), canonical=None, comparable=False)
    return None


def time_codec(column: Column, stored: StoredType, limits: ServerLimits) -> ColumnCodec | None:
    """For TIME: signed, and beyond 24 hours."""
    outside = f"is outside what this server's {stored.sql_name} holds"
    bounds = check_range(pa.int64(), limits.first_time_us, limits.last_time_us, outside)
    restore = reinterpret_as(pa.time64("us"))
    match stored.plain.name:
        case "Time64":
            scale = stored.plain.number(0, 3)
            checks = (bounds, *_check_fraction(column, scale))
            caution = "" if scale >= column.precision else f"fractions of more than {scale} digits"
            read = MICROSECONDS_OF_TIME64
            return ColumnCodec(
                pa.time64("us"), restore=restore, checks=checks, read=read, canonical=read, comparable=False, caution=caution
            )
        case "Time":
            read = "toInt64({}) * 1000000"
            recode = compose(
                reinterpret_as(pa.int64()),
                reinterpret_as(pa.duration("us")),
                cast_to(pa.duration("s")),
                reinterpret_as(pa.int64()),
                cast_to(pa.int32()),
            )
            caution = "fractions of a second" if column.precision else ""
            checks = (bounds, *_check_fraction(column, 0))
            return ColumnCodec(pa.int32(), recode, restore, checks, read=read, canonical=read, comparable=False, caution=caution)
        case "Int64":
            return ColumnCodec(pa.int64(), reinterpret_as(pa.int64()), restore, checks=_check_fraction(column, 6))
    return None


def _datetime64_codec(column: Column, stored: StoredType, limits: ServerLimits) -> ColumnCodec | str | None:
    scale = stored.plain.number(0, 3)
    if not 0 <= scale <= 9:
        return None
    # Above six fractional digits, 64 bits cover fewer years.
    most = _INT64 // 10 ** (scale - 6) - 1 if scale > 6 else limits.last_instant_us
    first, last = max(limits.first_instant_us, -most), min(limits.last_instant_us, most)
    fraction = "" if scale >= column.precision else f"fractions of more than {scale} digits"
    years = f"years that a DateTime64 of {scale} digits cannot hold" if most < limits.last_instant_us else ""
    checks = (
        check_range(pa.int64(), first, last, f"is outside what this server's {stored.sql_name} holds"),
        *_check_fraction(column, scale),
    )
    zone = stored.plain.text(1) or limits.zone
    if column.type.zoned:
        read = "{}" if zone in UTC_ZONES else "toTimeZone({}, 'UTC')"
        return ColumnCodec(_UTC_US, None, cast_to(_UTC_US), checks, read=read, canonical=read, caution=_both(fraction, years))
    if zone not in UTC_ZONES:
        return _wall_clock_in(zone)
    return ColumnCodec(_US, None, _wall_clock, checks, caution=_both(fraction, years))


def _datetime_codec(column: Column, stored: StoredType, limits: ServerLimits) -> ColumnCodec | str:
    zone = stored.plain.text(0) or limits.zone
    if not column.type.zoned and zone not in UTC_ZONES:
        return _wall_clock_in(zone)
    outside = f"is outside what {stored.sql_name} holds"
    checks = (check_range(pa.int64(), 0, _LAST_SECOND * 1_000_000 + 999_999, outside), *_check_fraction(column, 0))
    recode = compose(reinterpret_as(_US), cast_to(pa.timestamp("s")), reinterpret_as(pa.int64()), cast_to(pa.uint32()))
    restore = compose(
        cast_to(pa.uint32()), cast_to(pa.int64()), reinterpret_as(pa.timestamp("s")), cast_to(_US), reinterpret_as(column.arrow_type)
    )
    canonical = f"toDateTime64({{}}, {column.precision}, 'UTC')"
    caution = _both("fractions of a second" if column.precision else "", "years before 1970 or after 2106")
    return ColumnCodec(pa.uint32(), recode, restore, checks, canonical=canonical, caution=caution)


def _wall_clock_in(zone: str) -> str:
    # Daylight saving skips hours, and time zone rules differ between programs.
    return f"a DATETIME is a wall clock, which a column in the zone {zone} cannot hold for every hour; label the column 'UTC'"


def _wall_clock(array: Any) -> Any:
    """Both are ticks in UTC; the zone is only a label."""
    return array.cast(_UTC_US).cast(pa.int64()).cast(_US)


def _both(one: str, other: str) -> str:
    return " and ".join(part for part in (one, other) if part)


def _check_fraction(column: Column, scale: int) -> tuple[Check, ...]:
    """Return a check for fractions finer than the column's precision or the type's."""
    digits = min(scale, column.precision)
    if digits >= 6:
        return ()
    unit = pa.scalar(10 ** (6 - digits), pa.int64())

    def find(array: Any) -> Any | None:
        numbers = array.view(pa.int64())
        bad = pc.not_equal(pc.multiply(pc.divide(numbers, unit), unit), numbers)
        return bad if pc.any(bad).as_py() else None

    return (Check(f"has more than {digits} fractional digits", find),)
