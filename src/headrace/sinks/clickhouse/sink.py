"""The ClickHouse sink: implements `headrace.sinks.base` for one server.

Writes are idempotent and order-free where the table's engine merges by version: every image is a row with a version, and the table keeps
the highest version of each key. Engines that count duplicates get every block once, with a deduplication token (see `write.deduplication`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from headrace.model.cascades import CascadePlan
from headrace.model.packed_mapping import PackedMapping
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import Sink, TableRequirements, TextComparison
from headrace.sinks.clickhouse.bookkeeping.dead_letters import (
    ClickHouseSkippedEventStore,
    check_dead_letter_options,
)
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.cascades.store import ClickHouseCascadeStore
from headrace.sinks.clickhouse.maintenance.table_setup import prepare_tables
from headrace.sinks.clickhouse.maintenance.table_store import ClickHouseTableStore
from headrace.sinks.clickhouse.maintenance.tombstone_store import ClickHouseTombstoneStore
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.row_digests import ClickHouseDigests
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.schema_inference import infer_schemas
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.tables.create_table import plan_tables
from headrace.sinks.clickhouse.tables.system_tables import find_with_local_tables
from headrace.sinks.clickhouse.tables.table_inspection import engine_family
from headrace.sinks.clickhouse.tables.target_cache import ALL_VALID, CacheValidity, TargetScope, refresh_tables, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable, target_name
from headrace.sinks.clickhouse.write.deduplication import ensure_dedup_windows
from headrace.sinks.clickhouse.write.write_context import WriteContext
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter, OnRejected


@dataclass(frozen=True, slots=True)
class ClickHouseSink(Sink):
    """A ClickHouse server and, optionally, one target database. Picklable; no text form shows the password."""

    target: ClickHouseTarget
    options: ClickHouseOptions = field(default_factory=ClickHouseOptions)
    pipe: str = ""
    """Id of the writing pipe: part of the deduplication tokens."""
    label: str = ""
    """Display name of the writing pipe."""
    repeats: bool = False
    """Whether an earlier run may have stored blocks of this batch."""
    expected: PackedMapping[TableName, TableSchema] = field(default_factory=lambda: PackedMapping({}))
    """The tables that tasks write."""
    by_images: bool = False
    """Whether blocks without a name have no stable bounds (see `write.deduplication`)."""
    writers: int = 1
    """How many tasks may write a table at the same time."""
    cascades: CascadePlan | None = None
    """The cascades whose parents' changes tasks log."""
    validity: CacheValidity = ALL_VALID

    @classmethod
    def from_url(cls, url: str) -> ClickHouseSink:
        return cls(parse_target(url))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        wanted = tuple(schemas)
        prepare_tables(self.scope, wanted)
        target_tables = refresh_tables(self.scope, wanted)
        check_dead_letter_options(target_tables, self.options)
        ensure_dedup_windows(self.scope, (target_table for target_table in target_tables if target_table.needs_ordered_writes))

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        plan_tables(schemas, self.target, self.options)

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        """A change of the sort key needs the old image to delete the row; engines that count duplicates need all before images."""
        return {name: _needs(target_table) for name, target_table in resolve_tables(self.scope, schemas).items()}

    def target_table(self, schema: TableSchema) -> TargetTable:
        return self.target_tables([schema])[schema.name]

    def target_tables(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TargetTable]:
        """Return the target tables of schemas, in one query."""
        return resolve_tables(self.scope, schemas)

    def existing_family(self, name: TableName) -> EngineFamily | None:
        """Return the engine family of an existing target, whatever its columns; None if there is no target, or its engine is unfit."""
        place = target_name(name, self.target, self.options)
        tables, local_tables = find_with_local_tables(self.target, [place])
        table = local_tables.get(place) or tables.get(place)
        return None if table is None else engine_family(table)

    def infer_schemas(self, names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Return the schemas of those tables whose targets exist, inferred from the targets."""
        return infer_schemas(self.scope, names)

    def for_pipe(self, pipe: str, label: str = "") -> Self:
        return replace(self, pipe=pipe, label=label)

    def with_tables(self, schemas: Iterable[TableSchema]) -> Self:
        return replace(self, expected=PackedMapping({schema.name: schema for schema in schemas}))

    def for_replay(self) -> Self:
        return replace(self, repeats=True)

    def for_records(self, writers: int) -> Self:
        """Return the sink for blocks of Kafka records, which have no stable bounds unless they have a name. So many tasks write them."""
        return replace(self, by_images=True, writers=writers)

    def schema_applier(self) -> ClickHouseSchemaApplier:
        return ClickHouseSchemaApplier(self.scope)

    def table_store(self) -> ClickHouseTableStore:
        return ClickHouseTableStore(self.scope, self.label)

    def tombstone_store(self) -> ClickHouseTombstoneStore:
        return ClickHouseTombstoneStore(self.scope)

    def skipped_event_store(self) -> ClickHouseSkippedEventStore:
        return ClickHouseSkippedEventStore(self.own_tables())

    def without_cache(self, names: Iterable[TableName] | None = None) -> Self:
        return replace(self, validity=self.validity.after_change(names))

    def own_tables(self) -> OwnTables:
        return OwnTables(self.scope)

    def progress_store(self) -> ClickHouseProgressStore:
        return ClickHouseProgressStore(self.own_tables())

    def claims(self) -> ClickHouseTargetClaims:
        return ClickHouseTargetClaims(self.own_tables())

    def target_of(self, name: TableName) -> str:
        return ".".join(target_name(name, self.target, self.options))

    def writer(self, on_rejected: OnRejected | None = None) -> ClickHouseWriter:
        """`on_rejected` handles rejected rows instead of the tables' options."""
        context = WriteContext(self.scope, self.pipe, self.label, self.expected, self.repeats, self.by_images, self.writers, self.cascades)
        return ClickHouseWriter(context, on_rejected)

    def cascade_store(self, plan: CascadePlan, texts: TextComparison) -> ClickHouseCascadeStore:
        return ClickHouseCascadeStore(self.scope, plan, self.pipe, texts)

    def with_cascades(self, plan: CascadePlan) -> Self:
        return replace(self, cascades=plan or None)

    def reader(self) -> ClickHouseReader:
        return ClickHouseReader(self.scope)

    def digests(self) -> ClickHouseDigests:
        return ClickHouseDigests(self.scope)

    @property
    def scope(self) -> TargetScope:
        return TargetScope(self.target, self.options, self.validity)


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
