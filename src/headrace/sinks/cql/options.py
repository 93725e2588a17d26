"""Options of replay into another cluster. Picklable; every field is a setting of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError

CONCURRENCY: Final = 128


class Missing(StrEnum):
    """What happens to tables, user types and columns that the target lacks."""

    CREATE = "create"
    HALT = "halt"


class Dropped(StrEnum):
    """What happens to a column that the source has dropped."""

    DROP = "drop"
    KEEP = "keep"
    """The column stays with its values. If the source adds a column with the same name again, it is not empty."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a log is replayed into a cluster."""

    missing: Missing = Missing.CREATE
    dropped: Dropped = Dropped.DROP
    concurrency: int = CONCURRENCY
    """Concurrent requests per task; the statements of one partition are one request."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise DefiniteError("concurrency must be at least 1", place="[replay] concurrency", hint="leave it out to have the default")
