"""ClickHouse sink for CDC postimages: ordinary tables with one row per key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from headrace.cql.tables import CqlTable
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.dead_letters.late_rows import ClickHouseLateRowStore
from headrace.sinks.clickhouse.postimages.tables import check_table, clear, prepare
from headrace.sinks.clickhouse.postimages.writer import PostimageWriter
from headrace.sinks.clickhouse.sink import ClickHouseSink


@dataclass(frozen=True, slots=True)
class PostimageSink(LogSink):
    """Writes the postimages of CQL tables. Picklable."""

    sink: ClickHouseSink

    @property
    def stores_row_images(self) -> bool:
        return True

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create missing tables and check existing ones. Nothing is created if one table raises `DefiniteError`."""
        wanted = list(tables)
        for table in wanted:
            check_table(table)
        for table in wanted:
            prepare(self.sink.scope, table)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Apply an alteration of the base table. Repeatable."""
        del old
        prepare(self.sink.scope, new)

    def clear(self, table: CqlTable) -> None:
        """Delete all rows of a table before they are read again. Repeatable."""
        clear(self.sink.scope, table)

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

    def writer(self) -> PostimageWriter:
        return PostimageWriter(self.sink.scope)
