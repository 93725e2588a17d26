"""Encodes log rows as batches of cells, without Python code per row.

A log row is a write of cells (operations 1 and 2; without clustering columns it writes static cells), or a tombstone of a row, a partition
or a range, which takes two rows. Images are skipped. An unknown operation raises before anything is written. All cells of a log row have
its time; a tombstone of a whole collection counts one microsecond less. That is also correct for a DELETE of the column, which the log
shows one microsecond late.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.blocks import BatchPosition, LogBlock, fixed_bytes
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections
from headrace.cql.log import STREAM, TIME, TTL, Operation, deleted, deleted_elements
from headrace.cql.tables import ColumnRole
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.batches import BlockColumns, CellBatch, damaged_value, key_arrays
from headrace.sinks.clickhouse.cells.key_order import Array, order_keys, range_keys
from headrace.sinks.clickhouse.cells.packed_columns import (
    CellTimes,
    Marks,
    Numbers,
    fields,
    marker_cells,
    no_elements,
    pack_atomic,
    pack_elements_array,
    split,
    tombstones,
)
from headrace.sinks.clickhouse.cells.storage import MARKER, PART_DELETED, RANGES, ROW_DELETED, CellColumn, CellForm, CellStorage
from headrace.sinks.clickhouse.cells.typed_arrays import map_array

_WRITES: Final = (Operation.UPDATE, Operation.INSERT)
_ROW_DELETES: Final = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_PARTITION_DELETES: Final = (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE)
_STARTS: Final = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_ENDS: Final = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)
_KNOWN: Final = tuple(int(operation) for operation in Operation)
_MICROS: Final = 1_000_000
_CLOSE_S: Final = 5
"""A log row that was written this close to its own time counts as written at that time."""


class LogCellEncoder:
    """Encodes the log of one table; built once per table definition."""

    def __init__(self, storage: CellStorage) -> None:
        self._storage, self._table = storage, storage.table

    def encode(self, block: LogBlock) -> list[tuple[CellBatch, bool]]:
        """Return batches, each with a flag: true for the rows table, false for the partitions table.

        Tombstones of partitions come first: a reader in between may miss an old row, but never sees a deleted one.
        """
        rows, partitions = self._encode(block)
        return [(batch, of_rows) for batch, of_rows in ((partitions, False), (rows, True)) if batch is not None]

    def _encode(self, block: LogBlock) -> tuple[CellBatch | None, CellBatch | None]:
        operations = self._operations(block)
        stamps = _cell_times(block)
        is_write = np.isin(operations, _WRITES)
        if not self._storage.is_clustered:
            gone = np.isin(operations, (*_ROW_DELETES, *_PARTITION_DELETES))
            self._refuse(block, np.isin(operations, (*_STARTS, *_ENDS)), "is of a range, and the table has no clustering columns")
            return self._rows(block, np.flatnonzero(is_write | gone), operations, stamps, gone), None
        first = Cells.of(block.rows.column(self._table.clustering[0].name))
        is_static = is_write & (first.sizes < 0)
        gone = np.isin(operations, _ROW_DELETES)
        rows = self._rows(block, np.flatnonzero(is_write & ~is_static | gone), operations, stamps, gone)
        return rows, self._partitions(block, np.flatnonzero(is_static), operations, stamps)

    def _operations(self, block: LogBlock) -> npt.NDArray[np.int8]:
        operations = block.operations
        self._refuse(block, np.isin(operations, _KNOWN, invert=True), "is not known")
        return operations

    def _refuse(self, block: LogBlock, wrong: npt.NDArray[np.bool_], why: str) -> None:
        places = np.flatnonzero(wrong)
        if len(places):
            row = int(places[0])
            place = str(BatchPosition.of_row(block.subject, block.rows, row))
            raise DefiniteError(
                f"operation {int(block.operations[row])} {why}; nothing of its block is written",
                place=place,
                hint="use a newer Headrace, which knows it; or leave the table out",
                event=place,
            )

    def _rows(
        self,
        block: LogBlock,
        chosen: npt.NDArray[np.intp],
        operations: npt.NDArray[np.int8],
        stamps: CellTimes,
        gone: npt.NDArray[np.bool_],
    ) -> CellBatch | None:
        if not len(chosen):
            return None
        read = BlockColumns(block.rows, chosen, block.subject)
        own = stamps.take(chosen)
        made = key_arrays(self._storage, read, ColumnRole.PARTITION, ColumnRole.CLUSTERING)
        is_insert = (operations[chosen] == Operation.INSERT).astype(np.uint8)
        made[MARKER] = marker_cells(is_insert, np.zeros(len(chosen), np.uint8), own)
        made[ROW_DELETED] = tombstones(own.times, gone[chosen].astype(np.uint8))
        for cell_column in self._storage.regular:
            made |= encode_log_column(cell_column, read, own)
        return CellBatch(made)

    def _partitions(
        self, block: LogBlock, statics: npt.NDArray[np.intp], operations: npt.NDArray[np.int8], stamps: CellTimes
    ) -> CellBatch | None:
        """Encode static cells, partition deletions and range deletions, in this order."""
        starts = np.flatnonzero(np.isin(operations, _STARTS))
        self._check_pairs(block, operations)
        gone = np.flatnonzero(np.isin(operations, _PARTITION_DELETES))
        chosen = np.concatenate([statics, gone, starts])
        if not len(chosen):
            return None
        read, own = BlockColumns(block.rows, chosen, block.subject), stamps.take(chosen)
        made = key_arrays(self._storage, read, ColumnRole.PARTITION)
        is_gone = np.zeros(len(chosen), np.uint8)
        is_gone[len(statics) : len(statics) + len(gone)] = 1
        made[PART_DELETED] = tombstones(own.times, is_gone)
        made[RANGES] = self._ranges(block, starts, operations, own.times, len(chosen))
        for cell_column in self._storage.static:
            made |= encode_log_column(cell_column, read, own)
        return CellBatch(made)

    def _check_pairs(self, block: LogBlock, operations: npt.NDArray[np.int8]) -> None:
        """Check that a range's end is the row after its start, with the same time and stream."""
        is_start, is_end = np.isin(operations, _STARTS), np.isin(operations, _ENDS)
        follows = np.zeros(len(operations), bool)
        if len(operations) > 1:
            times = fixed_bytes(block.rows.column(TIME), 16)
            same = (times[1:] == times[:-1]).all(axis=1)
            streams = block.rows.column(STREAM)
            same &= pc.equal(streams.slice(1), streams.slice(0, len(streams) - 1)).to_numpy(zero_copy_only=False)
            follows[1:] = is_start[:-1] & same
        self._refuse(block, is_end & ~follows, "ends a range that does not begin in the row before it")
        self._refuse(block, is_start & ~np.append(is_end[1:] & follows[1:], False), "begins a range that does not end in the row after it")

    def _ranges(self, block: LogBlock, starts: npt.NDArray[np.intp], operations: npt.NDArray[np.int8], times: Numbers, rows: int) -> Array:
        before = rows - len(starts)
        firsts, seconds = (
            order_keys(self._table.clustering, BlockColumns(block.rows, at, block.subject))[1] for at in (starts, starts + 1)
        )
        after_first = pa.array(operations[starts] == Operation.RANGE_START_EXCLUSIVE)
        after_second = pa.array(operations[starts + 1] == Operation.RANGE_END_INCLUSIVE)
        offsets = np.concatenate([np.zeros(before, np.int32), np.arange(len(starts) + 1, dtype=np.int32)])
        there = tombstones(times[before:].copy(), np.ones(len(starts), np.uint8))
        return map_array(offsets, range_keys(firsts, after_first, seconds, after_second), there)


def encode_log_column(cell_column: CellColumn, read: BlockColumns, stamps: CellTimes) -> dict[str, Array]:
    """Return the arrays of a column from the log."""
    name = cell_column.column.name
    try:
        if cell_column.form is CellForm.ATOMIC:
            return {cell_column.cell: pack_atomic(cell_column.kind, read(name), _flags(read, deleted(name)), stamps)}
        covered = tombstones(stamps.times - 1, _flags(read, deleted(name)))
        unkept = read.is_null(deleted_elements(name))
        gone = no_elements(len(read)) if unkept else split_collections(read(deleted_elements(name)))
        if cell_column.form is CellForm.FIELDS:
            made = fields(cell_column, read(name), gone, stamps)
            return {cell_column.all: covered, **{cell_column.field(index): array for index, array in enumerate(made)}}
        there = split(cell_column, read(name))
        return {
            cell_column.cell: pack_elements_array(cell_column, there, stamps.repeat(there.offsets), gone, stamps.times),
            cell_column.all: covered,
        }
    except MalformedValue as damage:
        raise damaged_value(damage, name, read.place(damage.row)) from None


def _flags(read: BlockColumns, name: str) -> Marks:
    """Return where a boolean column is true."""
    if read.is_null(name):
        return np.zeros(len(read), np.uint8)
    cells = read(name)
    there = cells.sizes == 1
    marks = np.zeros(len(cells), np.uint8)
    marks[there] = cells.data[cells.starts[there]] != 0
    return marks


def _cell_times(block: LogBlock) -> CellTimes:
    """Return write time and expiry of each log row's cells."""
    times = block.times
    rows = len(times)
    ttls, expiries = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    column = block.rows.column(TTL)
    if column.null_count < rows:
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        ttls[there] = fixed_bytes(column.drop_null(), 8).copy().view(">i8")[:, 0]
        seconds = times // _MICROS
        known = block.written.is_valid().to_numpy(zero_copy_only=False)
        clock = block.written.fill_null(0).to_numpy()
        seconds = np.where(known & (np.abs(clock - seconds) > _CLOSE_S), clock, seconds)
        expiring = ttls > 0
        expiries[expiring] = np.maximum(seconds[expiring] + ttls[expiring], 1)
    return CellTimes(times, expiries, ttls)
