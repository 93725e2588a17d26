"""The ClickHouse sink: implements `headrace.sinks.base` for one server.

Writes are idempotent and order-free where the table's engine merges by version: every image is a row with a version, and the table keeps
the highest version of each key. Engines that count duplicates get every block once, with a deduplication token (see `write.dedup_check`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from headrace.model.cascades import CascadePlan
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import Sink, TableRequirements, TextComparison
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.cascades.store import ClickHouseCascadeStore
from headrace.sinks.clickhouse.dead_letters.dead_letters import check_dead_letter_options, supersede_dead_letters
from headrace.sinks.clickhouse.dead_letters.skipped_events import ClickHouseSkippedEventStore
from headrace.sinks.clickhouse.maintenance.replicas import sync_replica
from headrace.sinks.clickhouse.maintenance.snapshot_reset import discard_partial_snapshot, holds_rows
from headrace.sinks.clickhouse.maintenance.table_setup import delete_stale_rows, newest_version, prepare_tables, replace_table
from headrace.sinks.clickhouse.maintenance.tombstone_store import ClickHouseTombstoneStore
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.row_digests import ClickHouseDigests
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.schema_inference import infer_schemas
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.tables.create_table import plan_tables
from headrace.sinks.clickhouse.tables.system_tables import find_with_local_tables
from headrace.sinks.clickhouse.tables.table_inspection import engine_family
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, read_target_tables, resolve_tables
from headrace.sinks.clickhouse.tables.target_names import target_name
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.clickhouse.write.dedup_window import ensure_dedup_windows
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter, OnRejected


@dataclass(frozen=True, slots=True)
class ClickHouseTableStore:
    """The tables of one server."""

    scope: TargetScope
    label: str = ""
    """The pipe's display name, which its dead letters contain."""

    def replace(self, schema: TableSchema) -> None:
        replace_table(self.scope, schema)

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        sync_replica(self.scope, self._table(schema))
        delete_stale_rows(self.scope, self._table(schema), before)
        self._supersede(schema, before)

    def holds_rows(self, schema: TableSchema) -> bool:
        return holds_rows(self.scope, self._table(schema))

    def newest_version(self, schema: TableSchema) -> int | None:
        return newest_version(self.scope, self._table(schema))

    def discard_partial_snapshot(self, schema: TableSchema, since: int, attempted_from: int = 0, written: int = 0) -> None:
        discard_partial_snapshot(self.scope, self._table(schema), since, attempted_from, written)
        # Dead letters of the interrupted snapshot have versions from `since` on, and all waiting rows are read again.
        self._supersede(schema, None)

    def target_names(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, str]:
        # One request for all tables: after a schema change the cache is empty.
        return {name: f"{table.database}.{table.table}" for name, table in resolve_tables(self.scope, schemas).items()}

    def _table(self, schema: TableSchema) -> TargetTable:
        return resolve_tables(self.scope, [schema])[schema.name]

    def _supersede(self, schema: TableSchema, before: int | None) -> None:
        supersede_dead_letters(OwnTables(self.scope), self._table(schema), self.label, before, time.time_ns() // 1000)


@dataclass(frozen=True, slots=True)
class ClickHouseSink(Sink):
    """A ClickHouse server and, optionally, one target database. Picklable; no text form shows the password."""

    target: ClickHouseTarget
    options: ClickHouseOptions = field(default_factory=ClickHouseOptions)
    generation: int = 0
    pipe: str = ""
    """Id of the writing pipe: part of the deduplication tokens."""
    label: str = ""
    """Display name of the writing pipe."""
    repeats: bool = False
    """Whether an earlier run may have stored blocks of this batch."""
    expected: tuple[TableSchema, ...] = ()
    """The tables that tasks write."""
    by_images: bool = False
    """Whether blocks without a name have no stable bounds (see `write.dedup_check`)."""
    writers: int = 1
    """How many tasks may write a table at the same time."""
    cascades: CascadePlan | None = None
    """The cascades whose parents' changes tasks log."""

    @classmethod
    def from_url(cls, url: str) -> ClickHouseSink:
        return cls(parse_target(url))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        wanted = tuple(schemas)
        prepare_tables(self._scope, wanted)
        target_tables = read_target_tables(self._scope, wanted)
        check_dead_letter_options(target_tables, self.options)
        ensure_dedup_windows(self._scope, (target_table for target_table in target_tables if target_table.needs_ordered_writes))

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        plan_tables(schemas, self.target, self.options)

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        """A change of the sort key needs the old image to delete the row; engines that count duplicates need all before images."""
        return {name: _needs(target_table) for name, target_table in resolve_tables(self._scope, schemas).items()}

    def target_table(self, schema: TableSchema) -> TargetTable:
        """Return the target table of a schema."""
        return self.target_tables([schema])[schema.name]

    def target_tables(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TargetTable]:
        """Return the target tables of schemas, in one query."""
        return resolve_tables(self._scope, schemas)

    def existing_family(self, name: TableName) -> EngineFamily | None:
        """Return the engine family of an existing target, whatever its columns; None if there is no target, or its engine is unfit."""
        place = target_name(name, self.target, self.options)
        with translate_errors(self.target, "looking at tables"):
            tables, local_tables = find_with_local_tables(connect(self.target), [place])
        table = local_tables.get(place) or tables.get(place)
        return None if table is None else engine_family(table)

    def infer_schemas(self, names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas of those tables whose targets exist, inferred from the targets."""
        return infer_schemas(self._scope, names)

    def for_pipe(self, pipe: str, label: str = "") -> Self:
        return replace(self, pipe=pipe, label=label)

    def with_tables(self, schemas: Iterable[TableSchema]) -> Self:
        return replace(self, expected=tuple(schemas))

    def for_replay(self) -> Self:
        return replace(self, repeats=True)

    def for_records(self, writers: int) -> Self:
        """Return the sink for blocks of Kafka records, which have no stable bounds unless they have a name. So many tasks write them."""
        return replace(self, by_images=True, writers=writers)

    def schema_applier(self) -> ClickHouseSchemaApplier:
        return ClickHouseSchemaApplier(self._scope)

    def table_store(self) -> ClickHouseTableStore:
        return ClickHouseTableStore(self._scope, self.label)

    def tombstone_store(self) -> ClickHouseTombstoneStore:
        return ClickHouseTombstoneStore(self._scope)

    def skipped_event_store(self) -> ClickHouseSkippedEventStore:
        return ClickHouseSkippedEventStore(self.own_tables())

    def without_cache(self) -> Self:
        return replace(self, generation=self.generation + 1)

    def own_tables(self) -> OwnTables:
        return OwnTables(self._scope)

    def progress_store(self) -> ClickHouseProgressStore:
        return ClickHouseProgressStore(self.own_tables())

    def claims(self) -> ClickHouseTargetClaims:
        return ClickHouseTargetClaims(self.own_tables())

    def target_of(self, name: TableName) -> str:
        return ".".join(target_name(name, self.target, self.options))

    def writer(self, on_rejected: OnRejected | None = None) -> ClickHouseWriter:
        """`on_rejected` handles rejected rows instead of the tables' options."""
        return ClickHouseWriter(
            self._scope,
            self.pipe,
            again=self.repeats,
            tables=self.expected,
            label=self.label,
            on_rejected=on_rejected,
            by_images=self.by_images,
            cascades=self.cascades,
            writers=self.writers,
        )

    def cascade_store(self, plan: CascadePlan, texts: TextComparison) -> ClickHouseCascadeStore:
        return ClickHouseCascadeStore(self._scope, plan, self.pipe, texts)

    def with_cascades(self, plan: CascadePlan) -> Self:
        return replace(self, cascades=plan or None)

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
    # Without a key, kept rows would be counted together with those that are read again.
    keeps = target_table.ignores_deletes and target_table.has_key
    return TableRequirements(
        () if target_table.needs_before_images else target_table.key_dependencies,
        target_table.needs_ordered_writes,
        target_table.needs_consistent_snapshot,
        emptied,
        keeps,
    )
