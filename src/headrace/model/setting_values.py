"""Values of settings, without pyarrow, so that the command line can list them quickly."""

from __future__ import annotations

from enum import StrEnum


class ZeroDates(StrEnum):
    """How to read an invalid date: 0000-00-00, 2024-00-10, the 31st of February."""

    HALT = "halt"
    NULL = "null"
    EPOCH = "epoch"
    """1970-01-01, with a warning in the log. It cannot be distinguished from that day."""


class CascadeMode(StrEnum):
    """What happens to child rows that a foreign key changes, if the source does not log that."""

    APPLY = "apply"
    IGNORE = "ignore"
    HALT = "halt"
