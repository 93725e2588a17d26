"""Compiled loops that find the parts of serialized values: elements, keys, fields.

Nothing is copied: a part is a start and a size in the same bytes; a size of -1 is null. Every length is checked against the end of its row
before it is used. A loop returns `FINE`, or the row that cannot be read: the row's number if it is malformed, `EXTRA - row` if bytes
remain after its last part.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import load_be
from headrace.kernels.pointers import Bytes, Pointer, byte_at, compiled, pointer_to

Numbers = npt.NDArray[np.int64]
CELLS: Final = "Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1]"
"""The bytes, where each value starts in them, its size."""
FINE, EXTRA = -1, -2
_SIGN, _WRAP = 1 << 31, 1 << 32


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def load_length(data: Pointer, at: int, limit: int) -> int:
    """A signed big-endian number of four bytes."""
    found = load_be(data, at, 4, limit)
    return found - _WRAP if found >= _SIGN else found


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def vint_size(data: Pointer, at: int) -> int:
    """Return the size of the variable-length number at `at`: one more than the leading ones of its first byte."""
    first = byte_at(data, at)
    size = 1
    while size < 9 and first & (256 >> size):
        size += 1
    return size


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def load_vint(data: Pointer, at: int, size: int) -> int:
    """The unsigned number of variable length at `at`, as the 64 bits of an int64."""
    found = byte_at(data, at) & (0xFF >> size) if size < 9 else 0
    for place in range(1, size):
        found = found << 8 | byte_at(data, at + place)
    return found


@compiled(f"int64({CELLS}, int64, int64[::1])")
def count_elements(data: Bytes, starts: Numbers, sizes: Numbers, parts: int, offsets: Numbers) -> int:
    """Return the running total of elements of `parts` values per collection; a count above what the bytes can hold is an error."""
    buf, limit = pointer_to(data), len(data)
    offsets[0] = 0
    for row in range(len(starts)):
        count = 0
        if sizes[row] > 0:
            if sizes[row] < 4:
                return row
            count = load_length(buf, starts[row], limit)
            if count < 0 or count * parts * 4 > sizes[row] - 4:
                return row
        offsets[row + 1] = offsets[row] + count
    return FINE


@compiled(f"int64({CELLS}, int64, int64[::1], int64[::1], int64[::1])")
def split_elements(
    data: Bytes, starts: Numbers, sizes: Numbers, parts: int, offsets: Numbers, part_starts: Numbers, part_sizes: Numbers
) -> int:
    """Where the values of all collections lie, one after the other (a map's: key, value, key, value ...)."""
    buf, limit = pointer_to(data), len(data)
    to = 0
    for row in range(len(starts)):
        if sizes[row] <= 0:
            continue
        at, end = starts[row] + 4, starts[row] + sizes[row]
        for _ in range((offsets[row + 1] - offsets[row]) * parts):
            if end - at < 4:
                return row
            size = load_length(buf, at, limit)
            at += 4
            if size < -1 or size > end - at:
                return row
            part_starts[to] = at
            part_sizes[to] = size
            to += 1
            if size > 0:
                at += size
        if at != end:
            return EXTRA - row
    return FINE


@compiled(f"int64({CELLS}, int64, int64[::1], int64[::1])")
def split_fields(data: Bytes, starts: Numbers, sizes: Numbers, count: int, part_starts: Numbers, part_sizes: Numbers) -> int:
    """Where the fields of tuples and user types lie: all first fields, then all second ones ... Those a value ends before are null."""
    buf, limit, rows = pointer_to(data), len(data), len(starts)
    for row in range(rows):
        at, end = starts[row], starts[row] + max(sizes[row], 0)
        for field in range(count):
            place = field * rows + row
            part_starts[place] = at
            part_sizes[place] = -1
            if at == end:
                continue
            if end - at < 4:
                return row
            size = load_length(buf, at, limit)
            at += 4
            if size < -1 or size > end - at:
                return row
            part_starts[place] = at
            part_sizes[place] = size
            if size > 0:
                at += size
        if at != end:
            return EXTRA - row
    return FINE


@compiled(f"int64({CELLS}, int64, int64[::1], int64[::1], int64[::1])")
def split_vectors(
    data: Bytes, starts: Numbers, sizes: Numbers, count: int, offsets: Numbers, part_starts: Numbers, part_sizes: Numbers
) -> int:
    """Find the elements of vectors whose elements have sizes of their own, each prefixed as a vint."""
    buf = pointer_to(data)
    to = 0
    offsets[0] = 0
    for row in range(len(starts)):
        if sizes[row] <= 0:
            offsets[row + 1] = to
            continue
        at, end = starts[row], starts[row] + sizes[row]
        for _ in range(count):
            if at >= end:
                return row
            width = vint_size(buf, at)
            if width > end - at:
                return row
            size = load_vint(buf, at, width)
            at += width
            if size < 0 or size > end - at:
                return row
            part_starts[to] = at
            part_sizes[to] = size
            to += 1
            at += size
        if at != end:
            return EXTRA - row
        offsets[row + 1] = to
    return FINE
