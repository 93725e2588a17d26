"""ClickHouse sink for ScyllaDB cells: the cell tables, the views, and their writer.

Idempotent and order-free: every cell merges by its own timestamp, like in ScyllaDB. So blocks may come in any order, any number of times,
with any boundaries, and concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.cells.tables import TableLocations, alter_tables, clear_tables, prepare_tables, table_locations
from headrace.sinks.clickhouse.cells.writer import CellWriter
from headrace.sinks.clickhouse.dead_letters.late_rows import ClickHouseLateRowStore
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_cache import TargetScope


@dataclass(frozen=True, slots=True)
class CellSink(LogSink):
    """Writes the cells of CQL tables. Picklable."""

    sink: ClickHouseSink

    @classmethod
    def from_url(cls, url: str) -> CellSink:
        return cls(ClickHouseSink.from_url(url))

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create missing tables and check existing ones. Nothing is created if another object has one of the names."""
        prepare_tables(self._scope, tables)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Apply an alteration of a base table to the tables and the view. Repeatable."""
        alter_tables(self._scope, old, new)

    def clear(self, table: CqlTable) -> None:
        """Delete all cells of a table before its rows are read again. Repeatable."""
        clear_tables(self._scope, table)

    def table_store(self) -> Self:
        return self

    def progress_store(self) -> ClickHouseProgressStore:
        return self.sink.progress_store()

    def claims(self) -> ClickHouseTargetClaims:
        return self.sink.claims()

    def target_of(self, name: TableName) -> str:
        return self.sink.target_of(name)

    def late_row_store(self) -> ClickHouseLateRowStore:
        return ClickHouseLateRowStore(self.sink.own_tables())

    def locations(self, table: CqlTable) -> TableLocations:
        """Return the names of a base table's tables and view."""
        return table_locations(table, self._scope)

    def writer(self) -> CellWriter:
        return CellWriter(self._scope)

    @property
    def _scope(self) -> TargetScope:
        return self.sink.scope
