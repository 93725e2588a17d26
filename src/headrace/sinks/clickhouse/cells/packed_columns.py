"""Packs columns of cells as Arrow arrays: values and deletions with their times."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.cql.decode.arrow_arrays import Cells, Elements, MalformedValue, split_collections, split_tuples
from headrace.cql.tables import CqlColumn
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.cell_kernels import (
    DELETED,
    EXPIRING,
    HEAD,
    LONG_HEAD,
    mark_fields,
    pack_cells,
    pack_elements,
    pack_tombstones,
)
from headrace.sinks.clickhouse.cells.key_order import Array, binary_array, order_column
from headrace.sinks.clickhouse.cells.storage import CellColumn, CellForm
from headrace.sinks.clickhouse.cells.typed_arrays import map_array, struct_array, typed_array
from headrace.sinks.clickhouse.cells.types import WIDTHS, is_bytes, is_nullable, is_plain

Numbers = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint8]


class CellTimes(NamedTuple):
    """Write and expiry times of cells, by row or by element."""

    times: Numbers
    """Microseconds."""
    expiries: Numbers
    """Seconds; 0: does not expire."""
    ttls: Numbers

    def take(self, rows: npt.NDArray[Any]) -> CellTimes:
        return CellTimes(*(np.ascontiguousarray(part[rows]) for part in self))

    def repeat(self, bounds: Numbers) -> CellTimes:
        """Return the rows' times, repeated for the elements of each row."""
        counts = np.diff(bounds)
        return CellTimes(*(np.repeat(part, counts) for part in self))


def no_elements(rows: int) -> Elements:
    nothing = np.empty(0, np.int64)
    return Elements(np.zeros(rows + 1, np.int64), (Cells(np.empty(0, np.uint8), nothing, nothing),))


def pack_atomic(kind: CqlType, cells: Cells, deleted: Marks, stamps: CellTimes) -> Array:
    """Return a column of single cells."""
    check_width(kind, cells)
    out = np.empty(int(np.maximum(cells.sizes, 0).sum()) + len(cells) * LONG_HEAD, np.uint8)
    offsets = np.empty(len(cells) + 1, np.int32)
    pack_cells(*cells, deleted, *stamps, out, offsets)
    made = binary_array(out, offsets)
    return made if is_plain(kind) else _with_values(made, kind)


def pack_elements_array(cell_column: CellColumn, there: Elements, stamps: CellTimes, gone: Elements, gone_times: Numbers) -> Array:
    """Return a column of elements by key; `stamps` are by element, `gone_times` by row."""
    keys, values = there.parts[0], there.parts[1] if len(there.parts) > 1 else None
    by_time = cell_column.key_kind.name == "timeuuid"
    check_elements(cell_column.key_kind, there.offsets, keys)
    check_elements(cell_column.key_kind, gone.offsets, gone.parts[0])
    if values is not None and cell_column.element_kind is not None:
        check_elements(cell_column.element_kind, there.offsets, values)
    count = len(keys) + len(gone.parts[0])
    held = 0 if values is None else int(values.sizes.sum())
    packed = np.empty(int(keys.sizes.sum() + gone.parts[0].sizes.sum()) + 8, np.uint8)
    out = np.empty(held + count * LONG_HEAD + 8, np.uint8)
    rows = np.empty(len(there.offsets), np.int32)
    key_offsets, cell_offsets = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    nothing = np.empty(0, np.int64)
    starts, sizes = (nothing, nothing) if values is None else (values.starts, values.sizes)
    pack_elements(
        there.offsets, *keys, starts, sizes, *stamps, gone.offsets, *gone.parts[0], gone_times, by_time,
        rows, packed, key_offsets, out, cell_offsets,
    )  # fmt: skip
    names, cells_made = binary_array(packed, key_offsets), binary_array(out, cell_offsets)
    parts = []
    if not is_plain(cell_column.key_kind):
        parts.append(typed_array(cell_column.key_kind, Cells.of(names), nullable=False))
        names = order_column(CqlColumn(cell_column.column.name, cell_column.key_kind), Cells.of(names))
    if cell_column.element_kind is not None and not is_plain(cell_column.element_kind):
        parts.append(typed_array(cell_column.element_kind, _values_of(cells_made)))
    return map_array(rows, names, struct_array([cells_made, *parts]) if parts else cells_made)


def fields(cell_column: CellColumn, cells: Cells, gone: Elements, stamps: CellTimes) -> list[Array]:
    """Return one column for each field of a user type."""
    count, rows = len(cell_column.kind.args), len(cells)
    marks = np.zeros(count * rows, np.uint8)
    _check_indices(gone, count)
    mark_fields(*gone.parts[0], gone.offsets, count, marks)
    parts = split_tuples(cells, count)
    return [
        pack_atomic(kind, parts[index], marks[index * rows : (index + 1) * rows], stamps)
        for index, kind in enumerate(cell_column.kind.args)
    ]


def split(cell_column: CellColumn, cells: Cells) -> Elements:
    """Split a collection of the log into elements; a list is a map there."""
    return split_collections(cells, 1 if cell_column.form is CellForm.SET else 2)


def tombstones(times: Numbers, there: Marks) -> Array:
    """Return tombstones that cover cells."""
    out, offsets = np.empty(int(np.count_nonzero(there)) * HEAD + 8, np.uint8), np.empty(len(times) + 1, np.int32)
    pack_tombstones(times, there, out, offsets)
    return binary_array(out, offsets)


def marker_cells(there: Marks, deleted: Marks, stamps: CellTimes) -> Array:
    """Return row markers: cells without a value."""
    rows = len(there)
    cells = Cells(np.empty(0, np.uint8), np.zeros(rows, np.int64), there.astype(np.int64) - 1)
    return pack_atomic(CqlType("blob"), cells, deleted, stamps)


def time_bytes(micros: int) -> bytes:
    """Return the time as in a cell's header."""
    return (micros + (1 << 63)).to_bytes(8, "big")


def check_width(kind: CqlType, cells: Cells) -> None:
    """Raise `MalformedValue` for a value whose size is not that of its type."""
    width = WIDTHS.get(kind.name)
    if width is None:
        return
    wrong = np.flatnonzero((cells.sizes > 0) & (cells.sizes != width))
    if len(wrong):
        raise MalformedValue(int(wrong[0]), f"it has {int(cells.sizes[wrong[0]])} bytes instead of {width}")


def check_elements(kind: CqlType, bounds: Numbers, cells: Cells) -> None:
    """Raise `MalformedValue` for an element that is null, has a wrong size, or is empty where ClickHouse has no NULL for it."""
    width, least = WIDTHS.get(kind.name), 1 if is_nullable(kind) and not is_bytes(kind) else 0
    wrong = cells.sizes < least
    if width is not None:
        wrong |= cells.sizes != width
    found = np.flatnonzero(wrong)
    if len(found):
        size = int(cells.sizes[found[0]])
        empty = "it holds an empty value, for which ClickHouse has none" if size == 0 else f"an element has {size} bytes instead of {width}"
        raise MalformedValue(int(np.searchsorted(bounds, found[0], side="right")) - 1, "an element is null" if size < 0 else empty)


def _check_indices(gone: Elements, count: int) -> None:
    """Raise `MalformedValue` for a deleted field that the type does not have."""
    keys = gone.parts[0]
    check_elements(CqlType("smallint"), gone.offsets, keys)
    indices = keys.data[keys.starts].astype(np.int64) << 8 | keys.data[keys.starts + 1] if len(keys) else keys.starts
    strange = np.flatnonzero(indices >= count)
    if len(strange):
        row = int(np.searchsorted(gone.offsets, strange[0], side="right")) - 1
        raise MalformedValue(row, f"its field {int(indices[strange[0]])} was deleted, and its type has {count}")


def _with_values(cells: Array, kind: CqlType) -> Array:
    """Return cells together with their decoded values."""
    return struct_array([cells, typed_array(kind, _values_of(cells))])


def _values_of(cells: Array) -> Cells:
    """Return the serialised values in packed cells."""
    packed = Cells.of(cells)
    ranks = np.full(len(packed), DELETED, np.uint8)
    some = packed.sizes > 0
    ranks[some] = packed.data[packed.starts[some] + HEAD - 1]
    heads = np.where(ranks == EXPIRING, LONG_HEAD, HEAD)
    sizes = np.where(ranks == DELETED, -1, packed.sizes - heads)
    return Cells(packed.data, np.where(some, packed.starts + heads, 0), sizes)
