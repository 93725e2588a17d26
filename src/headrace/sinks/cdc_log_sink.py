"""The port of sinks that take rows of ScyllaDB's CDC log instead of change blocks.

A sink that holds tables (ClickHouse, another CQL cluster) is idempotent and order-free: a block may be written any number of times, in any
order among others, and leaves the same data, because every cell carries its timestamp. A sink that holds messages (Kafka, stdout) is
append-only: a block that is written again appears again, with the same positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.sinks.base import ProgressStore
from headrace.sinks.target_claims import ClaimStore


@dataclass(frozen=True, slots=True)
class LateBatch:
    """Log rows of one stream with one `cdc$time` that arrived too late to be read. Times are microseconds since 1970."""

    table: str
    place: str
    rows: int
    time_us: int
    """The rows' own timestamp."""
    written_us: int


class LateRowStore(Protocol):
    """Records log rows that arrived too late to be read."""

    def store(self, pipe: str, batches: Iterable[LateBatch]) -> None:
        """Record late rows. The same place again is the same record."""

    def resolve(self, pipe: str, table: str, *, copied: bool) -> None:
        """Mark the late rows of a table as resolved: it was copied again, or its different rows were repaired."""

    def repaired_positions(self, pipe: str) -> set[str]:
        """Return the places of late rows whose effect was repaired."""


class LogTableStore(Protocol):
    """The tables of a sink that can delete rows."""

    def clear(self, table: CqlTable) -> None:
        """Delete all rows of a table before it is copied again. Repeatable."""


class LogWriter(Protocol):
    """Writes blocks; belongs to one task."""

    def write(self, block: LogBlock | RowBlock) -> None:
        """Write the block durably. It is visible to readers of the sink when this returns; with a writer that has `complete`
        (`runtime.tasks.DeferringWriter`), when that returns."""

    def close(self) -> None: ...


class LogSink(Protocol):
    """The system that log rows go to. Picklable. Sinks inherit this class; a method with a body here is optional."""

    @property
    def stores_row_images(self) -> bool:
        """Whether a row is written whole. Then a table is copied before its log is read: a range deletion must find all earlier rows."""
        return False

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create what is missing, check what exists. Raise `DefiniteError` before anything is written if the sink cannot hold a table."""
        del tables

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Apply an ALTER TABLE of a base table. Repeatable. A sink of messages that name their columns has nothing to apply."""
        del old, new

    def expire(self, tables: Iterable[CqlTable], since: int) -> int:
        """Hide values whose TTL has ended since a time of the sink, and return its time now; both in seconds since 1970. Repeatable.

        A sink that stores no rows has nothing to hide.
        """
        del tables
        return since

    def table_store(self) -> LogTableStore | None:
        """Return the tables of a sink that can delete rows; None: it cannot."""
        return None

    def late_row_store(self) -> LateRowStore | None:
        """Return where the sink records late rows; None: it records none."""
        return None

    def progress_store(self) -> ProgressStore | None:
        """Return where the sink keeps the progress of pipes; None: it keeps none."""
        return None

    def claims(self) -> ClaimStore | None:
        """Return where the sink records which pipe writes to which target; None: it records nothing."""
        return None

    def target_of(self, name: TableName) -> str:
        """Return the name of a table's target in the sink. Sends no request."""
        return str(name)

    def writer(self) -> LogWriter: ...

    def for_replay(self) -> Self:
        """Return the sink for blocks that an earlier attempt may have written."""
        return self
