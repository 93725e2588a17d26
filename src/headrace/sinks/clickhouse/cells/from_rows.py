"""Encodes rows of a base table (of a snapshot, or read again) as batches of cells.

Cells have their own write times, so they merge with the log's cells. A SELECT does not return two things:

The keys of a list's elements. A list is stored as a whole, as of the read time (`base:X`); the view adds later elements of the log.

The row marker. A row without live cells must have a marker, which counts as written at the read time. For other rows the marker is unknown;
they are read again when their last cell is deleted. A row that is then missing had no marker: it gets a deleted marker, which hides nothing
else and loses against any later marker.
"""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.blocks import RowBlock
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections, split_tuples
from headrace.cql.tables import ColumnRole
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.batches import BlockColumns, CellBatch, damaged_value, key_arrays
from headrace.sinks.clickhouse.cells.key_order import Array
from headrace.sinks.clickhouse.cells.packed_columns import (
    CellTimes,
    Numbers,
    check_elements,
    marker_cells,
    no_elements,
    pack_atomic,
    pack_elements_array,
    split,
    time_bytes,
)
from headrace.sinks.clickhouse.cells.storage import MARKER, CellColumn, CellForm, CellStorage
from headrace.sinks.clickhouse.cells.typed_arrays import struct_array

_MICROS = 1_000_000
Rows = npt.NDArray[np.intp]


class RowEncoder:
    """Encodes the rows of one table; built once per table definition."""

    def __init__(self, storage: CellStorage) -> None:
        self._storage, self._table = storage, storage.table

    def encode(self, block: RowBlock) -> list[tuple[CellBatch, bool]]:
        """Return batches, each with a flag: true for the rows table, false for the partitions table."""
        rows = np.arange(block.rows.num_rows)
        static = np.empty(0, np.intp)
        if self._storage.is_clustered:
            is_static = Cells.of(block.rows.column(self._table.clustering[0].name)).sizes < 0
            rows, static = np.flatnonzero(~is_static), np.flatnonzero(is_static)
        made: list[tuple[CellBatch, bool]] = []
        if len(static):
            made.append((self._batch(block, static, self._storage.static, ColumnRole.PARTITION), False))
        if len(rows):
            batch = self._batch(block, rows, self._storage.regular, ColumnRole.PARTITION, ColumnRole.CLUSTERING)
            batch.columns[MARKER] = self._markers(block, rows)
            made.append((batch, True))
        if block.gone is not None and block.gone.num_rows:
            made.append((self._gone(block, block.gone), True))
        return made

    def _batch(self, block: RowBlock, chosen: Rows, columns: tuple[CellColumn, ...], *roles: ColumnRole) -> CellBatch:
        read = BlockColumns(block.rows, chosen, block.subject)
        made = key_arrays(self._storage, read, *roles)
        for cell_column in columns:
            name = cell_column.column.name
            times, expiries = (_rows_of(part, name, chosen, block) for part in (block.times, block.expiries))
            try:
                made |= _encode_row_column(cell_column, read(name), times, expiries, block.as_of)
            except MalformedValue as damage:
                raise damaged_value(damage, name, read.place(damage.row)) from None
        return CellBatch(made)

    def _markers(self, block: RowBlock, rows: Rows) -> Array:
        """Return markers of rows without live regular cells."""
        alone = np.ones(len(rows), bool)
        for cell_column in self._storage.regular:
            alone &= Cells.of(block.rows.column(cell_column.column.name)).sizes[rows] < 0
        return marker_cells(alone.astype(np.uint8), np.zeros(len(rows), np.uint8), _uniform_times(len(rows), block.as_of))

    def _gone(self, block: RowBlock, keys: pa.RecordBatch) -> CellBatch:
        count = keys.num_rows
        made = key_arrays(self._storage, BlockColumns(keys, np.arange(count), block.subject), ColumnRole.PARTITION, ColumnRole.CLUSTERING)
        made[MARKER] = marker_cells(np.zeros(count, np.uint8), np.ones(count, np.uint8), _uniform_times(count, block.as_of))
        for cell_column in self._storage.regular:
            if cell_column.form is CellForm.LIST:
                nothing = np.empty(0, np.int64)
                none = Cells(np.empty(0, np.uint8), nothing, nothing)
                made[cell_column.base] = _list_snapshot(cell_column, np.zeros(count + 1, np.int64), none, _uniform_times(0, 0), block.as_of)
        return CellBatch(made)


def _encode_row_column(cell_column: CellColumn, cells: Cells, times: Array, expiries: Array, as_of: int) -> dict[str, Array]:
    """Return the arrays of a column from a SELECT."""
    rows = len(cells)
    there = cells.sizes >= 0
    match cell_column.form:
        case CellForm.ATOMIC:
            bounds = np.concatenate([[0], np.cumsum(there)]).astype(np.int64)
            found, own = _cell_times(bounds, times, expiries, as_of, cell_column), _uniform_times(rows, 0)
            for part, of in zip(own, found, strict=True):
                part[there] = of
            return {cell_column.cell: pack_atomic(cell_column.kind, cells, np.zeros(rows, np.uint8), own)}
        case CellForm.FIELDS:
            return _encode_row_fields(cell_column, cells, times, expiries, as_of)
        case CellForm.LIST:
            found_elements = split_collections(cells)
            stamps = _cell_times(found_elements.offsets, times, expiries, as_of, cell_column)
            return {cell_column.base: _list_snapshot(cell_column, found_elements.offsets, found_elements.parts[0], stamps, as_of)}
        case CellForm.MAP | CellForm.SET:
            all_elements = split(cell_column, cells)
            stamps = _cell_times(all_elements.offsets, times, expiries, as_of, cell_column)
            return {cell_column.cell: pack_elements_array(cell_column, all_elements, stamps, no_elements(rows), np.zeros(rows, np.int64))}
        case unknown:
            assert_never(unknown)


def _encode_row_fields(cell_column: CellColumn, cells: Cells, times: Array, expiries: Array, as_of: int) -> dict[str, Array]:
    count, rows = len(cell_column.kind.args), len(cells)
    there = cells.sizes >= 0
    bounds = np.concatenate([[0], np.cumsum(there * count)]).astype(np.int64)
    stamps = _cell_times(bounds, times, expiries, as_of, cell_column)
    made: dict[str, Array] = {}
    for index, part in enumerate(split_tuples(cells, count)):
        own = _uniform_times(rows, 0)
        for to, of in zip(own, stamps, strict=True):
            to[there] = of[index::count]
        made[cell_column.field(index)] = pack_atomic(cell_column.kind.args[index], part, np.zeros(rows, np.uint8), own)
    return made


def _list_snapshot(cell_column: CellColumn, bounds: Numbers, values: Cells, stamps: CellTimes, as_of: int) -> Array:
    """Return lists as of a time: the time, and their cells in order."""
    check_elements(cell_column.kind.args[0], bounds, values)
    cells = pack_atomic(cell_column.kind.args[0], values, np.zeros(len(values), np.uint8), stamps)
    made = pa.list_(pa.field("item", cells.type, nullable=False))
    rows = len(bounds) - 1
    lists = pa.Array.from_buffers(made, rows, [None, pa.py_buffer(bounds.astype(np.int32))], children=[cells])
    return struct_array([pa.array([time_bytes(as_of)] * rows, pa.binary()), lists])


def _cell_times(bounds: Numbers, times: Array, expiries: Array, as_of: int, cell_column: CellColumn) -> CellTimes:
    """Return times and expiries of elements; row i has those from bounds[i] to bounds[i + 1]."""
    counts = np.diff(bounds)
    when = _flat(times, counts, as_of, cell_column)
    until = _flat(expiries, counts, 0, cell_column)
    # The TTL is unknown; it only resolves conflicts between equal values.
    return CellTimes(when, until, np.where(until > 0, np.maximum(until - when // _MICROS, 0), 0))


def _flat(lists: Array, counts: Numbers, default: int, cell_column: CellColumn) -> Numbers:
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy().astype(np.int64)
    known = (lengths >= 0) & (counts > 0)
    if (lengths[known] != counts[known]).any():
        raise DefiniteError(
            f"column {cell_column.column.name} has not as many write times as cells",
            place=f"column {cell_column.column.name}",
            hint="this is a defect of the source; please report it",
        )
    made = np.full(int(counts.sum()), default, np.int64)
    made[np.repeat(known, counts)] = pc.fill_null(lists.filter(pa.array(known)).flatten(), default).to_numpy()
    return made


def _rows_of(batch: pa.RecordBatch, name: str, chosen: Rows, block: RowBlock) -> Array:
    column: Any = batch.column(name) if name in batch.schema.names else pa.nulls(block.rows.num_rows, pa.list_(pa.int64()))
    return column if len(chosen) == block.rows.num_rows else column.take(pa.array(chosen))


def _uniform_times(rows: int, micros: int) -> CellTimes:
    return CellTimes(np.full(rows, micros, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64))
