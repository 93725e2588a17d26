"""The ClickHouse sink: the port of `headrace.sinks.base` over one server.

Idempotent and order-free where the table's engine merges by version: every image is a row with its sign and its version, and the table
keeps the highest version of each key. Writing a block twice, late or beside others leaves what `FINAL` shows unchanged. Engines that count
rows get every block once, under a token (see `target_table`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import BatchCommit, TableRequirements
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.dead_letters.dead_letters import check_dead_letter_options, supersede_dead_letters
from headrace.sinks.clickhouse.maintenance.replicas import sync_replica
from headrace.sinks.clickhouse.maintenance.snapshot_reset import discard_partial_snapshot, holds_rows
from headrace.sinks.clickhouse.maintenance.table_setup import delete_stale_rows, newest_version, prepare_tables, replace_table
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.row_digests import ClickHouseDigests
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.schema_inference import infer_schemas
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.tables.create_table import plan_tables
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, read_target_tables, resolve_tables
from headrace.sinks.clickhouse.tables.target_names import target_name
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.clickhouse.write.dedup_window import ensure_dedup_windows
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter, OnRejected


@dataclass(frozen=True, slots=True)
class ClickHouseSink:
    """Where changes go: a server and, perhaps, one database in it. Picklable; the password is never shown."""

    append_only: ClassVar[bool] = False
    target: ClickHouseTarget
    options: ClickHouseOptions = field(default_factory=ClickHouseOptions)
    generation: int = 0
    pipe: str = ""
    """Who writes: part of the names of blocks."""
    label: str = ""
    """What people call who writes."""
    repeats: bool = False
    """Whether blocks may be there from an earlier run."""
    expected: tuple[TableSchema, ...] = ()
    """The tables that tasks write."""

    @classmethod
    def from_url(cls, url: str) -> ClickHouseSink:
        return cls(parse_target(url))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Create what is missing, check what exists; raise `DefiniteError` before anything is created if a table cannot be held."""
        wanted = tuple(schemas)
        prepare_tables(self._scope, wanted)
        target_tables = read_target_tables(self._scope, wanted)
        check_dead_letter_options(target_tables, self.options)
        ensure_dedup_windows(self._scope, (target_table for target_table in target_tables if target_table.needs_ordered_writes))

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        """Raise `DefiniteError` if two of the tables would be written to one target. No server is asked."""
        plan_tables(schemas, self.target, self.options)

    def replace(self, schema: TableSchema) -> None:
        """Make the target anew, empty, unless what is there is fit for the schema: its rows are about to come again."""
        replace_table(self._scope, schema)

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        """A change of the sort key deletes the old row and inserts the new one; engines that count want all that was there before."""
        return {name: _needs(target_table) for name, target_table in resolve_tables(self._scope, schemas).items()}

    def target_table(self, schema: TableSchema) -> TargetTable:
        """The target table of a schema."""
        return self.target_tables([schema])[schema.name]

    def target_tables(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TargetTable]:
        """The target tables of schemas, asked for in one request."""
        return resolve_tables(self._scope, schemas)

    def infer_schemas(self, names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Those of the tables whose targets are there, as the targets describe them: for changes that come without types."""
        return infer_schemas(self._scope, names)

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        """Take away the rows whose last image has a version below `before`: a new snapshot of the whole table did not see them."""
        sync_replica(self._scope, self.target_table(schema))
        delete_stale_rows(self._scope, self.target_table(schema), before)
        self._supersede(schema, before)

    def holds_rows(self, schema: TableSchema) -> bool:
        """Whether anything is in the target table, shown or not."""
        return holds_rows(self._scope, self.target_table(schema))

    def newest_version(self, schema: TableSchema) -> int | None:
        """The highest version of a row in the target table; None if there is no row, or rows have none."""
        return newest_version(self._scope, self.target_table(schema))

    def discard_partial_snapshot(self, schema: TableSchema, since: int) -> None:
        """Take away what an earlier attempt at a snapshot, all of whose rows have versions from `since` on, may have left. Repeatable."""
        discard_partial_snapshot(self._scope, self.target_table(schema), since)
        # Rows of the earlier attempt that wait in headrace.errors have versions from `since` on: all that wait are read again.
        self._supersede(schema, None)

    def _supersede(self, schema: TableSchema, before: int | None) -> None:
        supersede_dead_letters(self.own_tables(), self.target_table(schema), self.label, before, time.time_ns() // 1000)

    def for_pipe(self, pipe: str, label: str = "") -> Self:
        return replace(self, pipe=pipe, label=label)

    def with_source(self, connector: str, log: str) -> Self:
        """Rows are the same, whoever logged them."""
        del connector, log
        return self

    def with_tables(self, schemas: Iterable[TableSchema]) -> Self:
        return replace(self, expected=tuple(schemas))

    def for_replay(self) -> Self:
        return replace(self, repeats=True)

    def commit_batch(self, batch: BatchCommit) -> None:
        """Every block was visible when its write returned."""
        del batch

    def schema_applier(self) -> ClickHouseSchemaApplier:
        """What makes the tables follow schema changes."""
        return ClickHouseSchemaApplier(self._scope)

    def without_cache(self) -> Self:
        return replace(self, generation=self.generation + 1)

    def own_tables(self) -> OwnTables:
        """What Headrace keeps in the sink for itself."""
        return OwnTables(self._scope)

    def progress_store(self) -> ClickHouseProgressStore:
        """What is told of pipes."""
        return ClickHouseProgressStore(self.own_tables())

    def claims(self) -> ClickHouseTargetClaims:
        return ClickHouseTargetClaims(self.own_tables())

    def target_of(self, name: TableName) -> str:
        return ".".join(target_name(name, self.target, self.options))

    def writer(self, on_refused: OnRejected | None = None) -> ClickHouseWriter:
        """`on_refused` takes the rows that a table refuses, instead of what was chosen for it."""
        return ClickHouseWriter(self._scope, self.pipe, again=self.repeats, tables=self.expected, label=self.label, on_refused=on_refused)

    def reader(self) -> ClickHouseReader:
        return ClickHouseReader(self._scope)

    def digests(self) -> ClickHouseDigests:
        return ClickHouseDigests(self._scope)

    @property
    def scope(self) -> TargetScope:
        return self._scope

    @property
    def _scope(self) -> TargetScope:
        return TargetScope(self.target, self.options, self.generation)


def _needs(target_table: TargetTable) -> TableRequirements:
    emptied = target_table.family in (EngineFamily.COLLAPSING, EngineFamily.VERSIONED)
    # Rows that nothing tells apart would be counted beside those that are read again.
    keeps = target_table.ignores_deletes and target_table.has_key
    return TableRequirements(
        () if target_table.needs_before_images else target_table.key_dependencies,
        target_table.needs_ordered_writes,
        target_table.needs_consistent_snapshot,
        emptied,
        keeps,
    )
