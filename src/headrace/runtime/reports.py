"""What tasks report to the driver, and how reports travel: pickled, because both ends run the same version of Headrace.

Reports exist only while their batch runs, so their form may change with each version.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from headrace.errors import HeadraceError, TransientError
from headrace.runtime.error_transport import decode_error
from headrace.sources.base import Offset
from headrace.sources.splits import StatementSplit

R = TypeVar("R")

REPORT_SCHEMA = "report binary"
"""The rows that tasks return, in Spark's notation."""
_ARROW = pa.schema([("report", pa.binary())])


@dataclass(frozen=True, slots=True)
class TableWrites:
    """What was written to one table."""

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
    """A task on a remote executor raised a Headrace error. `decode_reports` raises it on the driver."""

    error: str
    """A text that contains the encoded error."""


Report = SplitDone | MarkReached | StatementReached


def encode_reports(reports: Iterable[Report | TaskFailed]) -> pa.RecordBatch:
    """Return reports as the record batch that a task returns."""
    return pa.RecordBatch.from_arrays([pa.array(map(pickle.dumps, reports), pa.binary())], schema=_ARROW)


def decode_reports(rows: Iterable[bytes]) -> list[Report]:
    """Return the reports of tasks; raise the Headrace error of a failed task, definite ones first."""
    reports: list[Report] = []
    errors: list[HeadraceError] = []
    for row in rows:
        # The pickles come from this program's own tasks.
        match pickle.loads(row):
            case TaskFailed(text):
                found = decode_error(text)
                assert found is not None, text
                errors.append(found)
            case SplitDone() | MarkReached() | StatementReached() as report:
                reports.append(report)
            case other:
                raise TypeError(f"a task returned {other!r}, which is no report")
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
