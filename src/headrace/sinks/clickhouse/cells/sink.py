"""ClickHouse as a place for ScyllaDB's cells: the tables of cells, the views, and who writes them.

Idempotent and order-free: every cell is merged by its own timestamp as its server would, so blocks may come in any order, any number of
times, cut anyhow, beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from headrace.cql.tables import CqlTable
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.cells.tables import TableLocations, alter_tables, clear_tables, prepare_tables, table_locations
from headrace.sinks.clickhouse.cells.writer import CellWriter
from headrace.sinks.clickhouse.dead_letters.late_rows import ClickHouseLateRowStore
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_cache import TargetScope


@dataclass(frozen=True, slots=True)
class CellSink(LogSink):
    """Where cells go. Picklable."""

    sink: ClickHouseSink

    @classmethod
    def from_url(cls, url: str) -> CellSink:
        return cls(ClickHouseSink.from_url(url))

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Make what is missing, check what is there; raise `DefiniteError` before anything is made if something else has its name."""
        prepare_tables(self._scope, tables)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Make the tables and the view follow an alteration of a base table. Repeatable."""
        alter_tables(self._scope, old, new)

    def clear(self, table: CqlTable) -> None:
        """Take everything away that is known of a table: its rows are about to come again. Repeatable."""
        clear_tables(self._scope, table)

    def table_store(self) -> Self:
        return self

    def late_row_store(self) -> ClickHouseLateRowStore:
        return ClickHouseLateRowStore(self.sink.own_tables())

    def locations(self, table: CqlTable) -> TableLocations:
        """Where a base table's tables and view are."""
        return table_locations(table, self._scope)

    def writer(self) -> CellWriter:
        return CellWriter(self._scope)

    @property
    def _scope(self) -> TargetScope:
        return self.sink.scope
