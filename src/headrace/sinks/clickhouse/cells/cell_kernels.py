"""Compiled loops that write cells: a header that sorts like the server resolves conflicts, then the serialised value.

The format of a cell is defined in `storage`. Callers allocate 21 header bytes for each cell, and room for all values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import byteswap, copy_run, load_be, store_int8
from headrace.kernels.pointers import Bytes, Pointer, compiled, load_word, pointer_to, store_word

Numbers = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]
HEAD, LONG_HEAD = 9, 21
PLAIN, EXPIRING, DELETED = 0, 1, 2
"""Ranks."""
NO_ERROR = -1
_SIGN = np.uint64(1 << 63)
_HIGH_BITS = np.uint64(0x8080808080808080)
CELLS = "Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1]"
"""The bytes (of a page; read-only), the start of each value, its size."""


@compiled("void(CPointer(uint8), int64, int64)", inlined=True)
def _put_long(out: Pointer, to: int, number: int) -> None:
    """Write eight bytes, most significant first."""
    store_word(out, to, byteswap(np.uint64(number)))


@compiled("int64(CPointer(uint8), int64, int64, int64, int64)", inlined=True)
def _put_head(out: Pointer, to: int, time: int, expiry: int, ttl: int) -> int:
    """Write the header of a live cell and return where its value goes; expiry 0: it does not expire."""
    store_word(out, to, byteswap(np.uint64(time) ^ _SIGN))
    if expiry == 0:
        store_int8(out, to + 8, PLAIN)
        return to + HEAD
    store_int8(out, to + 8, EXPIRING)
    _put_long(out, to + 9, expiry)
    turned = 0xFFFFFFFF - (ttl & 0xFFFFFFFF)
    for place in range(4):
        store_int8(out, to + 17 + place, turned >> (24 - 8 * place) & 0xFF)
    return to + LONG_HEAD


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _put_deletion(out: Pointer, to: int, time: int) -> int:
    store_word(out, to, byteswap(np.uint64(time) ^ _SIGN))
    store_int8(out, to + 8, DELETED)
    return to + HEAD


@compiled(f"void({CELLS}, uint8[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int32[::1])")
def pack_cells(
    data: Bytes,
    starts: Numbers,
    sizes: Numbers,
    deleted: Bytes,
    times: Numbers,
    expiries: Numbers,
    ttls: Numbers,
    out: Bytes,
    offsets: Offsets,
) -> None:
    """Write a column of cells: a value if there is one (size >= 0), else a deletion if `deleted`, else nothing."""
    buf, made, limit, room = pointer_to(data), pointer_to(out), len(data), len(out)
    to = 0
    offsets[0] = 0
    for row in range(len(starts)):
        size = sizes[row]
        if size >= 0:
            to = _put_head(made, to, times[row], expiries[row], ttls[row])
            copy_run(buf, starts[row], limit, made, to, room, size)
            to += size
        elif deleted[row]:
            to = _put_deletion(made, to, times[row])
        offsets[row + 1] = to


@compiled("void(CPointer(uint8), int64, CPointer(uint8), int64)", inlined=True)
def put_time_order(buf: Pointer, at: int, out: Pointer, to: int) -> None:
    """Write a timeuuid as sixteen bytes that sort like CQL sorts it."""
    head = byteswap(load_word(buf, at))
    low, middle, high = head >> np.uint64(32), head >> np.uint64(16) & np.uint64(0xFFFF), head & np.uint64(0x0FFF)
    store_word(out, to, byteswap(high << np.uint64(48) | middle << np.uint64(32) | low))
    store_word(out, to + 8, load_word(buf, at + 8) ^ _HIGH_BITS)


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64, boolean)", inlined=True)
def _put_key(buf: Pointer, at: int, size: int, limit: int, out: Pointer, to: int, room: int, by_time: bool) -> int:
    if by_time:
        put_time_order(buf, at, out, to)
    else:
        copy_run(buf, at, limit, out, to, room, size)
    return to + size


@compiled(
    f"void(int64[::1], {CELLS}, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], "
    f"int64[::1], {CELLS}, int64[::1], boolean, int32[::1], uint8[::1], int32[::1], uint8[::1], int32[::1])"
)
def pack_elements(
    bounds: Numbers,
    data: Bytes,
    key_starts: Numbers,
    key_sizes: Numbers,
    value_starts: Numbers,
    value_sizes: Numbers,
    times: Numbers,
    expiries: Numbers,
    ttls: Numbers,
    gone_bounds: Numbers,
    gone_data: Bytes,
    gone_starts: Numbers,
    gone_sizes: Numbers,
    gone_times: Numbers,
    by_time: bool,
    rows: Offsets,
    keys: Bytes,
    key_offsets: Offsets,
    cells: Bytes,
    cell_offsets: Offsets,
) -> None:
    """Write a column's elements row by row: first the present ones (arrays by element), then the deleted ones (times by row).

    `key_offsets` and `cell_offsets` have one entry more than there are elements; a set has no values.
    """
    buf, gone, limit, gone_limit = pointer_to(data), pointer_to(gone_data), len(data), len(gone_data)
    to_keys, to_cells, key_room, cell_room = pointer_to(keys), pointer_to(cells), len(keys), len(cells)
    key, cell, count = 0, 0, 0
    rows[0] = 0
    key_offsets[0] = 0
    cell_offsets[0] = 0
    holds = len(value_starts) > 0
    for row in range(len(rows) - 1):
        for at in range(bounds[row], bounds[row + 1]):
            key = _put_key(buf, key_starts[at], key_sizes[at], limit, to_keys, key, key_room, by_time)
            cell = _put_head(to_cells, cell, times[at], expiries[at], ttls[at])
            if holds:
                copy_run(buf, value_starts[at], limit, to_cells, cell, cell_room, value_sizes[at])
                cell += value_sizes[at]
            count += 1
            key_offsets[count] = key
            cell_offsets[count] = cell
        for at in range(gone_bounds[row], gone_bounds[row + 1]):
            key = _put_key(gone, gone_starts[at], gone_sizes[at], gone_limit, to_keys, key, key_room, by_time)
            cell = _put_deletion(to_cells, cell, gone_times[row])
            count += 1
            key_offsets[count] = key
            cell_offsets[count] = cell
        rows[row + 1] = count


@compiled("void(int64[::1], uint8[::1], uint8[::1], int32[::1])")
def pack_tombstones(times: Numbers, there: Bytes, out: Bytes, offsets: Offsets) -> None:
    """Write tombstones that cover cells."""
    made, to = pointer_to(out), 0
    offsets[0] = 0
    for row in range(len(times)):
        if there[row]:
            store_word(made, to, byteswap(np.uint64(times[row]) ^ _SIGN))
            store_int8(made, to + 8, 0xFF)
            to += HEAD
        offsets[row + 1] = to


@compiled(f"void({CELLS}, int64[::1], int64, uint8[::1])")
def mark_fields(data: Bytes, starts: Numbers, sizes: Numbers, bounds: Numbers, fields: int, marks: Bytes) -> None:
    """Convert indices of deleted fields (two bytes each, the rows' bounds in `bounds`) to flags by field and row."""
    buf, limit = pointer_to(data), len(data)
    for row in range(len(bounds) - 1):
        for at in range(bounds[row], bounds[row + 1]):
            if sizes[at] == 2:
                index = load_be(buf, starts[at], 2, limit)
                if index < fields:
                    marks[index * (len(bounds) - 1) + row] = 1
