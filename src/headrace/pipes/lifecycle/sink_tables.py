"""The driver's access to the targets of one pipe.

After each change, `SinkTables.sink` is a copy without the cached definitions of the changed tables: tasks which start later read the new
ones.

`TombstonePurger` schedules the purge of deletion markers (tombstones): every `cleanup_hours`, in a thread next to the stream. After a purge
nothing hides an older image of the deleted row, so no older image may still arrive (decision 21):
- batches: a merge starts between two of them, and a crash replays a whole batch, together with its deletions;
- snapshot rows have the version of the position at which they were read: nothing is purged while a snapshot runs;
- dead letters: tables with waiting rows are not purged (`TombstoneStore.purge`);
- an insert without an answer may still run on the server: after an outage of the sink, the purger waits `QUIET_S` first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import ReferentialAction, TableName, TableSchema
from headrace.pipes.lifecycle.target_ownership import TargetOwnership
from headrace.pipes.state.event_skips import EventSkips, Found
from headrace.pipes.state.stored_progress import FileProgressStore
from headrace.retry import bind_context, current_wait, retrying
from headrace.sinks.base import BatchCommit, Pause, ProgressStore, Sink, TableRequirements, TombstoneStore
from headrace.sinks.schema_changes import Step
from headrace.transforms.options import Transforms

log = logging.getLogger("headrace")
LOOK_EVERY_S = 30.0
QUIET_S = 900.0


@dataclass(slots=True)
class SinkTables:
    """The targets of one pipe, in a sink of any kind."""

    sink: Sink
    """The sink for tasks that start now."""
    local: ProgressStore = field(default_factory=FileProgressStore)
    """Keeps progress if the sink has no progress store."""
    ownership: TargetOwnership | None = None
    """The pipe's claims on its targets; None: the sink records no claims, or the pipe writes nothing."""
    applies_cascades: bool = False
    """Whether the pipe applies foreign keys to child tables in the sink."""
    cascade_parents: frozenset[TableName] = frozenset()
    """The parents of these foreign keys."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """A resync changes targets next to the stream."""

    @property
    def progress_store(self) -> ProgressStore:
        return self.sink.progress_store() or self.local

    @property
    def append_only(self) -> bool:
        return self.sink.append_only

    def claim(self, names: Iterable[TableName]) -> None:
        """Become the owner of the tables' targets; raise `DefiniteError` if another pipe owns one."""
        if self.ownership is not None:
            self.ownership.claim(map(self.sink.target_of, names))

    def keep_only(self, names: Iterable[TableName]) -> None:
        """Release the targets of other tables that earlier runs claimed."""
        if self.ownership is not None:
            self.ownership.keep_only(set(map(self.sink.target_of, names)))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Claim the targets, then create what is missing."""
        wanted = tuple(schemas)
        # A pipe that cannot start leaves nothing in the sink, not even a claim.
        self.sink.check_target_conflicts(wanted)
        targets = [self.sink.target_of(schema.name) for schema in wanted]
        names = [schema.name for schema in wanted]
        with self.ownership.creating(targets) if self.ownership is not None else nullcontext():
            # The copy reads the prepared tables, so that the driver need not read them again.
            before, prepared = self.sink, self.sink.without_cache(names)
            prepared.prepare(wanted)
        with self._lock:
            self.sink = prepared if self.sink is before else self.sink.without_cache(names)

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        self.sink.check_target_conflicts(schemas)

    def replace(self, schema: TableSchema) -> None:
        """Make the target fit for a new snapshot of the whole table. An append-only sink gets the rows again."""
        self.claim([schema.name])
        store = self.sink.table_store()
        if store is None:
            self.sink.prepare([schema])
        else:
            store.replace(schema)
        self._discard_cache([schema.name])

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        """Delete the rows that a new snapshot did not contain. In an append-only sink they stay."""
        store = self.sink.table_store()
        if store is not None:
            store.delete_stale(schema, before)

    def holds_rows(self, schema: TableSchema) -> bool:
        """Return whether the target holds rows that a snapshot would replace."""
        store = self.sink.table_store()
        return store is not None and store.holds_rows(schema)

    def check_versions(self, schema: TableSchema, end: int) -> int | None:
        """Return the newest version in a target; None in an append-only sink.

        Raise `DefiniteError` if it is above `end`, the end of the source's log: such rows hide changes.
        Rows that were read at the end have the end's version. Every change after it has a higher one.
        """
        store = self.sink.table_store()
        if store is None:
            return None
        newest = retrying(lambda: store.newest_version(schema))
        if newest is not None and newest > end:
            raise DefiniteError(
                f"the target of {schema.name} holds rows with versions up to {newest}, and the source's log is at {end}: they"
                " would hide what the source has, for they were written from another log, or by something else",
                place=f"table {schema.name}",
                hint="TRUNCATE the target table, or choose another one",
            )
        return newest

    def discard_partial_snapshot(self, schema: TableSchema, since: int, attempted_from: int = 0, written: int = 0) -> None:
        """Delete what an interrupted snapshot left. In an append-only sink it stays, and the sink gets notice of the restart."""
        store = self.sink.table_store()
        if store is None:
            self.sink.snapshot_restarted(schema, since)
        else:
            store.discard_partial_snapshot(schema, since, attempted_from, written)

    def commit_batch(self, batch: BatchCommit) -> None:
        """Commit a batch, or a part of a snapshot, of which all blocks were written."""
        retrying(lambda: self.sink.commit_batch(batch))

    def skips(self, directory: Path, pipe: str, transforms: Transforms) -> EventSkips:
        """Return the events that the user asked to skip. The sink stores each, without the content of tables that transforms hide."""

        def post(found: Found) -> None:
            store = self.sink.skipped_event_store()
            if store is not None:
                is_hidden = any(map(transforms.hide, found.get("table", "").split(", ")))
                event = {**found, "content": ""} if is_hidden else found
                retrying(lambda: store.store(pipe, event))

        return EventSkips(directory, post)

    def write_as(self, pipe: str, label: str) -> None:
        """Write as this pipe from now on. `label`: its name for people."""
        self.sink = self.sink.for_pipe(pipe, label)

    def read_from(self, connector: str, file: str) -> None:
        """Write changes of this log from now on: `file` is any of its files."""
        self.sink = self.sink.with_source(connector, file.rpartition(".")[0])

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        wanted = tuple(schemas)
        needs = self.sink.requirements(wanted)
        if not self.applies_cascades:
            return needs
        # A row that is read between two changes of its foreign key cannot be told from one that is read before both. The children of a
        # table that is a parent too need each of its states.
        exact = {
            schema.name
            for schema in wanted
            for key in schema.foreign_keys
            if key.on_update is ReferentialAction.CASCADE or (key.cascades and schema.name in self.cascade_parents)
        }
        return {name: replace(need, exact=True) if name in exact else need for name, need in needs.items()}

    def run_step(self, step: Step, names: Iterable[TableName]) -> None:
        """Run a step that changes the targets of these tables."""
        self.sink.schema_applier().run_step(step)
        self._discard_cache(names)

    def _discard_cache(self, names: Iterable[TableName]) -> None:
        with self._lock:
            self.sink = self.sink.without_cache(names)


def targets_of(targets: SinkTables, schemas: Iterable[TableSchema]) -> dict[str, str]:
    """Return the target of each source table, by name; empty in an append-only sink."""
    store = targets.sink.table_store()
    if store is None:
        return {str(schema.name): "" for schema in schemas}
    return {str(name): target for name, target in store.target_names(schemas).items()}


@dataclass(slots=True)
class TombstonePurger:
    """Purges the tables of one pipe, one after the other."""

    targets: SinkTables
    pipe: str
    tables: Callable[[], Iterable[TableSchema]]
    """The schemas of the sink's tables."""
    is_settled: Callable[[], bool]
    """Whether no snapshot runs or is planned."""
    _began: dict[str, float] = field(default_factory=dict, init=False)
    _next_look: float = field(default=0.0, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def poll(self, pause: Pause) -> None:
        """Start to purge the tables that are due, unless a purge runs."""
        store = self.targets.sink.tombstone_store()
        if store is None or (self._thread is not None and self._thread.is_alive()) or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        wanted = [(schema, hours) for schema in self.tables() if (hours := store.purge_interval_hours(schema)) > 0]
        if wanted and self._may_purge():
            self._thread = threading.Thread(
                target=bind_context(self._run), args=(store, wanted, pause), name="headrace-cleaning", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _may_purge(self) -> bool:
        return self.is_settled() and current_wait().seconds_since_failure() > QUIET_S and not current_wait().ending

    def _run(self, store: TombstoneStore, wanted: list[tuple[TableSchema, float]], pause: Pause) -> None:
        try:
            last = store.last_purges()
            for schema, hours in wanted:
                # A schema change during a long purge replaces the sink's description of its tables.
                store = self.targets.sink.tombstone_store() or store
                target = store.target(schema)
                if target is None:
                    continue
                if time.time() - max(last.get(target, 0.0), self._began.get(target, 0.0)) >= hours * 3600 and self._may_purge():
                    self._began[target] = time.time()
                    store.purge(schema, self.pipe, pause, self._may_purge)
        except HeadraceError as error:
            # Readers see the right rows without a purge: the pipe continues, and purges again when the interval has passed.
            log.error("deletions were not purged: %s", error)
