"""The sink port: what a pipe requires of the system that it writes to.

A sink is a small picklable description. The driver calls `prepare` and the other methods of `Sink`; every task opens its own `Writer`.
After a crash the pipe replays its last batch. What a replay leaves depends on the kind of sink:

- **Table store** (`Sink.table_store()` returns one; ClickHouse). Idempotent and order-free: writing a block again, in any order among
  others, leaves the same rows. A table whose engine does not allow that says so in its `TableRequirements`, and gets its changes in the
  order of the log, cut into the same blocks at each replay.
- **Append-only** (`table_store()` returns None; Kafka, stdout, producers). At least once: a block that is written again appears again, with
  the same versions, by which readers discard the repetition. Nothing is updated, deleted or altered. Such a sink requires a snapshot of one
  position, which comes before every later change, and every update with its before image.
- **CDC log** (`sinks.cdc_log_sink.LogSink`). Takes rows of ScyllaDB's log instead of change blocks, and has its own port.

All kinds: a block is durable and visible to readers when `Writer.write` returns or, if the sink delays it, when `commit_batch` returns.
`tests/sinks/test_sink_contract.py` and `test_cdc_log_contract.py` check this for every registered sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.model.alter_effects import Alteration
from headrace.model.cascades import Cascade, CascadePlan
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, SchemaApplier
from headrace.sinks.target_claims import ClaimStore


@dataclass(frozen=True, slots=True)
class TableRequirements:
    """How a pipe must deliver the changes of one table to a sink."""

    key_columns: tuple[str, ...]
    """Columns whose change moves a row. Such an update comes with its before image. Empty: every update does."""
    ordered: bool = False
    """Blocks come in the order of the log, and a replay is cut into the same blocks."""
    exact: bool = False
    """A snapshot is of one position, and no change is written before it is complete."""
    emptied: bool = False
    """A snapshot starts with an empty table (`TableStore.discard_partial_snapshot`), so no stale row is left to delete after it."""
    keeps: bool = False
    """Rows that the source no longer has stay: no stale row is deleted after a snapshot."""
    transactions: bool = False
    """Each change comes with its transaction and its place in it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pipe is. Times are microseconds since 1970."""

    pipe: str
    source: str
    position: str
    version: int
    """Every image with a lower version is in the sink."""
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
    """Tables whose snapshot is not complete."""
    pending_us: int = 0
    """When the oldest change was committed that is not in the sink yet; 0 if there is none, or it is unknown."""
    state: str = ""
    """The id of the pipe's state, which distinguishes pipes of the same name."""


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """A batch of changes, or a part of a snapshot, of which all blocks were written."""

    position: str
    """The end of the batch in the source's log; of a snapshot, the position at which it was taken."""
    version: int
    """The version of the position: every image of a batch has a lower one."""
    snapshot: bool = False


class ProgressStore(Protocol):
    """Keeps how far pipes are, and which pipes exist."""

    @property
    def is_in_sink(self) -> bool:
        """Whether the sink keeps it, so that it is lost with the sink."""

    def begin(self) -> None:
        """Create what is missing in the store."""

    def progress(self, pipe: str) -> Progress | None:
        """Return the last progress of a pipe; None if there is none."""

    def report(self, progress: Progress) -> None:
        """Store the progress of a pipe."""

    def register(self, pipe: Mapping[str, str]) -> None:
        """Store how a pipe was started: `pipe` (its name), `source`, `state`, `host` and more, never a secret."""


class TableStore(Protocol):
    """The tables of a sink that updates and deletes rows. Every method may be repeated."""

    def replace(self, schema: TableSchema) -> None:
        """Make the target fit for the schema before all rows are read again: an unfit table is dropped and created empty."""

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        """Delete the rows whose last image has a version below `before`: a new snapshot of the whole table did not contain them."""

    def holds_rows(self, schema: TableSchema) -> bool:
        """Return whether the target holds any row, visible or not."""

    def newest_version(self, schema: TableSchema) -> int | None:
        """Return the highest version of a row in the target; None if there is no row, or rows have no version."""

    def discard_partial_snapshot(self, schema: TableSchema, since: int, attempted_from: int = 0, written: int = 0) -> None:
        """Delete what an interrupted snapshot left, all of whose rows have versions from `since` on.

        The stream may have written changes of the table since then. Rows below `attempted_from` are such changes, and all changes that the
        stream has written are below `written`.
        """

    def target_names(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, str]:
        """Return the targets as the sink's readers name them."""


Pause = Callable[[], AbstractContextManager[object]]
"""Within its context, the pipe writes nothing."""


class TombstoneStore(Protocol):
    """Deletion markers (tombstones) in the tables of a sink that keeps them until they are purged."""

    def purge_interval_hours(self, schema: TableSchema) -> float:
        """Return how often the markers of a table are purged; 0: never."""

    def last_purges(self) -> Mapping[str, float]:
        """Return when each target was last purged, in seconds since 1970."""

    def target(self, schema: TableSchema) -> str | None:
        """Return the target of a table; None if it holds no markers."""

    def purge(self, schema: TableSchema, pipe: str, pause: Pause, may_continue: Callable[[], bool]) -> None:
        """Purge the markers of a table and record it. Each merge starts inside `pause`, if `may_continue` then."""


class SkippedEventStore(Protocol):
    """Keeps the events that a pipe skipped on request."""

    def store(self, pipe: str, event: Mapping[str, str]) -> None:
        """Store an event: `place`, `table`, `error` and `content`. Repeatable."""


class TextComparison(Protocol):
    """Compares texts as the source does: 'abc' may reference 'ABC'."""

    def weights(self, table: TableName, column: str, texts: Sequence[str]) -> Sequence[str]:
        """Return a weight for each text. Texts are equal in a column of the source if their weights are."""

    def folds_ascii_letters_only(self, table: TableName, column: str) -> bool:
        """Whether two texts of printable ASCII characters are equal only if they differ in upper and lower case and in trailing spaces."""


class CascadeStore(Protocol):
    """Applies the effects of foreign keys on child tables, which the source does not log. Every method may be repeated."""

    def find_obstacle(self, cascade: Cascade) -> str:
        """Return why the sink cannot apply a cascade exactly that has no `source_obstacles`; empty if it can."""

    def prepare(self, floors: Mapping[TableName, int]) -> None:
        """Create what the plan needs, and remove what earlier plans left. It comes first, and after each change of `floors`.

        Rows of a table in `floors` with a lower version take no effects: a snapshot has replaced or deleted them, or will.
        """

    def apply(self) -> None:
        """Apply the changes of parents that writers have logged. The writers of the batch have ended."""

    def clear(self) -> None:
        """Forget the logged changes: they were applied, and no older row will be written."""

    def is_clear(self) -> bool:
        """Whether no logged changes are left."""

    def drop_copies(self) -> None:
        """Drop the copies of tables that the next statement may change. `prepare` must follow it."""


class Writer(Protocol):
    """Writes blocks; belongs to one task."""

    def write(self, block: ChangeBlock) -> None:
        """Write the block."""

    def close(self) -> None: ...


class WriterFactory(Protocol):
    """The part of a sink that tasks use. Picklable, cheap to copy."""

    def writer(self) -> Writer: ...

    def for_replay(self) -> Self:
        """Return the sink for blocks that an earlier attempt may have written."""
        return self


class Sink(WriterFactory, Protocol):
    """The system that changes go to, as the driver uses it.

    Sinks inherit this class and override what they support. A method with a body here is optional.
    """

    @property
    def append_only(self) -> bool:
        """Whether rows are never updated or deleted. Then a resync adds all rows again, and omits no change of the table meanwhile."""
        return self.table_store() is None

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Create what is missing, check what exists. Raise `DefiniteError` before anything is written if the sink cannot hold a table."""
        del schemas

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        """Return how the changes of each table must be delivered."""

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        """Raise `DefiniteError` if two of the tables have the same target. Sends no request."""
        del schemas

    def target_of(self, name: TableName) -> str:
        """Return the name of a table's target in the sink. Sends no request."""
        return str(name)

    def commit_batch(self, batch: BatchCommit) -> None:
        """Commit a batch of which all blocks were written. Until this returns, the batch may be replayed."""
        del batch

    def snapshot_restarted(self, schema: TableSchema, since: int) -> None:
        """Append-only sinks: the snapshot of a table starts over. The rows of the interrupted one have versions from `since` on."""
        del schema, since

    def schema_applier(self) -> SchemaApplier:
        """Return the object that applies schema changes to the targets."""

    def table_store(self) -> TableStore | None:
        """Return the tables of a sink that updates and deletes rows; None: the sink is append-only."""
        return None

    def tombstone_store(self) -> TombstoneStore | None:
        """Return the deletion markers; None: the sink keeps none."""
        return None

    def progress_store(self) -> ProgressStore | None:
        """Return where the sink keeps the progress of pipes; None: it keeps none."""
        return None

    def skipped_event_store(self) -> SkippedEventStore | None:
        """Return where the sink keeps skipped events; None: it keeps none."""
        return None

    def cascade_store(self, plan: CascadePlan, texts: TextComparison) -> CascadeStore | None:
        """Return the object that applies cascades; None: the sink cannot."""
        del plan, texts
        return None

    def with_cascades(self, plan: CascadePlan) -> Self:
        """Return the sink for tasks that log the changes of parents for `CascadeStore.apply`."""
        del plan
        return self

    def claims(self) -> ClaimStore | None:
        """Return where the sink records which pipe writes to which target; None: it records nothing."""
        return None

    def for_pipe(self, pipe: str, label: str = "") -> Self:
        """Return the sink for the blocks of one pipe, which never count as those of another. `label`: the pipe's display name."""
        del pipe, label
        return self

    def with_source(self, connector: str, log: str) -> Self:
        """Return the sink for the changes of one log: its connector (`mysql` or `mariadb`), and its file name without the number."""
        del connector, log
        return self

    def with_tables(self, schemas: Iterable[TableSchema]) -> Self:
        """Return the sink for tasks that write these tables: a task can look all of them up in one request."""
        del schemas
        return self

    def without_cache(self, names: Iterable[TableName] | None = None) -> Self:
        """Return the sink without cached definitions of these tables (None: of all), after the driver changed their targets."""
        del names
        return self


@dataclass(frozen=True, slots=True)
class AppendOnlySchemaApplier(SchemaApplier):
    """Prepares a table again after its definition changed, and passes ledger entries on."""

    on_record: Callable[[Iterable[LedgerEntry]], None]

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        del alteration, version
        return DdlPlan(prepared=True)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        self.on_record(entries)


class AppendOnlySink(Sink):
    """A sink without a table store: rows are never updated, deleted or altered."""

    __slots__ = ()

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        return {schema.name: TableRequirements((), exact=True, keeps=True, transactions=True) for schema in schemas}

    def schema_applier(self) -> SchemaApplier:
        return AppendOnlySchemaApplier(self.record)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Handle applied schema changes. A crash may repeat the call."""
        del entries
