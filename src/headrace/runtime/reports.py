"""What tasks report to the driver. The engine pickles reports: both ends run the same version of Headrace.

Reports exist only while their batch runs, so their form may change with each version.

An error of a task or of the source's process reaches the driver as the text of a Java exception. `serialize_errors` adds the encoded error
to that text, and the driver decodes it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.sources.base import Offset
from headrace.sources.splits import StatementSplit

_MARK = re.compile(r"headrace-error\[([A-Za-z0-9+/=]+)\]")

R = TypeVar("R")


class SerializedError(RuntimeError):
    """A Headrace error whose text contains its encoded form."""


@contextmanager
def serialize_errors() -> Iterator[None]:
    """Raise Headrace errors as `SerializedError`."""
    try:
        yield
    except HeadraceError as error:
        raise SerializedError(f"{error}\n{encode_error(error)}") from error


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Raise Headrace errors without a traceback, so that Spark prints only their message to the user of a script."""
    try:
        yield
    except HeadraceError as error:
        raise error.with_traceback(None) from None


def encode_error(error: HeadraceError) -> str:
    content = {
        "definite": isinstance(error, DefiniteError),
        "message": error.message,
        "place": error.place,
        "hint": error.hint,
        "event": error.event,
    }
    return f"headrace-error[{base64.b64encode(json.dumps(content).encode()).decode()}]"


def decode_error(text: str) -> HeadraceError | None:
    """Return the first encoded error in a text, if any."""
    found = _MARK.search(text)
    if found is None:
        return None
    content = json.loads(base64.b64decode(found.group(1)))
    kind = DefiniteError if content["definite"] else TransientError
    return kind(content["message"], place=content["place"], hint=content["hint"], event=content["event"])


@dataclass(frozen=True, slots=True)
class TableWrites:
    table: str
    changes: int
    bytes: int
    newest_us: int
    """Commit time of the newest change, microseconds since 1970; 0 if unknown."""
    filtered: int = 0
    """How many changes were not written because the table's filter excludes them."""


@dataclass(frozen=True, slots=True)
class SplitDone:
    """A task has read a split and written its blocks."""

    result: object
    """What the reader returned."""
    written: tuple[TableWrites, ...] = ()

    def result_of(self, expected: type[R]) -> R:
        """Return the result, which must be of this type."""
        assert isinstance(self.result, expected), self.result
        return self.result


@dataclass(frozen=True, slots=True)
class MarkReached:
    """A batch without rows ends here."""

    until: Offset


@dataclass(frozen=True, slots=True)
class StatementReached:
    """The driver must process a statement of the log."""

    statement: StatementSplit


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task on a remote executor raised a Headrace error. `checked_reports` raises it on the driver."""

    error: str
    """A text that contains the encoded error."""


Report = SplitDone | MarkReached | StatementReached


def checked_reports(found: Iterable[object]) -> list[Report]:
    """Return the reports of tasks; raise the Headrace error of a failed task, definite ones first."""
    reports: list[Report] = []
    errors: list[HeadraceError] = []
    for one in found:
        match one:
            case TaskFailed(text):
                error = decode_error(text)
                assert error is not None, text
                errors.append(error)
            case SplitDone() | MarkReached() | StatementReached():
                reports.append(one)
            case _:
                raise TypeError(f"a task returned {one!r}, which is no report")
    for error in sorted(errors, key=lambda one: isinstance(one, TransientError)):
        raise error
    return reports


def finished_splits(reports: Iterable[Report]) -> list[SplitDone]:
    return [report for report in reports if isinstance(report, SplitDone)]


def sum_writes(writes: Iterable[TableWrites]) -> tuple[TableWrites, ...]:
    """Return one sum per table."""
    sums: dict[str, TableWrites] = {}
    for one in writes:
        before = sums.get(one.table, TableWrites(one.table, 0, 0, 0))
        newest = max(before.newest_us, one.newest_us)
        sums[one.table] = TableWrites(
            one.table, before.changes + one.changes, before.bytes + one.bytes, newest, before.filtered + one.filtered
        )
    return tuple(sums.values())


def filtered_rows(writes: Iterable[TableWrites]) -> dict[str, int]:
    """Return how many changes filters excluded, by table; tables without any are left out."""
    return {one.table: one.filtered for one in sum_writes(writes) if one.filtered}


def written_tables(reports: Iterable[Report]) -> tuple[TableWrites, ...]:
    """Return what the tasks of a batch wrote, by table."""
    return sum_writes(one for report in finished_splits(reports) for one in report.written)
