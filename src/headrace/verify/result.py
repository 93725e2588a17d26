"""What a comparison says of a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.model.schema import TableSchema
from headrace.verify.row_compare import Comparison


class Verdict(StrEnum):
    """From good to bad."""

    EQUAL = "equal"
    CHANGING = "changing"
    """Rows changed each time they were looked at; nothing else differs."""
    BEHIND = "behind"
    """The sink has not reached what the source shows; whatever differs may come yet."""
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class TableResult:
    """What comparing one table found."""

    schema: TableSchema
    comparison: Comparison
    """Rows looked at, and differences that are sure."""
    behind: int = 0
    changing: int = 0
    unread: int = 0
    """Rows in parts that differ, beyond those that were looked at singly."""
    repaired: int = 0
    """Rows that were different and have been set right; they are not among the differences."""
    is_behind: bool = False
    """Whether nothing could be said, because the table is not there yet."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    missing: int = 0
    """Of the rows behind, those that the sink does not have."""
    extra: int = 0
    """Of the rows behind, those that only the sink has."""
    standing: str = ""
    """Where the pipe is, if rows are behind."""

    @property
    def verdict(self) -> Verdict:
        if self.comparison.total:
            return Verdict.DIFFERENT
        if self.behind or self.is_behind:
            return Verdict.BEHIND
        return Verdict.CHANGING if self.changing or self.unread else Verdict.EQUAL
