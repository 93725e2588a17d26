"""The driver's hold on the sink's tables: whatever it does to them, tasks that start afterwards see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.lifecycle.target_ownership import TargetOwnership
from headrace.pipes.state.event_skips import Found, Skips
from headrace.pipes.state.file_progress_store import FileProgressStore
from headrace.retry import retrying
from headrace.sinks.base import BatchCommit, ProgressStore, Sink, TableRequirements
from headrace.sinks.clickhouse.dead_letters.skipped_events import store_skipped_event
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.schema_changes import Step
from headrace.transforms.options import Transforms


@dataclass(slots=True)
class SinkTables:
    """One sink's tables."""

    sink: Sink
    """As tasks carry it now."""
    local: ProgressStore = field(default_factory=FileProgressStore)
    """Where progress is kept if the sink has no place for it."""
    ownership: TargetOwnership | None = None
    """The pipe's claims on its targets; None: the sink has no place for them, or nothing is written."""

    @property
    def progress_store(self) -> ProgressStore:
        """What is told of pipes."""
        return self.sink.progress_store() or self.local

    @property
    def append_only(self) -> bool:
        return self.sink.append_only

    def claim(self, names: Iterable[TableName]) -> None:
        """Become the owner of the tables' targets; raise `DefiniteError` if another pipe owns one."""
        if self.ownership is not None:
            self.ownership.claim(map(self.sink.target_of, names))

    def keep_only(self, names: Iterable[TableName]) -> None:
        """Give up the targets of other tables, which earlier runs have claimed."""
        if self.ownership is not None:
            self.ownership.keep_only(set(map(self.sink.target_of, names)))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Claim the targets, then create what is missing."""
        wanted = tuple(schemas)
        # A pipe that cannot start leaves nothing in the sink, no claim either.
        self.sink.check_target_conflicts(wanted)
        with self._creating(schema.name for schema in wanted):
            self.sink.prepare(wanted)
        self.sink = self.sink.without_cache()

    def _creating(self, names: Iterable[TableName]) -> AbstractContextManager[None]:
        return self.ownership.creating(map(self.sink.target_of, names)) if self.ownership is not None else nullcontext()

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        self.sink.check_target_conflicts(schemas)

    def replace(self, schema: TableSchema) -> None:
        self.claim([schema.name])
        self.sink.replace(schema)
        self.sink = self.sink.without_cache()

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        self.sink.delete_stale(schema, before)

    def holds_rows(self, schema: TableSchema) -> bool:
        return self.sink.holds_rows(schema)

    def check_versions(self, schema: TableSchema, end: int) -> int | None:
        """Return the newest version in a target. Raise if it is above `end`, the end of the source's log: such rows hide changes.

        Rows that were read at the end have the end's version. Every change after it has a higher one.
        """
        newest = retrying(lambda: self.sink.newest_version(schema))
        if newest is not None and newest > end:
            raise DefiniteError(
                f"the target of {schema.name} holds rows with versions up to {newest}, and the source's log is at {end}: they"
                " would hide what the source has, for they were written from another log, or by something else",
                place=f"table {schema.name}",
                hint="TRUNCATE the target table, or choose another one",
            )
        return newest

    def discard_partial_snapshot(self, schema: TableSchema, since: int) -> None:
        self.sink.discard_partial_snapshot(schema, since)

    def commit_batch(self, batch: BatchCommit) -> None:
        """All of a batch, or of a part of a snapshot, was written, and is about to count."""
        retrying(lambda: self.sink.commit_batch(batch))

    def skips(self, directory: Path, pipe: str, transforms: Transforms) -> Skips:
        """What a pipe leaves out by request; a sink that keeps what is not in its tables is told, but not what transforms hide from it."""

        def post(found: Found) -> None:
            if isinstance(self.sink, ClickHouseSink):
                tables = self.sink.own_tables()
                is_hidden = any(map(transforms.hide, found.get("table", "").split(", ")))
                told = {**found, "content": ""} if is_hidden else found
                retrying(lambda: store_skipped_event(tables, pipe, told))

        return Skips(directory, post)

    def write_as(self, pipe: str, label: str) -> None:
        """From now on blocks are those of this pipe, which people call by its label."""
        self.sink = self.sink.for_pipe(pipe, label)

    def read_from(self, connector: str, file: str) -> None:
        """From now on changes are those of this log: `file` is any of its files."""
        self.sink = self.sink.with_source(connector, file.rpartition(".")[0])

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        return self.sink.requirements(schemas)

    def run_step(self, step: Step) -> None:
        self.sink.schema_applier().run_step(step)
        self.sink = self.sink.without_cache()


def targets_of(targets: SinkTables, schemas: Iterable[TableSchema]) -> dict[str, str]:
    """The tables by the source's names, with what they are called in the sink; empty where it has other things than tables."""
    sink = targets.sink
    if not isinstance(sink, ClickHouseSink):
        return {str(schema.name): "" for schema in schemas}
    # One request for all tables: after a schema change nothing is known of any of them.
    return {str(name): f"{layout.database}.{layout.table}" for name, layout in sink.target_tables(schemas).items()}
