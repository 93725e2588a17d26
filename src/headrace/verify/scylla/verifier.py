"""Compares base tables with their rows in ClickHouse, value by value, on a live pipe.

The order: read the base table by token ranges; wait until the pipe has passed that time; read the view; compare. Where the view reads
stored rows, the cells that they were merged from are compared too. Rows are put into buckets by their partition key, the same on both
sides, so that memory holds one bucket however large the table is. Rows that differ are rechecked on both sides until it is certain that
they differ and are not only behind (`verify.recheck`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.decode.canonical_bytes import canonical, to_python
from headrace.cql.decode.pages import RawValues, as_batch, read_pages, read_rows
from headrace.cql.language.value_encoder import encode
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableSchema
from headrace.model.table_selection import Selection
from headrace.shutdown import temporary_directory
from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.dead_letters import ClickHouseLateRowStore
from headrace.sinks.clickhouse.cells.merged_rows.row_merge import NO_TRANSFORMS
from headrace.sinks.clickhouse.cells.merged_rows.row_transforms import RowTransforms
from headrace.sinks.clickhouse.cells.reader import CellReader
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sources.scylla.log_tables import select_tables
from headrace.sources.scylla.position import moment
from headrace.sources.scylla.snapshot.base_rows import RowQuery, WriteTimeColumns
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import server_time
from headrace.sources.scylla.snapshot.row_recheck import RowRechecker
from headrace.sources.scylla.snapshot.table_probe import probe_write_times, read_ring
from headrace.sources.scylla.snapshot.token_ranges import WHOLE, TokenRange, cut
from headrace.transforms.mask_and_hash import masked
from headrace.transforms.options import Mask, MaskKind
from headrace.verify.key_values import key_list
from headrace.verify.recheck import KeyRechecker, RecheckResult
from headrace.verify.result import TableResult
from headrace.verify.row_compare import Comparison, Difference, compare, different_keys, distinct
from headrace.verify.scylla.hash_buckets import Buckets
from headrace.verify.table_spec import TableComparison
from headrace.verify.view import LineView, VerifyView
from headrace.verify.watermark import SILENT_S, PipePosition, Watermark, has_reached, stands_at

BUCKET_ROWS: Final = 200_000
_MOST_KEYS: Final = 10_000
"""The maximum number of rows of a table that are rechecked."""
_KEYS_AT_ONCE: Final = 200
_SLOTS: Final = 4


def pipe_position_of(progress: Progress) -> PipePosition[int]:
    """Return a pipe's position from the sink: microseconds since 1970 up to which all of its tables' logs were read."""
    text, found, _ = progress.position.partition(" in ")
    time_us = int(datetime.fromisoformat(text).timestamp() * 1_000_000) if found else 0
    silent_s = time.time() - progress.seen_us / 1e6
    return PipePosition(time_us, silent_s < SILENT_S, frozenset(progress.incomplete))


def verify_logged(
    session: CqlSession,
    sink: CellSink,
    selection: Selection,
    watermark: Watermark[int] | None = None,
    view: VerifyView | None = None,
    *,
    bucket_rows: int = BUCKET_ROWS,
    repair: ScyllaOptions | None = None,
) -> Iterator[TableResult]:
    """Compare the selected tables that have a log; yield each result as soon as it is certain.

    `repair`: write differing rows again with the source's values, read with these options.
    """
    names = select_tables(session, selection).logged
    if not names:
        raise DefiniteError(f"no table with a CDC log matches {selection}", place=str(session.address), hint="check --tables")
    progress_view = view or LineView()
    for name in names:
        yield _TableVerification(session, sink, describe(session, name), watermark, progress_view, bucket_rows, repair).run()


def canonical_schema(table: CqlTable) -> TableSchema:
    """A table whose columns all hold canonical bytes."""
    keys = tuple(column.name for column in (*table.partition_key, *table.clustering))
    columns = tuple(Column(column.name, Kind.BYTES, source_type=str(column.type)) for column in table.columns)
    return TableSchema(table.name, columns, keys)


def canonical_rows(table: CqlTable, batch: pa.RecordBatch, order: Sequence[str]) -> pa.Table:
    """Convert rows with columns in the given order to canonical bytes in the table's order."""
    found = {name: canonical(table.column(name).type, batch.column(place)) for place, name in enumerate(order)}
    return pa.table([found[column.name] for column in table.columns], schema=canonical_schema(table).arrow_schema)


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Reads a table's rows on both sides as canonical bytes."""

    session: CqlSession
    reader: CellReader
    table: CqlTable
    from_cells: bool = False
    """Whether cells are merged now, instead of reading rows that were merged before."""
    transforms: RowTransforms = NO_TRANSFORMS
    """How the stored rows were made of the source's."""

    @property
    def shown(self) -> CqlTable:
        """The table with the columns that are compared."""
        return self.transforms.shown_table(self.table)

    def transformed(self, rows: pa.Table) -> pa.Table:
        """Return rows of the source as the sink must show them."""
        found = rows.select([column.name for column in self.shown.columns])
        for place, column in enumerate(self.shown.columns):
            mask = self.transforms.mask_of(column)
            if mask is not None:
                found = found.set_column(place, found.schema.field(place), _masked(mask, found.column(place)))
        return found

    @property
    def _query(self) -> RowQuery:
        return RowQuery(self.table, WriteTimeColumns(frozenset()))

    def _canonical(self, page: pa.RecordBatch) -> pa.Table:
        columns = (*self._query.keys, *self._query.cells)
        typed = [to_arrow(column.type, page.column(place), column.name) for place, column in enumerate(columns)]
        names = [column.name for column in columns]
        return self.transformed(canonical_rows(self.table, pa.RecordBatch.from_arrays(typed, names=names), names))

    def source(self, part: TokenRange) -> Iterator[pa.Table]:
        """Return the rows of a token range, as SELECT shows them."""
        for page in read_rows(self.session, self._query.by_range, (part.start, part.end)):
            yield self._canonical(page)

    def sink(self) -> Iterator[pa.Table]:
        names = [column.name for column in self.shown.columns]
        for batch in self.reader.rows(self.shown, from_cells=self.from_cells, transforms=self.transforms):
            yield canonical_rows(self.shown, batch, names)

    def source_by_key(self, table: TableComparison, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys; without clustering columns, those of a partition that has only static values."""
        found = [table.shown.arrow_schema.empty_table()]
        raw_rows = self.raw_keys(keys)
        rows, alone = [raw for raw in raw_rows if None not in raw], [raw for raw in raw_rows if None in raw]
        pages = read_pages(self.session, [(self._query.by_key, RawValues(raw)) for raw in rows])
        found += [self._canonical(as_batch([page.rows])) for page in pages if page.rows.count]
        width = len(self.table.partition_key)
        pages = read_pages(self.session, [(self._query.of_partition, RawValues(raw[:width])) for raw in alone])
        for page in pages:
            if page.rows.count:
                one = self._canonical(as_batch([page.rows]))
                found.append(one.filter(one.column(self.table.clustering[0].name).is_null()))
        return pa.concat_tables(found)

    def sink_by_key(self, table: TableComparison, keys: pa.Table) -> pa.Table:
        raw = self.raw_keys(keys)
        texts = [["" if value is None else value.decode("utf-8", "replace") for value in key] for key in key_list(keys)]  # type: ignore[attr-defined]
        names = [column.name for column in self.shown.columns]
        found = [table.shown.arrow_schema.empty_table()]
        for start in range(0, len(raw), _KEYS_AT_ONCE):
            part = slice(start, start + _KEYS_AT_ONCE)
            condition = self.reader.key_condition(self.table, raw[part], texts[part])
            batches = self.reader.rows(self.shown, condition, from_cells=self.from_cells, transforms=self.transforms)
            found += [canonical_rows(self.shown, batch, names) for batch in batches]
        return pa.concat_tables(found)

    def raw_keys(self, keys: pa.Table) -> list[tuple[bytes | None, ...]]:
        """Serialize keys in the server's format."""
        kinds = [column.type for column in (*self.table.partition_key, *self.table.clustering)]
        return [tuple(encode(kind, to_python(kind, value)) for kind, value in zip(kinds, key, strict=True)) for key in key_list(keys)]  # type: ignore[arg-type]


class _TableVerification:
    """The running comparison of one table."""

    def __init__(
        self,
        session: CqlSession,
        sink: CellSink,
        table: CqlTable,
        watermark: Watermark[int] | None,
        view: VerifyView,
        bucket_rows: int,
        repair: ScyllaOptions | None,
    ) -> None:
        self._sink, self._repair = sink, repair
        self._session, self._reader, self._table, self._watermark, self._view = session, CellReader(sink.sink.scope), table, watermark, view
        self._rows, self._bucket_rows = LoggedRows(session, self._reader, table), bucket_rows
        self._cells: LoggedRows | None = None
        self._cell_notes: tuple[str, ...] = ()
        self._compared = TableComparison(canonical_schema(table))
        self._started = time.monotonic()
        self._reached: PipePosition[int] | None = None

    def run(self) -> TableResult:
        schema = self._compared.schema
        pipe_position = self._watermark.ask() if self._watermark is not None else None
        if pipe_position is not None and str(schema.name) in pipe_position.incomplete:
            return TableResult(
                schema,
                Comparison(),
                is_behind=True,
                notes=("its rows are still being copied; verify it when that is done",),
                pipe_position=self._stands(),
            )
        if not self._reader.is_there(self._table):
            note = "there is no view of it in the sink"
            return TableResult(schema, Comparison(0, 1), notes=(note,))
        if self._reader.stores_rows(self._table):
            self._cells = replace(self._rows, from_cells=True)
            self._rows = replace(self._rows, transforms=self._reader.transforms(self._table))
            self._compared = TableComparison(canonical_schema(self._rows.shown))
        found, keys, unread = self._first_look()
        rechecked = self._recheck(keys) if keys.num_rows else RecheckResult(Comparison(), keys)
        repaired = 0
        if self._repair is not None and rechecked.comparison.total:
            before, rechecked = rechecked, self._repaired(rechecked, self._repair)
            repaired = before.keys.num_rows - rechecked.keys.num_rows
        if self._repair is not None and self._watermark is not None and not (rechecked.comparison.total or rechecked.behind or unread):
            ClickHouseLateRowStore(self._sink.sink.own_tables()).resolve(self._watermark.pipe, str(schema.name), copied=False)
        differences = tuple(self._readable(one) for one in rechecked.comparison.differences)
        notes = (*((self._lag(),) if rechecked.behind else ()), *self._cell_notes)
        return TableResult(
            schema,
            replace(rechecked.comparison, rows=found.rows, differences=differences),
            rechecked.behind,
            rechecked.changing,
            unread,
            repaired,
            notes=notes,
            seconds=time.monotonic() - self._started,
            missing=rechecked.missing,
            extra=rechecked.extra,
            pipe_position=self._stands() if rechecked.behind else "",
            compared_at=moment(self._reached.position) if self._reached is not None else "",
            pipe_stopped=not self._reached.is_running if self._reached is not None else None,
        )

    def _repaired(self, rechecked: RecheckResult, choices: ScyllaOptions) -> RecheckResult:
        """Write the rows again, each cell with its own write time, and delete their other cells; return what still differs."""
        names = [column.name for column in (*self._table.partition_key, *self._table.clustering)]
        raw = self._rows.raw_keys(rechecked.keys)
        columns = [pa.array(values, pa.binary()) for values in zip(*raw, strict=True)]
        writer = self._sink.writer()
        try:
            rereader, telling = RowRechecker(self._session, choices), probe_write_times(self._session, self._table)
            for block in rereader.read_repairs(self._table, telling, pa.RecordBatch.from_arrays(columns, names=names)):
                writer.write(block)
            writer.complete()
        finally:
            writer.close()
        after = self._recheck(rechecked.keys)
        return replace(
            after,
            changing=rechecked.changing + after.changing,
            behind=rechecked.behind + after.behind,
            missing=rechecked.missing + after.missing,
            extra=rechecked.extra + after.extra,
        )

    def _first_look(self) -> tuple[Comparison, pa.Table, int]:
        """Return the first differences: their number, the keys to recheck, and the number of rows beyond the limit."""
        name = str(self._table.name)
        expected = self._reader.count(self._table)
        count = max(1, -(-expected // self._bucket_rows))
        self._view.begins({name: expected})
        keys = [column.name for column in self._table.partition_key]
        with temporary_directory("headrace-verify-") as scratch:
            source = Buckets(Path(scratch) / "source", count, keys)
            target = Buckets(Path(scratch) / "sink", count, keys)
            cells = Buckets(Path(scratch) / "cells", count, keys)
            try:
                self._read_source(source, lambda rows: self._view.advanced(name, rows))
                self._await()
                for rows in self._rows.sink():
                    target.add(rows)
                for rows in self._cells.sink() if self._cells is not None else ():
                    cells.add(rows)
                return self._compare(source, target, cells if self._cells is not None else None)
            finally:
                self._view.ends()
                source.close()
                target.close()
                cells.close()

    def _read_source(self, buckets: Buckets, advanced: Callable[[int], None]) -> None:
        parts = cut([WHOLE], read_ring(self._session, self._table.name), 4 * _SLOTS)

        whole = replace(self._rows, transforms=NO_TRANSFORMS)

        def read(part: TokenRange) -> None:
            for rows in whole.source(part):
                buckets.add(rows)
                advanced(rows.num_rows)

        with ThreadPoolExecutor(_SLOTS, thread_name_prefix="headrace-verify") as pool:
            list(pool.map(read, parts))

    def _compare(self, source: Buckets, target: Buckets, cells: Buckets | None) -> tuple[Comparison, pa.Table, int]:
        schema, whole = self._compared.shown, canonical_schema(self._table)
        total = Comparison()
        nothing, empty = schema.arrow_schema.empty_table(), whole.arrow_schema.empty_table()
        keys = [nothing.select(list(schema.row_key))]
        merged = cells.tables(empty) if cells is not None else itertools.repeat(None)
        for read, right, cell_rows in zip(source.tables(empty), target.tables(nothing), merged, strict=False):
            left = self._rows.transformed(read)
            found = compare(schema, left, right)
            total = total + found
            if found.total:
                keys.append(different_keys(schema, left, right, most=_MOST_KEYS))
            if cell_rows is not None and compare(whole, read, cell_rows).total:
                keys.append(different_keys(whole, read, cell_rows, most=_MOST_KEYS))
        different = distinct(pa.concat_tables(keys))
        return total, different.slice(0, _MOST_KEYS), max(different.num_rows - _MOST_KEYS, 0)

    def _recheck(self, keys: pa.Table) -> RecheckResult:
        """Recheck stored rows; also their cells, which count if the rows are equal."""
        found = self._recheck_rows(self._rows, keys)
        self._cell_notes = ()
        if self._cells is None or found.behind or found.changing:
            return found
        cells = self._recheck_rows(self._cells, keys)
        if not found.comparison.total:
            if cells.comparison.total:
                self._cell_notes = ("its rows are equal to the source: only the cells that they were merged from differ",)
            return cells
        if not (cells.comparison.total or cells.behind or cells.changing):
            self._cell_notes = ("its cells are equal to the source: only the rows that were merged from them differ",)
        # Cells of other rows may differ: a mask hides that in the rows.
        return replace(found, keys=distinct(pa.concat_tables([found.keys, cells.keys])))

    def _recheck_rows(self, rows: LoggedRows, keys: pa.Table) -> RecheckResult:
        compared = TableComparison(canonical_schema(rows.shown))
        return KeyRechecker(rows, self._watermark, self._now, lambda: None).recheck(compared, keys)

    def _now(self) -> int:
        return server_time(self._session)

    def _await(self) -> None:
        """Wait until the pipe has passed everything read so far."""
        if self._watermark is not None:
            wanted = self._now()
            self._reached = self._watermark.await_position(wanted)
            if not has_reached(self._reached, wanted):
                self._view.note(f"verify: {self._lag()}; rows that differ may only be behind")

    def _stands(self) -> str:
        if self._watermark is None:
            return ""
        pipe_position = self._watermark.ask()
        return stands_at(pipe_position, moment(pipe_position.position))

    def _lag(self) -> str:
        assert self._watermark is not None
        pipe_position = self._watermark.ask()
        running = "" if pipe_position.is_running else " and does not run now"
        return f"the pipe {self._watermark.pipe} stands at {moment(pipe_position.position)}{running}"

    def _readable(self, found: Difference) -> Difference:
        """Return a difference with readable values."""
        keys = [self._table.column(name).type for name in self._compared.schema.row_key]
        key = tuple(to_python(kind, _bytes(value)) for kind, value in zip(keys, found.key, strict=True))
        if not found.column:
            return replace(found, key=key)
        kind = self._table.column(found.column).type
        return replace(found, key=key, source=to_python(kind, _bytes(found.source)), target=to_python(kind, _bytes(found.target)))


def _masked(mask: Mask, values: pa.ChunkedArray) -> pa.Array:
    """Return the masked texts of canonical values; they are their UTF-8 bytes."""
    if mask.kind is MaskKind.NULL:
        return pa.nulls(len(values), pa.binary())
    return masked(Column("", Kind.STRING), mask, values.combine_chunks().cast(pa.string())).cast(pa.binary())


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None
