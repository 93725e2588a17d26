"""The result of comparing a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import TransientError
from headrace.model.schema import TableSchema
from headrace.retry import current_wait
from headrace.verify.row_compare import Comparison


def check_not_ending() -> None:
    """Abort the comparison when the process ends; a large one would delay the exit for hours."""
    if current_wait().ending:
        raise TransientError("the process ends before the comparison does", hint="begin it again")


class Verdict(StrEnum):
    """Ordered from good to bad."""

    EQUAL = "equal"
    CHANGING = "changing"
    """Rows changed in every round; nothing else differs."""
    BEHIND = "behind"
    """The sink has not reached the source's position, so the differences may disappear."""
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class TableResult:
    schema: TableSchema
    comparison: Comparison
    """The rows compared, and the differences that are certain."""
    behind: int = 0
    changing: int = 0
    unread: int = 0
    """Rows in differing parts beyond those that were read."""
    repaired: int = 0
    """Rows that were repaired; they are not among the differences."""
    is_behind: bool = False
    """Whether the table could not be compared because it is not complete in the sink."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    missing: int = 0
    """Rows behind that the sink does not have."""
    extra: int = 0
    """Rows behind that only the sink has."""
    pipe_position: str = ""
    """The pipe's position, if rows are behind."""
    compared_at: str = ""
    """The pipe's position when the rows of the sink were compared; empty if no pipe was watched."""
    pipe_stopped: bool | None = None
    """Whether the pipe was stopped then; None if no pipe was watched."""
    excluded: int | None = None
    """Source rows that the table's filter excludes; they are not among the compared rows. None: there is no filter, or no row was read."""

    @property
    def verdict(self) -> Verdict:
        if self.comparison.total:
            return Verdict.DIFFERENT
        if self.behind or self.is_behind:
            return Verdict.BEHIND
        return Verdict.CHANGING if self.changing or self.unread else Verdict.EQUAL
