"""The source's port.

A source is a small picklable description. In one long-lived process it plans: given where the last batch ended, where the next one ends,
and which pieces of work lie between. In tasks it reads: a piece of work to change blocks. Offsets and works are JSON-able, because they go
through Spark; bulk data never does. Planning the same range again gives works that cover the same changes with the same versions.
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
    """What a source reads and a sink writes: rows of one table, in whatever form the two share."""

    @property
    def subject(self) -> str:
        """The table, for people."""

    @property
    def changes(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def newest(self) -> int:
        """When the newest change was made, microseconds since 1970; 0 if nobody knows."""


B_co = TypeVar("B_co", bound=Block, covariant=True)


class Planner(Protocol):
    """The planning side; lives in one process, may hold connections and threads."""

    def initial(self) -> Offset: ...

    def plan(self, start: Offset) -> Offset:
        """Where the next batch ends. Waits a little for changes; `start` if none came."""

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        """What lies between two offsets, as pieces for tasks; waits until all of it is at hand."""

    def commit(self, end: Offset) -> None:
        """Everything before `end` is safe in the sink."""

    def stop(self) -> None: ...


class Source(Protocol):
    """Where changes come from. Picklable."""

    def planner(self) -> Planner: ...


class Reader(Protocol[B_co]):
    """The reading side; belongs to a task. Picklable."""

    def read(self, split: Split) -> Generator[B_co, None, Split | None]:
        """The work's blocks; what it returns at the end, if anything, is for the driver (a snapshot: its position)."""
