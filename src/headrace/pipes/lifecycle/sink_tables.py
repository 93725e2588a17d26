"""The driver's access to the targets of one pipe. After each change, `SinkTables.sink` is a copy without cached definitions, so that tasks
which start later read the new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.model.schema import ReferentialAction, TableName, TableSchema
from headrace.pipes.lifecycle.target_ownership import TargetOwnership
from headrace.pipes.state.event_skips import EventSkips, Found
from headrace.pipes.state.file_progress_store import FileProgressStore
from headrace.retry import retrying
from headrace.sinks.base import BatchCommit, ProgressStore, Sink, TableRequirements
from headrace.sinks.schema_changes import Step
from headrace.transforms.options import Transforms


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
        with self._creating(schema.name for schema in wanted):
            self.sink.prepare(wanted)
        self.sink = self.sink.without_cache()

    def _creating(self, names: Iterable[TableName]) -> AbstractContextManager[None]:
        return self.ownership.creating(map(self.sink.target_of, names)) if self.ownership is not None else nullcontext()

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
        self.sink = self.sink.without_cache()

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

    def run_step(self, step: Step) -> None:
        self.sink.schema_applier().run_step(step)
        self.sink = self.sink.without_cache()


def targets_of(targets: SinkTables, schemas: Iterable[TableSchema]) -> dict[str, str]:
    """Return the target of each source table, by name; empty in an append-only sink."""
    store = targets.sink.table_store()
    if store is None:
        return {str(schema.name): "" for schema in schemas}
    return {str(name): target for name, target in store.target_names(schemas).items()}
