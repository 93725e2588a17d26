"""Compiled loops from serialized values to Arrow buffers: numbers, runs of bytes, durations.

Null (size -1) and CQL's *empty* value (size 0), which only texts and blobs distinguish from null, give an invalid row. A loop returns
`FINE`, or the first row whose size or content does not fit its type.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.cql.decode.split_kernels import CELLS, FINE, Numbers, load_vint, vint_size
from headrace.kernels.memory import copy_run, load_be, store_int8, store_int16, store_int32, store_int64
from headrace.kernels.pointers import Bytes, Pointer, as_signed, compiled, load_word, pointer_to, store_word

_ONE = np.uint64(1)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LEAST_32, _GREATEST_32 = -(1 << 31), (1 << 31) - 1


@compiled(f"int64({CELLS}, int64, uint8[::1], uint8[::1])")
def read_words(data: Bytes, starts: Numbers, sizes: Numbers, width: int, out: Bytes, valid: Bytes) -> int:
    """Numbers of 1, 2, 4 or 8 bytes, most significant first, to the machine's order."""
    buf, to, limit = pointer_to(data), pointer_to(out), len(data)
    for row in range(len(starts)):
        size = sizes[row]
        found = 0
        if size == width:
            found = load_be(buf, starts[row], width, limit)
            valid[row] = 1
        elif size <= 0:
            valid[row] = 0
        else:
            return row
        if width == 4:
            store_int32(to, row * 4, found)
        elif width == 8:
            store_int64(to, row * 8, found)
        elif width == 2:
            store_int16(to, row * 2, found)
        else:
            store_int8(to, row, found)
    return FINE


@compiled(f"int64({CELLS}, uint8[::1], uint8[::1])")
def copy_uuids(data: Bytes, starts: Numbers, sizes: Numbers, out: Bytes, valid: Bytes) -> int:
    """Values of sixteen bytes, side by side."""
    buf, to = pointer_to(data), pointer_to(out)
    for row in range(len(starts)):
        first, second = np.uint64(0), np.uint64(0)
        if sizes[row] == 16:
            first, second = load_word(buf, starts[row]), load_word(buf, starts[row] + 8)
            valid[row] = 1
        elif sizes[row] <= 0:
            valid[row] = 0
        else:
            return row
        store_word(to, row * 16, first)
        store_word(to, row * 16 + 8, second)
    return FINE


@compiled(f"void({CELLS}, uint8[::1], int32[::1], uint8[::1])")
def pack_runs(data: Bytes, starts: Numbers, sizes: Numbers, out: Bytes, offsets: npt.NDArray[np.int32], valid: Bytes) -> None:
    """Values of any size one after the other; here an empty value is valid."""
    buf, to, limit, out_limit = pointer_to(data), pointer_to(out), len(data), len(out)
    at = 0
    offsets[0] = 0
    for row in range(len(starts)):
        size = sizes[row]
        valid[row] = size >= 0
        if size > 0:
            copy_run(buf, starts[row], limit, to, at, out_limit, size)
            at += size
        offsets[row + 1] = at


@compiled(f"int64({CELLS})")
def find_not_ascii(data: Bytes, starts: Numbers, sizes: Numbers) -> int:
    """The first row with a byte that is not ASCII."""
    buf = pointer_to(data)
    for row in range(len(starts)):
        at, end = starts[row], starts[row] + max(sizes[row], 0)
        while at + 8 <= end:
            if load_word(buf, at) & _HIGH_BITS:
                return row
            at += 8
        while at < end:
            if buf[at] >= 128:
                return row
            at += 1
    return FINE


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _load_signed_vint(data: Pointer, at: int, size: int) -> int:
    """Read a variable-length number whose last bit is its sign."""
    raw = np.uint64(load_vint(data, at, size))
    return as_signed(raw >> _ONE) ^ -as_signed(raw & _ONE)


@compiled(f"int64({CELLS}, int64[::1], uint8[::1])")
def read_durations(data: Bytes, starts: Numbers, sizes: Numbers, out: Numbers, valid: Bytes) -> int:
    """Durations as three numbers each: months, days, nanoseconds. All three have one sign."""
    buf = pointer_to(data)
    for row in range(len(starts)):
        out[row * 3 : row * 3 + 3] = 0
        valid[row] = sizes[row] > 0
        if sizes[row] <= 0:
            continue
        at, end = starts[row], starts[row] + sizes[row]
        for part in range(3):
            if at >= end or vint_size(buf, at) > end - at:
                return row
            size = vint_size(buf, at)
            out[row * 3 + part] = _load_signed_vint(buf, at, size)
            at += size
        months, days, nanos = out[row * 3], out[row * 3 + 1], out[row * 3 + 2]
        if at != end or not (_LEAST_32 <= months <= _GREATEST_32 and _LEAST_32 <= days <= _GREATEST_32):
            return row
        if (months < 0 or days < 0 or nanos < 0) and (months > 0 or days > 0 or nanos > 0):
            return row
    return FINE
