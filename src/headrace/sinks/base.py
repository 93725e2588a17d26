"""The sink's port.

A sink is a small picklable description; the driver calls `prepare`, every task opens its own `Writer`. A sink must be *idempotent*:
writing a block again, in any order among others, leaves the same data, because a crash replays the last batch. Where a table's engine does
not allow that, the sink says so (`TableRequirements`), and gets the table's changes in order, cut the same way each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.schema_changes import SchemaApplier
from headrace.sinks.target_claims import ClaimStore


@dataclass(frozen=True, slots=True)
class TableRequirements:
    """What a sink needs to get of one table's changes."""

    key_columns: tuple[str, ...]
    """The columns whose change moves a row: for those updates the sink wants the before image too. None: for every update."""
    ordered: bool = False
    """Whether blocks must come in the order of the log, and a replay be cut into the same blocks."""
    exact: bool = False
    """Whether rows of a snapshot must be those of one position, before which no change is written."""
    emptied: bool = False
    """Whether a snapshot begins with an empty table (`clear`): what is in it would count again, and nothing is left to sweep after it."""
    keeps: bool = False
    """Whether rows that the source has no more stay by choice: then nothing is swept after a snapshot."""
    transactions: bool = False
    """Whether each change comes with its transaction and its place in it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pipe is: what a sink tells its readers. Times are microseconds since 1970."""

    pipe: str
    source: str
    position: str
    version: int
    """Every image with a version below this is in the sink."""
    commit_us: int
    """When the newest change so far was committed; 0 if there was none yet."""
    rows: int
    """Changes of the last batch."""
    total_rows: int
    updated_us: int
    """When the last batch was done."""
    seen_us: int
    """When the pipe was last known to run."""
    gtid: str = ""
    incomplete: tuple[str, ...] = ()
    """Tables whose rows are being read: they are not complete yet."""
    pending_us: int = 0
    """When the oldest change was committed that the sink does not show yet; 0 if there is none, or if that is not known."""
    state: str = ""
    """The id of the state that told it: tells a pipe from others of its name."""


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """What a sink has got whole, before it counts: a batch of changes, or a part of a snapshot."""

    position: str
    """Where in the source's log it ends; of a snapshot, where it was taken."""
    version: int
    """Of the position: every image of a batch has a lower one."""
    snapshot: bool = False


class ProgressStore(Protocol):
    """What is told of pipes: how far they are, and that they are there."""

    @property
    def is_in_sink(self) -> bool:
        """Whether the sink itself keeps it: then it is lost when the sink is."""

    def begin(self) -> None:
        """Make what is missing for it."""

    def progress(self, pipe: str) -> Progress | None:
        """What was told of a pipe last; None if nothing was."""

    def tell(self, progress: Progress) -> None:
        """Say how far a pipe is."""

    def register(self, pipe: Mapping[str, str]) -> None:
        """Say how a pipe was begun, for whoever finds the sink: `pipe` (its name), `source`, `state`, `host` and more, never a secret."""


class Writer(Protocol):
    """Writes blocks; belongs to one task."""

    def write(self, block: ChangeBlock) -> None:
        """Write the block durably; when it returns, the block is visible to readers of the sink."""

    def close(self) -> None: ...


class WriterFactory(Protocol):
    """What tasks carry of a sink. Picklable, cheap to copy."""

    def writer(self) -> Writer: ...


class Sink(WriterFactory, Protocol):
    """Where changes go, as the driver sees it."""

    @property
    def append_only(self) -> bool:
        """Whether the sink only ever gets longer: nothing is taken away, merged or altered in it.

        Then rows that are read again come beside the table's changes, of which none is left out: a deletion in between would be lost.
        """

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Create what is missing, check what exists; raise `DefiniteError` before anything is written if a table cannot be held."""

    def replace(self, schema: TableSchema) -> None:
        """Make the target anew, empty, unless what is there is fit for the schema: its rows are about to come again."""

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        """What the sink needs of each table's changes."""

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        """Take away the rows whose last image has a version below `before`: a new snapshot of the whole table did not see them."""

    def holds_rows(self, schema: TableSchema) -> bool:
        """Whether anything is in the target table, shown or not."""

    def newest_version(self, schema: TableSchema) -> int | None:
        """The highest version of a row in the target table; None if there is no row, or rows have none."""

    def discard_partial_snapshot(self, schema: TableSchema, since: int) -> None:
        """Take away what an earlier attempt at a snapshot, all of whose rows have versions from `since` on, may have left. Repeatable."""

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        """Raise `DefiniteError` if two of the tables would be written to one target. Nobody is asked."""

    def commit_batch(self, batch: BatchCommit) -> None:
        """All blocks of a batch, or of a part of a snapshot, were written. It counts when this returns; else it comes again."""

    def schema_applier(self) -> SchemaApplier:
        """What makes the targets follow schema changes."""

    def progress_store(self) -> ProgressStore | None:
        """Where the sink keeps what it is told of pipes; None: it has no place for it."""

    def claims(self) -> ClaimStore | None:
        """Where the sink records which pipe writes to which target; None: it has no place for it."""

    def target_of(self, name: TableName) -> str:
        """What the target of a source's table is called in the sink. No server is asked."""

    def for_pipe(self, pipe: str, label: str = "") -> Self:
        """The same sink, for the blocks of one pipe: no block of another is taken for one of them. `label`: what people call the pipe."""

    def with_source(self, connector: str, log: str) -> Self:
        """The same sink, for changes of one log: whose it is (`mysql` or `mariadb`), and what its files are called before their numbers."""

    def with_tables(self, schemas: Iterable[TableSchema]) -> Self:
        """The same sink, for tasks that write these tables: what a task must know of them it asks for at once."""

    def for_replay(self) -> Self:
        """The same sink, for a batch of which blocks may be there from an earlier run."""

    def without_cache(self) -> Self:
        """The same sink, forgetting what it knew of its tables: the driver has changed some."""
