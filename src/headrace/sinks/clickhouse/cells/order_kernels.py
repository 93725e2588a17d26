"""Compiled loops that encode a clustering column's values as bytes that sort like the source.

Every value starts with the byte 2 (1: CQL's *empty* value) and marks its own end, so keys can be concatenated and a key's prefix sorts
before all keys that extend it. A missing value (size -1) gives no bytes. The bytes of a descending column are inverted. No value starts
with 255: a bound after all keys of a prefix is the prefix and 255.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.memory import byteswap, copy_run, load_be_high, store_int8, store_int32
from headrace.kernels.pointers import Bytes, Pointer, as_signed, byte_at, compiled, load_word, pointer_to, store_word
from headrace.sinks.clickhouse.cells.cell_kernels import CELLS, NO_ERROR, Numbers, Offsets, put_time_order

SIGNED, UNSIGNED, FLOAT, RUN, TIME, UUIDS, LONG = range(7)
"""How a type sorts: as signed number, unsigned number, float, bytes, timeuuid, uuid, or number of any length."""
_THERE, _EMPTY = 2, 1
_ESCAPED = 0xFF
_SIGN = np.uint64(1 << 63)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@compiled("int64(CPointer(uint8), int64, int64, CPointer(uint8), int64)", inlined=True)
def _put_run(buf: Pointer, at: int, size: int, out: Pointer, to: int) -> int:
    """Write bytes of any length: 0 is followed by 255, the end is 0, 0."""
    for place in range(at, at + size):
        byte = byte_at(buf, place)
        store_int8(out, to, byte)
        to += 1
        if byte == 0:
            store_int8(out, to, _ESCAPED)
            to += 1
    store_int8(out, to, 0)
    store_int8(out, to + 1, 0)
    return to + 2


@compiled("void(CPointer(uint8), int64, int64, int64, int64, CPointer(uint8), int64)", inlined=True)
def _put_number(buf: Pointer, at: int, size: int, limit: int, sort: int, out: Pointer, to: int) -> None:
    """Write a number of 1 to 8 bytes."""
    word = load_be_high(buf, at, size, limit) & _ALL << np.uint64(64 - 8 * size)
    if sort == SIGNED:
        word ^= _SIGN
    elif sort == FLOAT:
        exponent = np.uint64(0x7FF0000000000000) if size == 8 else np.uint64(0x7F80000000000000)
        if word & ~_SIGN > exponent:
            word = _ALL
        elif word & _SIGN:
            word = ~word
        else:
            word |= _SIGN
    for place in range(size):
        store_int8(out, to + place, as_signed(word >> np.uint64(56 - 8 * place)) & 0xFF)


@compiled("void(CPointer(uint8), int64, CPointer(uint8), int64)", inlined=True)
def _put_uuid(buf: Pointer, at: int, out: Pointer, to: int) -> None:
    """Write version, then time (version 1) or bytes."""
    version = byte_at(buf, at + 6) >> 4
    store_int8(out, to, version)
    if version == 1:
        put_time_order(buf, at, out, to + 1)
    else:
        store_word(out, to + 1, load_word(buf, at))
    store_word(out, to + 9, load_word(buf, at + 8))


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64)", inlined=True)
def _put_long(buf: Pointer, at: int, size: int, limit: int, out: Pointer, to: int, room: int) -> int:
    """Write a signed number of any length: sign, length without redundant bytes, bytes."""
    negative = byte_at(buf, at) >= 0x80
    needless = 0xFF if negative else 0
    while size > 1 and byte_at(buf, at) == needless and (byte_at(buf, at + 1) >= 0x80) == negative:
        at += 1
        size -= 1
    store_int8(out, to, 1 if negative else 2)
    length = 0xFFFFFFFF - size if negative else size
    store_int32(out, to + 1, as_signed(byteswap(np.uint64(length)) >> np.uint64(32)))
    copy_run(buf, at, limit, out, to + 5, room, size)
    return to + 5 + size


@compiled(f"int64({CELLS}, int64, int64, boolean, uint8[::1], int32[::1])")
def put_order(data: Bytes, starts: Numbers, sizes: Numbers, sort: int, width: int, descending: bool, out: Bytes, offsets: Offsets) -> int:
    """Write a column as sortable bytes; `width` is the required size (0: any). Return `NO_ERROR`, or the first row of another size.

    `out` has twice the bytes of the values and 32 bytes for each.
    """
    buf, made, limit, room = pointer_to(data), pointer_to(out), len(data), len(out)
    to = 0
    offsets[0] = 0
    for row in range(len(starts)):
        size, at, begin = sizes[row], starts[row], to
        if size > 0 and width > 0 and size != width:
            return row
        if size == 0 and sort != RUN:
            store_int8(made, to, _EMPTY)
            to += 1
        elif size >= 0:
            store_int8(made, to, _THERE)
            to += 1
            if sort == RUN:
                to = _put_run(buf, at, size, made, to)
            elif sort == TIME:
                put_time_order(buf, at, made, to)
                to += 16
            elif sort == UUIDS:
                _put_uuid(buf, at, made, to)
                to += 17
            elif sort == LONG:
                to = _put_long(buf, at, size, limit, made, to, room)
            else:
                _put_number(buf, at, size, limit, sort, made, to)
                to += size
        if descending:
            for place in range(begin, to):
                store_int8(made, place, 255 - byte_at(made, place))
        offsets[row + 1] = to
    return NO_ERROR
