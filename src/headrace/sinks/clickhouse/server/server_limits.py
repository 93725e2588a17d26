"""The ranges of the server's date and time types.

Invariant: a block that passes `ServerLimits` is stored unchanged. Servers differ in the years that they represent, and silently clip the
rest, so the limits are measured on the server in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
# Python's calendar has no year 0; 0000-01-01 is 366 days before 0001-01-01.
YEAR_ZERO_DAYS = date(1, 1, 1).toordinal() - 366 - _EPOCH
_HOUR_US = 3_600_000_000
# Time64 clips beyond 999:59:59; MySQL's TIME ends at 838:59:59.
TIME_LIMIT_US = 1000 * _HOUR_US - 1


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """First and last value of each type: days since 1970, microseconds since 1970, microseconds."""

    first_day: int
    last_day: int
    first_instant_us: int
    last_instant_us: int
    first_time_us: int = -TIME_LIMIT_US
    last_time_us: int = TIME_LIMIT_US
    zone: str = "UTC"
    """The time zone of columns without one."""


def _days(text: str) -> int:
    return YEAR_ZERO_DAYS if text.startswith("0000") else date.fromisoformat(text).toordinal() - _EPOCH


ANY_SERVER = ServerLimits(YEAR_ZERO_DAYS, _days("9999-12-31"), YEAR_ZERO_DAYS * DAY_US, (_days("9999-12-31") + 1) * DAY_US - 1)
"""The widest limits of any version, for checks without a server."""

# The bounds of ClickHouse's versions, widest first. The first one that the server renders unchanged is its bound.
FIRST_DAYS = ("0000-01-01", "1900-01-01", "1925-01-01", "1970-01-01")
LAST_DAYS = ("9999-12-31", "2299-12-31", "2283-11-11", "2149-06-06")
_PROBES = [(text, bound) for bound in (FIRST_DAYS, LAST_DAYS) for text in bound]


def limits_query() -> str:
    """Return a query of one row: every candidate day as Date32, then as DateTime64, as the server renders it; then its time zone."""
    days = [f"toString(addDays(toDate32('1970-01-01'), {_days(text)}))" for text, _ in _PROBES]
    instants = [f"toString(addSeconds(toDateTime64('1970-01-01 00:00:00', 6, 'UTC'), {_days(text) * 86_400}))" for text, _ in _PROBES]
    return f"SELECT {', '.join(days + instants)}, timezone()"


def parse_limits(row: Sequence[str]) -> ServerLimits:
    """Parse the result of `limits_query`."""
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
    # Every version supports the last candidate.
    return _days(next((text for text in candidates if text in faithful), candidates[-1]))
