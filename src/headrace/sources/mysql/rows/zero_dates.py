"""Invalid dates that are read as the epoch: codes for the kernels, and warnings and errors for the user.

A replaced value is never silent: every process warns once per column, with the count of the first occurrence.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.sources.mysql.kernels import values

log = logging.getLogger("headrace.mysql")

ZERO_CODES: Final = {
    ZeroDates.HALT: values.HALT_AT_ZERO,
    ZeroDates.NULL: values.NULL_FOR_ZERO,
    ZeroDates.EPOCH: values.EPOCH_FOR_ZERO,
}
_OTHER_CHOICE_HINT: Final = (
    "start again with --zero-dates null or --zero-dates epoch (zero_dates in Python and in a settings file), which replicate such dates as "
    "NULL or as 1970-01-01"
)
_warned: set[tuple[TableName, str]] = set()


def warn_of_zero_dates(schema: TableSchema, columns: Sequence[str], counts: Any) -> None:
    """Warn once per column that its invalid dates were read as the epoch."""
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


def scanned_zero_date(table: TableName, column: str) -> DefiniteError:
    """Return the error for a row that a SELECT returned."""
    return _zero_date(table, column, f"snapshot of {table}", f"correct the value in the source and start again, or {_OTHER_CHOICE_HINT}")


def logged_zero_date(table: TableName, column: str, place: str) -> DefiniteError:
    """Return the error for a row event. A correction in the source does not change the log: the table needs a resync."""
    return _zero_date(
        table, column, place, f"{_OTHER_CHOICE_HINT}; or correct the value in the source and have the table read again: {_resync(table)}"
    )


def zero_date_in_key(table: TableName, column: str, place: str) -> DefiniteError:
    """Return the error for `--zero-dates null` on a column that cannot be NULL."""
    hint = f"correct the value in the source, or choose --zero-dates epoch; then have the table read again: {_resync(table)}"
    return _zero_date(table, column, place, hint, ", and a column of the key cannot be NULL")


def _zero_date(table: TableName, column: str, place: str, hint: str, more: str = "") -> DefiniteError:
    message = f"column {column} of {table} holds a date that does not exist (a zero date such as 0000-00-00){more}"
    return DefiniteError(message, place=f"{place}, column {column}", hint=hint)


def _resync(table: TableName) -> str:
    return f"headrace resync {shlex.quote(str(table))}, then start again"
