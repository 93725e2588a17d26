"""What the server's date and time types really hold.

Invariant: a block that passes `ServerLimits` is stored as it is. Servers differ in the years they can represent and clip the rest without
a word, so the limits are measured on the server in use, not read from a manual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
# Year 0 is no year to Python's calendar; 0000-01-01 is 366 days before 0001-01-01.
YEAR_ZERO_DAYS = date(1, 1, 1).toordinal() - 366 - _EPOCH
_HOUR_US = 3_600_000_000
# Time64 shows and computes up to 999:59:59 and clips beyond; MySQL's TIME ends at 838:59:59.
TIME_LIMIT_US = 1000 * _HOUR_US - 1


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """First and last value that each type keeps: days since 1970, microseconds since 1970, microseconds."""

    first_day: int
    last_day: int
    first_instant_us: int
    last_instant_us: int
    first_time_us: int = -TIME_LIMIT_US
    last_time_us: int = TIME_LIMIT_US
    zone: str = "UTC"
    """The time zone of columns that name none."""


def _days(text: str) -> int:
    return YEAR_ZERO_DAYS if text.startswith("0000") else date.fromisoformat(text).toordinal() - _EPOCH


ANY_SERVER = ServerLimits(YEAR_ZERO_DAYS, _days("9999-12-31"), YEAR_ZERO_DAYS * DAY_US, (_days("9999-12-31") + 1) * DAY_US - 1)
"""The widest limits of any version: for questions that come before a server is asked."""

# The bounds that ClickHouse's versions have had, widest first; the first that the server renders faithfully is its bound.
FIRST_DAYS = ("0000-01-01", "1900-01-01", "1925-01-01", "1970-01-01")
LAST_DAYS = ("9999-12-31", "2299-12-31", "2283-11-11", "2149-06-06")
_PROBES = [(text, bound) for bound in (FIRST_DAYS, LAST_DAYS) for text in bound]


def limits_query() -> str:
    """One row: every candidate day as Date32, then as DateTime64, each as the server renders it; then the server's time zone."""
    days = [f"toString(addDays(toDate32('1970-01-01'), {_days(text)}))" for text, _ in _PROBES]
    instants = [f"toString(addSeconds(toDateTime64('1970-01-01 00:00:00', 6, 'UTC'), {_days(text) * 86_400}))" for text, _ in _PROBES]
    return f"SELECT {', '.join(days + instants)}, timezone()"


def parse_limits(row: Sequence[str]) -> ServerLimits:
    """The limits that a row of `limits_query` shows."""
    days, instants = row[: len(_PROBES)], row[len(_PROBES) : 2 * len(_PROBES)]
    return ServerLimits(
        first_day=_bound(FIRST_DAYS, days),
        last_day=_bound(LAST_DAYS, days),
        first_instant_us=_bound(FIRST_DAYS, instants) * DAY_US,
        last_instant_us=(_bound(LAST_DAYS, instants) + 1) * DAY_US - 1,
        zone=row[2 * len(_PROBES)] if len(row) > 2 * len(_PROBES) else "UTC",
    )


def _bound(candidates: tuple[str, ...], rendered: Sequence[str]) -> int:
    faithful = {text for (text, _), shown in zip(_PROBES, rendered, strict=True) if shown.startswith(text)}
    # The last candidate is what every version has held.
    return _days(next((text for text in candidates if text in faithful), candidates[-1]))
