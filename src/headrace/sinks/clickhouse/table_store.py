"""The `TableStore` of the ClickHouse sink."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.dead_letters.dead_letters import supersede_dead_letters
from headrace.sinks.clickhouse.maintenance.replicas import sync_replica
from headrace.sinks.clickhouse.maintenance.snapshot_reset import discard_partial_snapshot, holds_rows
from headrace.sinks.clickhouse.maintenance.table_setup import delete_stale_rows, newest_version, replace_table
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import TargetTable


@dataclass(frozen=True, slots=True)
class ClickHouseTableStore:
    """The tables of one server."""

    scope: TargetScope
    label: str = ""
    """The pipe's name for people, by which its dead letters are found."""

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
