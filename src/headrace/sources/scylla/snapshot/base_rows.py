"""Queries base rows with the write times and expiries of their cells, and converts the pages.

A cell has its true timestamp, so it merges with the log's cells in any order. A SELECT does not return the keys of a list's elements, nor
whether a row has a marker (see `row_recheck`). Where a server does not return the times of a collection's elements (`WriteTimeColumns`),
the time of the read is used.

Static columns come with every row of their partition; here they have rows of their own, with null clustering columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.blocks import RowBlock
from headrace.cql.decode.arrow_arrays import Cells, split_collections, to_arrow
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Mask = npt.NDArray[np.bool_]
Columns = dict[str, Array]

TIMES: Final = pa.list_(pa.int64())
_BIGINT, _INT, _TIMESTAMP = CqlType("bigint"), CqlType("int"), CqlType("timestamp")


@dataclass(frozen=True, slots=True)
class WriteTimeColumns:
    """The columns whose write times and expiries a server returns; atomic columns always have them."""

    columns: frozenset[str]

    def silent(self, table: CqlTable) -> list[str]:
        """Return the columns of which only values are known."""
        return [column.name for column in table.cells if column.name not in self.columns]


@dataclass(frozen=True, slots=True)
class RowQuery:
    """The SELECT of some columns of a table, and the conversion of its result by column index."""

    table: CqlTable
    telling: WriteTimeColumns
    statics: bool = False
    """Whether only static columns are queried."""

    @property
    def keys(self) -> tuple[CqlColumn, ...]:
        return self.table.partition_key if self.statics else self.table.partition_key + self.table.clustering

    @property
    def cells(self) -> tuple[CqlColumn, ...]:
        return self.table.static if self.statics else self.table.cells

    @property
    def timed(self) -> tuple[CqlColumn, ...]:
        return tuple(column for column in self.cells if column.name in self.telling.columns)

    @property
    def leaves_out(self) -> bool:
        """Whether only the log provides the elements."""
        return bool(self._lists)

    @property
    def _lists(self) -> list[CqlColumn]:
        return [column for column in self.timed if column.type.name == "list" and not column.type.is_atomic]

    @property
    def token(self) -> str:
        return f"token({', '.join(quoted(column.name) for column in self.table.partition_key)})"

    @property
    def text(self) -> str:
        """SELECT … FROM …, without conditions."""
        names = [quoted(column.name) for column in (*self.keys, *self.cells)]
        times = [f"{what}({quoted(column.name)})" for column in self.timed for what in ("WRITETIME", "TTL")]
        return f"SELECT {', '.join([*names, *times, self.token, 'toTimestamp(now())'])} FROM {table_name(self.table.name)}"

    @property
    def by_range(self) -> str:
        return f"{self.text} WHERE {self.token} > ? AND {self.token} <= ?"

    @property
    def by_key(self) -> str:
        """The query of one row; for statics, of any row of one partition."""
        return self.of_partition if self.statics else f"{self.text} WHERE {_equal(self.keys)}"

    @property
    def of_partition(self) -> str:
        """The query of the first row of one partition."""
        return f"{self.text} WHERE {_equal(self.table.partition_key)} LIMIT 1"

    def tokens(self, page: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return np.asarray(to_arrow(_BIGINT, page.column(page.num_columns - 2)).to_numpy())

    def bare(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return a page with these keys and no values."""
        nothing = pa.nulls(keys.num_rows, pa.binary())
        columns = [keys.column(column.name) for column in self.keys]
        return pa.RecordBatch.from_arrays([*columns, *[nothing] * (self._width - len(columns))], names=[""] * self._width)

    @property
    def _width(self) -> int:
        return len(self.keys) + len(self.cells) + 2 * len(self.timed) + 2

    def block(self, pages: Iterable[pa.RecordBatch], as_of: int, *, again: bool = False) -> RowBlock:
        """Convert pages of the result to rows and their times."""
        page = joined(pages, self._width)
        width = len(self.keys) + len(self.cells)
        now_s = np.asarray(to_arrow(_TIMESTAMP, page.column(page.num_columns - 1)).cast(pa.int64()).fill_null(0).to_numpy()) // 1000
        values = {column.name: page.column(place) for place, column in enumerate((*self.keys, *self.cells))}
        times, expiries = {}, {}
        for number, column in enumerate(self.timed):
            written, left = page.column(width + 2 * number), page.column(width + 2 * number + 1)
            times[column.name] = _lists(column, written, _BIGINT)
            expiries[column.name] = _expiries(_lists(column, left, _INT), now_s)
        nothing = pa.nulls(page.num_rows, TIMES)
        for column in self.table.columns:
            values.setdefault(column.name, pa.nulls(page.num_rows, pa.binary()))
            times.setdefault(column.name, nothing)
            expiries.setdefault(column.name, nothing)
        unsure = self._remove_later_elements(values, times, expiries, as_of)
        order = [column.name for column in self.table.columns]
        cells = [column.name for column in self.table.cells]
        block = RowBlock(
            self.table,
            pa.RecordBatch.from_arrays([values[name] for name in order], names=order),
            pa.RecordBatch.from_arrays([times[name] for name in cells], schema=pa.schema([(name, TIMES) for name in cells])),
            pa.RecordBatch.from_arrays([expiries[name] for name in cells], schema=pa.schema([(name, TIMES) for name in cells])),
            as_of,
            again,
        )
        if self.statics:
            return block
        return _statics_apart(block, unsure) if self.table.static else _filtered(block, ~unsure)

    def _remove_later_elements(self, values: Columns, times: Columns, expiries: Columns, as_of: int) -> Mask:
        """Remove list elements written after `as_of`: the log has those, with their keys.

        Return which rows lost all their cells by that: the log describes them, and nothing is known of their markers.
        """
        regular = [column.name for column in self.table.regular]
        bare = _all_null(values, regular)
        for column in self._lists:
            _drop_later(column.name, values, times, expiries, as_of)
        return _all_null(values, regular) & ~bare


def joined(pages: Iterable[pa.RecordBatch], width: int) -> pa.RecordBatch:
    """Join pages into one batch of `width` columns, all `binary`."""
    found = list(pages)
    # By index: function columns may share a name.
    columns = [pa.concat_arrays([pa.array([], pa.binary()), *(page.column(place) for page in found)]) for place in range(width)]
    return pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(columns))])


def _lists(column: CqlColumn, raw: Array, kind: CqlType) -> Array:
    """Return a server's times of each cell, as `list<int64>`."""
    if not column.type.is_atomic:
        return to_arrow(CqlType("list", (kind,)), raw, column.name).cast(TIMES)
    numbers = to_arrow(kind, raw, column.name).cast(pa.int64())
    filled = np.concatenate([[0], np.cumsum(np.asarray(numbers.is_valid().to_numpy(zero_copy_only=False)))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(filled), numbers.drop_null(), mask=numbers.is_null())


def _expiries(left: Array, now_s: npt.NDArray[np.int64]) -> Array:
    """Return the expiry of cells from their remaining seconds."""
    if left.null_count == len(left):
        return left.cast(TIMES)
    counts = np.diff(np.asarray(left.offsets.to_numpy()))
    seconds = left.values.slice(left.offsets[0].as_py(), int(counts.sum()))
    ends = pc.add(seconds, pa.array(np.repeat(now_s, counts)))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), ends, mask=left.is_null())


def _drop_later(name: str, values: Columns, times: Columns, expiries: Columns, as_of: int) -> None:
    written = times[name]
    late = np.asarray(pc.fill_null(pc.greater(written.values, as_of), False).to_numpy(zero_copy_only=False))
    if not late.any():
        return
    cells = Cells.of(values[name])
    elements = split_collections(cells)
    kept = ~late
    counts = np.diff(elements.offsets)
    row_of = np.repeat(np.arange(len(counts)), counts)
    left = np.bincount(row_of[kept], minlength=len(counts)).astype(np.int64)
    heads = left.astype(">i4").view(np.uint8)
    # A list is its count, then each element after its length: pieces of the old bytes and of the new counts, in order.
    part = elements.parts[0]
    starts = np.concatenate([len(part.data) + 4 * np.arange(len(counts)), part.starts[kept] - 4]).astype(np.int64)
    sizes = np.concatenate([np.where(left > 0, 4, 0), np.maximum(part.sizes[kept], 0) + 4]).astype(np.int64)
    order = np.argsort(np.concatenate([np.arange(len(counts)), row_of[kept]]), kind="stable")
    pieces = Cells(np.concatenate([part.data, heads]), starts[order], sizes[order])
    size_of = np.bincount(np.concatenate([np.arange(len(counts)), row_of[kept]]), weights=sizes, minlength=len(counts)).astype(np.int64)
    packed = pieces.binary()
    offsets = np.concatenate([[0], np.cumsum(size_of)]).astype(np.int32)
    gone = np.packbits(left > 0, bitorder="little")
    values[name] = pa.Array.from_buffers(pa.binary(), len(counts), [pa.py_buffer(gone), pa.py_buffer(offsets), packed.buffers()[2]])
    for known in (times, expiries):
        ends = np.concatenate([[0], np.cumsum(left)]).astype(np.int32)
        known[name] = pa.ListArray.from_arrays(pa.array(ends), known[name].values.filter(pa.array(kept)), mask=pa.array(left == 0))


def _filtered(block: RowBlock, mask: Mask) -> RowBlock:
    if mask.all():
        return block
    rows, times, expiries = (batch.filter(pa.array(mask)) for batch in (block.rows, block.times, block.expiries))
    return RowBlock(block.table, rows, times, expiries, block.as_of, block.again)


def _statics_apart(block: RowBlock, unsure: Mask) -> RowBlock:
    """Move static columns to rows of their own, one per partition that has any, and remove unsure rows."""
    table, rows = block.table, block.rows
    alone = np.logical_and.reduce([_is_null(rows.column(column.name)) for column in table.clustering])
    first = np.ones(rows.num_rows, dtype=bool)
    first[1:] = np.logical_or.reduce([_differs(rows.column(column.name)) for column in table.partition_key])
    first &= ~np.logical_and.reduce([_is_null(rows.column(column.name)) for column in table.static])
    ordinary = ~alone & ~unsure

    def parts(batch: pa.RecordBatch) -> pa.RecordBatch:
        of_rows = _only(batch, table, {ColumnRole.PARTITION, ColumnRole.CLUSTERING, ColumnRole.REGULAR}, ordinary)
        of_partitions = _only(batch, table, {ColumnRole.PARTITION, ColumnRole.STATIC}, first)
        found = pa.Table.from_batches([of_rows, of_partitions]).combine_chunks().to_batches()
        return found[0] if found else batch.slice(0, 0)

    return RowBlock(table, parts(rows), parts(block.times), parts(block.expiries), block.as_of, block.again)


def _only(batch: pa.RecordBatch, table: CqlTable, roles: set[ColumnRole], mask: Mask) -> pa.RecordBatch:
    """Return the rows of a mask, with nulls in the columns of other roles."""
    kept = batch.filter(pa.array(mask))
    columns = [
        kept.column(name) if table.column(name).role in roles else pa.nulls(kept.num_rows, kept.column(name).type)
        for name in batch.schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _equal(columns: Iterable[CqlColumn]) -> str:
    return " AND ".join(f"{quoted(column.name)} = ?" for column in columns)


def _all_null(values: Columns, names: Sequence[str]) -> Mask:
    rows = len(next(iter(values.values())))
    return np.logical_and.reduce([_is_null(values[name]) for name in names]) if names else np.ones(rows, dtype=bool)


def _is_null(column: Array) -> Mask:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _differs(column: Array) -> Mask:
    """Return for each row from the second on whether its value differs from the previous one."""
    return np.asarray(pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False))
