"""ClickHouse as a place for rows as their postimages show them: ordinary tables, one row a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from headrace.cql.tables import CqlTable
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.dead_letters.late_rows import ClickHouseLateRowStore
from headrace.sinks.clickhouse.postimages.tables import check_table, clear, prepare
from headrace.sinks.clickhouse.postimages.writer import PostimageWriter
from headrace.sinks.clickhouse.sink import ClickHouseSink


@dataclass(frozen=True, slots=True)
class PostimageSink(LogSink):
    """Where images go. Picklable."""

    sink: ClickHouseSink

    @property
    def stores_row_images(self) -> bool:
        return True

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Make what is missing, check what is there; raise `DefiniteError` before anything is made if a table cannot be held."""
        wanted = list(tables)
        for table in wanted:
            check_table(table)
        for table in wanted:
            prepare(self.sink.scope, table)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Make the table follow an alteration of its base table. Repeatable."""
        del old
        prepare(self.sink.scope, new)

    def clear(self, table: CqlTable) -> None:
        """Take everything away that is known of a table: its rows are about to come again. Repeatable."""
        clear(self.sink.scope, table)

    def table_store(self) -> Self:
        return self

    def late_row_store(self) -> ClickHouseLateRowStore:
        return ClickHouseLateRowStore(self.sink.own_tables())

    def writer(self) -> PostimageWriter:
        return PostimageWriter(self.sink.scope)
