"""Dates that no calendar has and that are read as the epoch: what the kernels are told, and what people are told.

A value that becomes another one is never silent: every process says so once for every column, with the count of its first occasion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.sources.mysql import values

log = logging.getLogger("headrace.mysql")

ZERO_CODES: Final = {
    ZeroDates.HALT: values.HALT_AT_ZERO,
    ZeroDates.NULL: values.NULL_FOR_ZERO,
    ZeroDates.EPOCH: values.EPOCH_FOR_ZERO,
}
ZERO_DATE_HINT: Final = (
    "correct the value in the source, or run with --zero-dates null, or epoch, to replicate such dates as NULL, or as 1970-01-01"
)
_warned: set[tuple[TableName, str]] = set()


def warn_of_zero_dates(schema: TableSchema, columns: Sequence[str], counts: Any) -> None:
    """Say once of each column that dates in it were read as the epoch."""
    if not counts.any():
        return
    for column, count in zip(columns, counts.tolist(), strict=True):
        if count and (schema.name, column) not in _warned:
            _warned.add((schema.name, column))
            log.warning(
                "%s: %d dates in column %s do not exist (such as 0000-00-00) and are stored as 1970-01-01; more of them are not reported",
                schema.name,
                count,
                column,
            )
