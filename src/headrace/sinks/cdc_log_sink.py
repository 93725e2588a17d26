"""The port of sinks that take raw log rows: each makes of them what it can hold.

As every sink's, it is idempotent: a block may be written any number of times, in any order among others, and leaves the same data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.tables import CqlTable


class LogWriter(Protocol):
    """Writes blocks; belongs to one task."""

    def write(self, block: LogBlock | RowBlock) -> None:
        """Write the block durably; when it returns, the block is visible to readers of the sink."""

    def close(self) -> None: ...


class LogSink(Protocol):
    """Where log rows go. Picklable."""

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create what is missing, check what exists; raise `DefiniteError` before anything is written if a table cannot be held."""

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Follow an alteration of a base table. Repeatable: after a crash it is asked for again."""

    def writer(self) -> LogWriter: ...
