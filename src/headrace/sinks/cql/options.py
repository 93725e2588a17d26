"""Options of replay into another cluster. Picklable; every field is a setting of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError

CONCURRENCY: Final = 128


class Missing(StrEnum):
    """What becomes of tables, user types and columns that the target lacks."""

    CREATE = "create"
    HALT = "halt"


class Dropped(StrEnum):
    """What becomes of a column that the source has dropped."""

    DROP = "drop"
    KEEP = "keep"
    """It stays with what it holds. A column that the source adds again under its name is then not empty."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a log is replayed."""

    missing: Missing = Missing.CREATE
    dropped: Dropped = Dropped.DROP
    concurrency: int = CONCURRENCY
    """Requests that each task has under way at once; the statements of one partition are one request."""

    def check(self) -> None:
        """Raise `DefiniteError` for numbers that make no sense."""
        if self.concurrency < 1:
            raise DefiniteError("concurrency must be at least 1", place="[replay] concurrency", hint="leave it out to have the default")
