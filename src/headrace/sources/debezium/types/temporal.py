"""Dates, times and timestamps of events, a column at a time: counts of days or of fractions of a second, or ISO 8601 texts.

Invariant: exact or bad. A value between two microseconds, or out of range for 64 bits of them, is marked as bad and is NULL; nothing is
rounded. A `Timestamp` without a zone is a local clock reading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sources.debezium.types.binary import Array, Mask, ParsedColumn, valid_rows

_PER_SECOND: Final = {
    "io.debezium.time.Time": 1_000,
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Time": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTime": 1_000_000,
    "io.debezium.time.MicroTimestamp": 1_000_000,
    "io.debezium.time.NanoTime": 1_000_000_000,
    "io.debezium.time.NanoTimestamp": 1_000_000_000,
}
"""Units per second by schema name; microseconds by default."""
_MICROS: Final = 1_000_000
_MOST: Final = (1 << 63) - 1
_CLOCK: Final = (
    r"^(?P<sign>-?)(?P<hours>\d{1,3}):(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d)(?:\.(?P<fraction>\d{1,6})0{0,3})?)?(?:Z|\+00:00)?$"
)
_DAY: Final = r"^(\d{4}-\d\d-\d\d)(?:Z|\+00:00)?$"
_SUB_MICRO: Final = r"(\.\d{6})0{1,3}(Z|[+-]\d\d|$)"


def days(array: Array) -> ParsedColumn:
    """Days since 1970, or texts such as `2017-09-15Z`."""
    if pa.types.is_string(array.type):
        found = pc.replace_substring_regex(array, _DAY, r"\1")
        return each(found, pa.date32(), lambda part: part.cast(pa.date32()))
    return each(array, pa.date32(), lambda part: part.cast(pa.int32()).view(pa.date32()))


def timestamps(array: Array, semantic: str, zoned: bool) -> ParsedColumn:
    """Readings of a clock, or instants, in microseconds: counts since 1970, or ISO texts."""
    kind = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")
    if pa.types.is_string(array.type):
        found = each(_without_idle_zeros(array), pa.timestamp("us"), _instants)
        return ParsedColumn(found.array.view(kind), found.bad)
    counted = ticks(array, semantic)
    return ParsedColumn(counted.array.view(kind), counted.bad)


def times(array: Array, semantic: str) -> ParsedColumn:
    """Times in microseconds, below zero and beyond a day too: counts, or texts such as `20:05:23.123Z`."""
    counted = each(array, pa.int64(), _clocks) if pa.types.is_string(array.type) else ticks(array, semantic)
    return ParsedColumn(counted.array.view(pa.time64("us")), counted.bad)


def ticks(array: Array, semantic: str) -> ParsedColumn:
    per_second = _PER_SECOND.get(semantic, _MICROS)
    counts = array.cast(pa.int64())
    if per_second == _MICROS:
        return ParsedColumn(counts)
    numbers = pc.fill_null(counts, 0).to_numpy(zero_copy_only=False)
    if per_second < _MICROS:
        factor = _MICROS // per_second
        bad = (numbers > _MOST // factor) | (numbers < -(_MOST // factor))
        made = np.where(bad, 0, numbers) * factor
    else:
        made, rest = np.divmod(numbers, per_second // _MICROS)
        bad = rest != 0
    return _counted(counts, made, bad)


def _counted(counts: Array, made: npt.NDArray[np.int64], bad: Mask) -> ParsedColumn:
    none = bad if not counts.null_count else bad | ~valid_rows(counts)
    array = pa.array(made, mask=none) if none.any() else pa.array(made)
    return ParsedColumn(array, bad if bad.any() else None)


def _without_idle_zeros(texts: Array) -> Array:
    """Java's formatters may write nine digits; what is beyond the sixth is only dropped if it is nothing."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    return pc.replace_substring_regex(texts, _SUB_MICRO, r"\1\2") if longest > len("2025-01-02T03:04:05.123456Z") else texts


def _instants(texts: Array) -> Array:
    """Instants of texts with a zone or an offset; a text without one is taken for UTC."""
    utc = pa.timestamp("us", "UTC")
    try:
        return texts.cast(utc).view(pa.timestamp("us"))
    except pa.ArrowInvalid:
        naive = pc.invert(pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d\d:?\d\d|[+-]\d\d)$"))
        return pc.if_else(naive, pc.binary_join_element_wise(texts, "Z", ""), texts).cast(utc).view(pa.timestamp("us"))


def _clocks(texts: Array) -> Array:
    found = pc.extract_regex(texts, _CLOCK)
    if found.null_count != texts.null_count:
        raise pa.ArrowInvalid("no time")
    hours, minutes, seconds = (_number(found.field(place)) for place in (1, 2, 3))
    fraction = _number(pc.utf8_rpad(found.field(4), 6, "0"))
    made = ((hours * 60 + minutes) * 60 + seconds) * _MICROS + fraction
    below = np.asarray(pc.fill_null(pc.equal(found.field(0), "-"), False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return _counted(texts, np.where(below, -made, made), np.zeros(len(texts), np.bool_)).array


def _number(texts: Array) -> npt.NDArray[np.int64]:
    filled = pc.if_else(pc.equal(texts, ""), "0", texts)
    return np.asarray(pc.fill_null(filled, "0").cast(pa.int64()).to_numpy(zero_copy_only=False))


def each(array: Array, kind: pa.DataType, convert: Callable[[Any], Any]) -> ParsedColumn:
    """Convert all rows at once. If Arrow rejects some, find them by bisection and set them to NULL."""
    try:
        return ParsedColumn(convert(array))
    except pa.ArrowInvalid:
        if len(array) == 1:
            return ParsedColumn(pa.nulls(1, kind), np.ones(1, np.bool_))
    half = len(array) // 2
    parts = [each(array[:half], kind, convert), each(array[half:], kind, convert)]
    bad = [part.bad if part.bad is not None else np.zeros(len(part.array), np.bool_) for part in parts]
    return ParsedColumn(pa.concat_arrays([part.array for part in parts]), np.concatenate(bad))
