"""The setting for invalid dates. It needs no pyarrow, so the command line can list its values quickly."""

from __future__ import annotations

from enum import StrEnum


class ZeroDates(StrEnum):
    """How to read an invalid date: 0000-00-00, 2024-00-10, the 31st of February."""

    HALT = "halt"
    NULL = "null"
    EPOCH = "epoch"
    """1970-01-01, with a warning in the log. It cannot be distinguished from that day."""
