"""Dates and timestamps that ClickHouse does not hold.

CQL's go millions of years in both directions; the server clips what it does not hold without a word. So every block is looked through
before it is written, wherever in a value a moment lies, and the first one that does not fit is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.log import TIME
from headrace.cql.log_positions import BatchPlace
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.server_limits import ServerLimits

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
_MOMENTS: Final = frozenset({"date", "timestamp"})
_MILLI: Final = 1000


def has_moments(kind: CqlType) -> bool:
    """Whether dates or timestamps are in values of the type."""
    return kind.name in _MOMENTS or any(map(has_moments, kind.args))


def check_moments(columns: Iterable[tuple[str, CqlType]], rows: pa.RecordBatch, limits: ServerLimits, subject: str) -> None:
    """Raise `DefiniteError` if a moment in one of these columns is not one that the server holds."""
    for name, kind in columns:
        if name not in rows.schema.names or rows.column(name).null_count == rows.num_rows:
            continue
        for leaf, array in _leaves(kind, to_arrow(kind, rows.column(name), name)):
            numbers = array.cast(pa.int32() if leaf == "date" else pa.int64())
            first, last = (limits.first_day, limits.last_day)
            if leaf == "timestamp":
                first, last = -(-limits.first_instant_us // _MILLI), limits.last_instant_us // _MILLI
            wrong = np.flatnonzero(
                pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False).to_numpy(zero_copy_only=False)
            )
            if len(wrong):
                unit = "days" if leaf == "date" else "milliseconds"
                # Of a moment inside of another value it is not told which row it is in.
                event = str(BatchPlace.of_row(subject, rows, int(wrong[0]))) if kind.name in _MOMENTS and TIME in rows.schema.names else ""
                raise DefiniteError(
                    f"a {leaf} of column {name}, {numbers[int(wrong[0])]} {unit} since 1970, is not one that ClickHouse holds",
                    place=f"{event or f'table {subject}'}, column {name}",
                    hint="correct the value in the source (ClickHouse 26 holds the years 0000 to 9999), or leave the table out",
                    event=event,
                )


def _leaves(kind: CqlType, array: Array) -> Iterator[tuple[str, Array]]:
    """The dates and timestamps in values of a type, wherever they are."""
    if kind.name in _MOMENTS:
        yield kind.name, array
    elif kind.args and has_moments(kind):
        match kind.name:
            case "map":
                parts = [array.keys, array.items]
            case "tuple" | "udt":
                parts = [array.field(place) for place in range(len(kind.args))]
            case _:
                parts = [array.values]
        for arg, part in zip(kind.args, parts, strict=True):
            yield from _leaves(arg, part)
