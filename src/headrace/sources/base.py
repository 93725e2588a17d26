"""The source interface.

A source is a small picklable description. In one long-lived process it plans: from the end of the last batch it derives the end of the next
one, and the splits in between. In tasks it reads: a split becomes change blocks. Offsets and splits are JSON values, because Spark carries
them; bulk data never goes through Spark. Planning the same range again gives splits that cover the same changes with the same versions.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

Offset = dict[str, Any]
Split = dict[str, Any]
"""What a task is told to do. `kind` is "rows" (read and write; `until` is the batch's end; `ordered` is all of the batch, for tables whose
blocks must come in order, and which share of those tables is this task's), "chunk" or "consistent" (read and write a part of a snapshot;
with `once`, not a second time without the driver's knowing), "mark" (nothing but `until`), "statement" (passed on to the driver, with
`query` and `offset`), or "log" (windows of log tables; see `sources.scylla.splits`)."""


class Block(Protocol):
    """Rows of one table that a source reads and a sink writes, in a form that both support."""

    @property
    def subject(self) -> str:
        """The table name, for display."""

    @property
    def changes(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def newest(self) -> int:
        """The newest commit time, in microseconds since 1970; 0 if unknown."""


B_co = TypeVar("B_co", bound=Block, covariant=True)


class Planner(Protocol):
    """The planning side. It runs in one process and may hold connections and threads."""

    def initial(self) -> Offset: ...

    def plan(self, start: Offset) -> Offset:
        """Return the end of the next batch. Wait a little for changes; return `start` if none came."""

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        """Return the splits between two offsets. Wait until all of the range has been received."""

    def commit(self, end: Offset) -> None:
        """Release everything before `end`: the sink has stored it."""

    def stop(self) -> None: ...


class Source(Protocol):
    """A source of changes. Picklable."""

    def planner(self) -> Planner: ...


class Reader(Protocol[B_co]):
    """The reading side, used in a task. Picklable."""

    def read(self, split: Split) -> Generator[B_co, None, Split | None]:
        """Yield the split's blocks. The return value, if any, goes to the driver (for a snapshot: its position)."""
