"""Reads rows again where the log refers to what a snapshot could not know.

A SELECT returns neither the keys of a list's elements nor whether a row has a marker. So in a table that started with a snapshot, some log
rows are not sufficient: one that names a list element by a key from before the snapshot (which element is it?), and one that deletes cells
(does the row still exist without them?). Those rows are read again after the log row. Its window is older than the confidence time, so the
read sees all that the log row did. The result counts as of its own time: later ones win.

For other rows the check costs a few operations on whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.blocks import LogBlock, RowBlock, fixed_bytes
from headrace.cql.decode.arrow_arrays import Cells, split_collections
from headrace.cql.decode.pages import RawValues, as_batch, read_pages
from headrace.cql.log import Operation, deleted, deleted_elements
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.timeuuid import bulk_micros
from headrace.model.json_record import JsonRecord
from headrace.sources.scylla.snapshot.base_rows import RowQuery, WriteTimeColumns
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.reader import server_time
from headrace.sources.scylla.snapshot.table_probe import probe_write_times

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_MIRROR_US: Final = 1_262_304_000_000_000
"""2010-01-01. The key of a prepended element has a time as long before this as now is after it."""
_DAY_US: Final = 86_400_000_000
_KEYS_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class LogStartTimes(JsonRecord):
    """The snapshot times of all of a table's chunks together, in microseconds since 1970."""

    first: int
    """Every write up to this is in every chunk."""
    last: int | None = None
    """No chunk has anything that was written after this; None while chunks are still read."""


def keys_to_reread(block: LogBlock, begun: LogStartTimes, telling: WriteTimeColumns) -> pa.RecordBatch | None:
    """Return the distinct keys of the rows to read again; null clustering columns stand for the static columns of a partition."""
    needed = needs_reread(block, begun, telling)
    if not needed.any():
        return None
    names = [column.name for column in (*block.table.partition_key, *block.table.clustering)]
    rows = pa.Table.from_batches([block.rows.select(names).filter(pa.array(needed))])
    found = rows.group_by(names, use_threads=False).aggregate([]).combine_chunks().to_batches()
    return found[0]


def needs_reread(block: LogBlock, begun: LogStartTimes, telling: WriteTimeColumns) -> Mask:
    table, rows, times, operations = block.table, block.rows, block.times, block.operations
    found = np.zeros(rows.num_rows, dtype=bool)
    for column in table.cells:
        if column.type.name == "list" and not column.type.is_atomic:
            found |= _names_old_key(rows, column, begun if column.name in telling.columns else LogStartTimes(begun.first), times)
    found |= _only_deletes(table, rows) & (operations == Operation.UPDATE)
    # Writes up to `first` are in the rows already. Images and deletes of whole rows are complete.
    # (A row may be written later than its timestamp.)
    written = np.asarray(block.written.fill_null(0).to_numpy()) * 1_000_000
    found &= (np.maximum(times, written) > begun.first) & np.isin(operations, (Operation.UPDATE, Operation.INSERT))
    return found


def _names_old_key(rows: pa.RecordBatch, column: CqlColumn, begun: LogStartTimes, times: Numbers) -> Mask:
    """Return the log rows that name a list element that may be from the snapshot."""
    added, removed = rows.column(column.name), rows.column(deleted_elements(column.name))
    if begun.last is None:
        # The snapshot may contain any element. (Permanently so if the write times of elements are unknown.)
        return _exists(added) | _exists(removed)
    found = np.zeros(rows.num_rows, dtype=bool)
    for cells, parts in ((added, 2), (removed, 1)):
        if cells.null_count == len(cells):
            continue
        elements = split_collections(Cells.of(cells), parts)
        row_of = np.repeat(np.arange(rows.num_rows), np.diff(elements.offsets))
        keys = elements.parts[0]
        made = bulk_micros(fixed_bytes(keys.binary(), 16))
        found[row_of[~_is_new(made, begun.last, times[row_of])]] = True
    return found


def _is_new(made: Numbers, last: int, now: Numbers) -> Mask:
    """Return whether a key was created after the snapshot, by its time; that of a prepended element lies before 2010, mirrored.

    A time that no clock can have proves nothing: the key may be an old one.
    """
    mirrored = 2 * _MIRROR_US - made
    until = now + _DAY_US
    return ((made > last) & (made <= until)) | ((mirrored > last) & (mirrored <= until))


def _only_deletes(table: CqlTable, rows: pa.RecordBatch) -> Mask:
    """Return the log rows that delete cells of a row and leave no cell that is certainly live."""
    takes, gives = np.zeros(rows.num_rows, dtype=bool), np.zeros(rows.num_rows, dtype=bool)
    for column in table.regular:
        value = rows.column(column.name)
        takes |= _exists(rows.column(deleted(column.name)))
        if column.type.is_atomic:
            gives |= _exists(value)
        else:
            takes |= _exists(rows.column(deleted_elements(column.name)))
            # A user type lists all its fields, at least as nulls of four bytes; other types are empty if nothing was added.
            nothing = 4 * len(column.type.fields) if column.type.name == "udt" else 4
            gives |= Cells.of(value).sizes > nothing
    return takes & ~gives


def _exists(column: Array) -> Mask:
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False))


def _with_partitions(table: CqlTable, keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return the keys of the rows, and once the key of each partition, with null clustering columns."""
    names = [column.name for column in table.partition_key]
    rows = keys.filter(pa.array(_exists(keys.column(table.clustering[0].name))))
    partitions = pa.Table.from_batches([keys]).group_by(names, use_threads=False).aggregate([])
    for column in table.clustering:
        partitions = partitions.append_column(column.name, pa.nulls(partitions.num_rows, pa.binary()))
    [found] = pa.concat_tables([pa.Table.from_batches([rows]), partitions.select(keys.schema.names)]).combine_chunks().to_batches()
    return found


@dataclass(frozen=True, slots=True)
class RowRechecker:
    session: CqlSession
    options: ScyllaOptions

    def after(self, block: LogBlock, begun: LogStartTimes) -> Iterator[RowBlock]:
        """Yield the rows that must be read again after a block of the log."""
        telling = probe_write_times(self.session, block.table)
        keys = keys_to_reread(block, begun, telling)
        if keys is not None:
            yield from self.read(block.table, telling, keys)

    def read(self, table: CqlTable, telling: WriteTimeColumns, keys: pa.RecordBatch) -> Iterator[RowBlock]:
        alone = np.zeros(keys.num_rows, dtype=bool)
        if table.clustering:
            alone = np.logical_and.reduce([~_exists(keys.column(column.name)) for column in table.clustering])
        for statics in (False, True):
            requested = keys.filter(pa.array(alone if statics else ~alone))
            for start in range(0, requested.num_rows, _KEYS_AT_ONCE):
                yield self._read(RowQuery(table, telling, statics), requested.slice(start, _KEYS_AT_ONCE))

    def read_repairs(self, table: CqlTable, telling: WriteTimeColumns, keys: pa.RecordBatch) -> Iterator[RowBlock]:
        """Yield the rows with these keys, and the static columns of their partitions, to replace those of the sink.

        Static columns are read by partition: the rows of a partition do not say that all of them are null.
        """
        wanted = _with_partitions(table, keys) if table.static else keys
        for block in self.read(table, telling, wanted):
            yield replace(block, replaces=True)

    def _read(self, query: RowQuery, keys: pa.RecordBatch) -> RowBlock:
        as_of = server_time(self.session) - self.options.confidence_us
        columns = [keys.column(column.name).to_pylist() for column in query.keys]
        requests = [(query.by_key, RawValues(values)) for values in zip(*columns, strict=True)]
        pages = read_pages(self.session, requests, concurrency=self.options.concurrency)
        found = [page for page in pages if page.rows.count]
        missing = np.ones(keys.num_rows, dtype=bool)
        missing[[page.request for page in found]] = False
        gone = keys.filter(pa.array(missing))
        batches = [as_batch([page.rows for page in found], str(self.session.address))] if found else []
        # A partition without rows has no static values; missing rows differ from rows without cells.
        block = query.block([*batches, query.bare(gone)] if query.statics else batches, as_of, again=True)
        return block if query.statics else replace(block, gone=gone)
