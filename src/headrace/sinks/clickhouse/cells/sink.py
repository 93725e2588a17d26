"""ClickHouse sink for ScyllaDB cells: the cell tables, the merged rows, the views, and their writer.

Idempotent and order-free: every column merges by `max` of its own timestamp, like in ScyllaDB. So blocks may come in any order, any number
of times, with any boundaries, and concurrently. When `write` returns, the block's cells are stored; when `complete` returns, the rows of
all blocks are merged and visible. When one of them raises, any part may be stored, and writing the blocks again is safe. A task that dies
before `complete` has returned has not reported its split as done, so the blocks are written again, and their rows merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.log import log_table
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.bookkeeping.dead_letters import ClickHouseLateRowStore
from headrace.sinks.clickhouse.bookkeeping.progress_store import ClickHouseProgressStore
from headrace.sinks.clickhouse.bookkeeping.target_claims import ClickHouseTargetClaims
from headrace.sinks.clickhouse.cells.batches import CellBatch, insert_sql
from headrace.sinks.clickhouse.cells.from_log import LogCellEncoder
from headrace.sinks.clickhouse.cells.from_rows import RowEncoder
from headrace.sinks.clickhouse.cells.merged_rows.merger import RowMerger, due_merges
from headrace.sinks.clickhouse.cells.merged_rows.row_merge import RowMerge
from headrace.sinks.clickhouse.cells.stale_cells import StaleCells
from headrace.sinks.clickhouse.cells.storage import CellStorage
from headrace.sinks.clickhouse.cells.tables import (
    TableLocations,
    alter_tables,
    clear_tables,
    prepare_tables,
    row_merge,
    stored_transforms,
    stores_rows,
    table_locations,
    tables_with_rows,
)
from headrace.sinks.clickhouse.cells.types import check_timestamps, has_timestamps
from headrace.sinks.clickhouse.server.client import CREATE_SETTINGS, INSERT_SETTINGS, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.transforms.options import Transforms


class _CellRoute:
    """How a table's blocks are written; built once per table definition."""

    def __init__(self, table: CqlTable, scope: TargetScope) -> None:
        self.storage = CellStorage(table)
        self.locations: TableLocations = table_locations(table, scope)
        self.log, self.rows = LogCellEncoder(self.storage), RowEncoder(self.storage)
        self._types = (dict(self.storage.row_columns()), dict(self.storage.partition_columns()))
        self.timestamp_columns = [(column.name, column.type) for column in table.columns if has_timestamps(column.type)]
        self.log_timestamp_columns = [(column.name, column.type) for column in log_table(table).columns if has_timestamps(column.type)]
        self._statements: dict[tuple[str, ...], bytes] = {}
        self.stale_rows = StaleCells(scope, self.storage, self.locations.cells, of_rows=True)
        self.stale_partitions = StaleCells(scope, self.storage, self.locations.partitions, of_rows=False)
        self.merger = RowMerger(scope, _stored_merge(table, scope)) if stores_rows(scope, self.locations) else None

    def statement(self, batch: CellBatch, *, of_rows: bool) -> bytes:
        key = ("rows" if of_rows else "partitions", *batch.columns)
        found = self._statements.get(key)
        if found is None:
            table, types = (self.locations.cells, self._types[0]) if of_rows else (self.locations.partitions, self._types[1])
            found = self._statements[key] = insert_sql(self.storage, table, batch, types).encode()
        return found


def _stored_merge(table: CqlTable, scope: TargetScope) -> RowMerge:
    """Return the statements that merge rows by the transforms of the stored rows, which every writer shares."""
    locations = table_locations(table, scope)
    return row_merge(table, locations, stored_transforms(scope, locations))


class CellWriter:
    """Writes to one server; belongs to one task."""

    def __init__(self, scope: TargetScope) -> None:
        self._scope = scope
        self._routes: dict[CqlTable, _CellRoute] = {}
        self._closed = False

    def write(self, block: LogBlock | RowBlock) -> None:
        """Store the block's cells durably. The rows that they touch are merged by `complete`, or earlier if there are many."""
        if self._closed:
            raise DefiniteError(
                "the writer is closed", place=str(self._scope.target), hint="this is a defect of the caller; please report it"
            )
        route = self._routes.get(block.table)
        if route is None:
            route = self._routes[block.table] = _CellRoute(block.table, self._scope)
        if isinstance(block, RowBlock):
            check_timestamps(route.timestamp_columns, block.rows, connect(self._scope.target).limits, block.subject)
            batches = route.rows.encode(block)
        else:
            check_timestamps(route.log_timestamp_columns, block.rows, connect(self._scope.target).limits, block.subject)
            batches = route.log.encode(block)
        for batch, of_rows in batches:
            self._send(block.subject, batch, route.statement(batch, of_rows=of_rows))
            if isinstance(block, RowBlock) and block.replaces:
                (route.stale_rows if of_rows else route.stale_partitions).add(batch, block.as_of)
        if route.merger is not None:
            route.merger.touch(batches)

    def complete(self) -> None:
        """Delete stale cells, and merge the rows that were touched; all blocks are visible when this returns. Repeatable."""
        for route in self._routes.values():
            route.stale_rows.delete()
            route.stale_partitions.delete()
            if route.merger is not None:
                route.merger.merge()

    def _send(self, subject: str, batch: CellBatch, statement: bytes) -> None:
        target = self._scope.target
        connection = connect(target)
        body = batch.body(statement, None if target.is_loopback else "lz4")
        settings = connection.supported({**INSERT_SETTINGS, **CREATE_SETTINGS})
        with translate_errors(target, f"writing {batch.rows} rows of cells of table {subject}"):
            # Without a table name the driver sends the body as it is, which saves a copy of it.
            connection.client.raw_insert("", None, body, settings=settings)

    def close(self) -> None:
        """End the task's writing. The process keeps the connection for its next task."""
        self._closed = True
        self._routes.clear()


@dataclass(frozen=True, slots=True)
class CellSink(LogSink):
    """Writes the cells of CQL tables. Picklable."""

    sink: ClickHouseSink
    merges: bool | None = None
    """Whether tables get merged rows; else their views merge cells at each query. None: new tables do, existing ones stay as they are."""
    transforms: Transforms = field(default_factory=Transforms)
    """Of merged rows. `prepare` and `alter` apply them; writers take those of the stored rows."""

    @classmethod
    def from_url(cls, url: str) -> CellSink:
        return cls(ClickHouseSink.from_url(url))

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        """Create missing tables and check existing ones. Nothing is created if another object has one of the names."""
        prepare_tables(self._scope, tables, merges=self.merges, transforms=self.transforms)

    def alter(self, old: CqlTable, new: CqlTable) -> None:
        """Apply an alteration of a base table to the tables and the view. Repeatable."""
        alter_tables(self._scope, old, new, merges=self.merges, transforms=self.transforms)

    def expire(self, tables: Iterable[CqlTable], since: int) -> int:
        """Merge the rows with a cell that has expired since a time of the server, and return its time now. Repeatable."""
        if self.merges is False:
            return since
        with translate_errors(self._scope.target, "reading the time"):
            [[now]] = connect(self._scope.target).client.query("SELECT toUnixTimestamp(now())").result_rows
        merges = [row_merge(table, self.locations(table)) for table in tables_with_rows(self._scope, tables)]
        for merge in due_merges(self._scope, merges, since):
            RowMerger(self._scope, _stored_merge(merge.storage.table, self._scope)).expire(since)
        return int(now)

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
