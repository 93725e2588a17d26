"""The compiled decoder of query results in the binary protocol: packets to an arena, for snapshots and verification.

Works on whatever part of the result has arrived: it stops at the first packet that is not all there, before the row that does not fit
the arena, or at a packet that is not a row. It checks every length against the packet's end.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.sources.mysql import values as v
from headrace.sources.mysql.arena import DATA, DATA_END, VALIDITY, VALUES

# How a column lies in a protocol row.
(
    FIXED,  # a: bytes; b: bytes of the output
    TEXT,
    DECIMAL,  # a: scale; b: 8-byte words of the output
    BITS,
    DATE,
    DATETIME,
    TIME,
) = range(7)

# Rows of the table description; the order of its columns is that of the query and of the arena.
ENCODING, A, B = range(3)

# Cells of the state.
AT, ROWS, STATUS, ERROR_COLUMN = range(4)
MORE, FULL, NOT_A_ROW, SPLIT, MALFORMED, ZERO_DATE = range(6)


@njit("i8(u1[::1], i8, i8, i8[::1])", cache=True)
def _length(raw, pos, end, size):  # type: ignore[no-untyped-def]
    """Read a length-encoded size into size[0]; the position after it, or -1."""
    first = np.int64(raw[pos]) if pos < end else np.int64(255)
    width = np.int64(0)
    if first < 251:
        size[0] = first
    elif first == 252:
        width = 2
    elif first == 253:
        width = 3
    elif first == 254:
        width = 8
    else:
        return -1
    if width:
        if pos + 1 + width > end:
            return -1
        size[0] = v.read_le(raw, pos + 1, width)
    pos += 1 + width
    if size[0] < 0 or pos + size[0] > end:
        return -1
    return pos


@njit("i8(u1[::1], i8, i8)", cache=True)
def _datetime(raw, pos, size):  # type: ignore[no-untyped-def]
    """Microseconds of a date or datetime value of `size` bytes at pos, or NO_DATE."""
    if size < 4:
        return v.NO_DATE
    hour = minute = second = micros = np.int64(0)
    if size >= 7:
        hour, minute, second = np.int64(raw[pos + 4]), np.int64(raw[pos + 5]), np.int64(raw[pos + 6])
    if size >= 11:
        micros = v.read_le(raw, pos + 7, 4)
    return v.micros_from_civil(v.read_le(raw, pos, 2), np.int64(raw[pos + 2]), np.int64(raw[pos + 3]), hour, minute, second, micros)


@njit("i8(u1[::1], i8, i8)", cache=True)
def _time(raw, pos, size):  # type: ignore[no-untyped-def]
    if size < 8:
        return np.int64(0)
    hours = v.read_le(raw, pos + 1, 4) * 24 + np.int64(raw[pos + 5])
    micros = (hours * 3600 + np.int64(raw[pos + 6]) * 60 + np.int64(raw[pos + 7])) * 1_000_000
    if size >= 12:
        micros += v.read_le(raw, pos + 8, 4)
    return -micros if raw[pos] else micros


@njit("i8(u1[::1], i8, i8, i4[:,::1], i8, u1[::1], i2[::1], i4[::1], i8[::1], i8[:,::1], u8[::1], i8[::1], b1, i8[::1])", cache=True)
def decode_row(raw, pos, end, table, row, a1, a2, a4, a8, layout, limbs, scratch, zero_null, state):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Write the row in raw[pos:end) (a whole payload) as row `row`; 0 or minus the status that stopped it."""
    columns = table.shape[1]
    nulls = pos + 1
    pos = nulls + (columns + 9) // 8
    if pos > end:
        return -MALFORMED
    for c in range(columns):
        encoding = table[ENCODING, c]
        slot = layout[c, VALUES]
        is_null = raw[nulls + ((c + 2) >> 3)] >> ((c + 2) & 7) & 1
        size = np.int64(0)
        if not is_null:
            if encoding == FIXED:
                size = np.int64(table[A, c])
                if pos + size > end:
                    state[ERROR_COLUMN] = c
                    return -MALFORMED
            else:
                pos = _length(raw, pos, end, scratch)
                if pos < 0:
                    state[ERROR_COLUMN] = c
                    return -MALFORMED
                size = scratch[0]
        if encoding == TEXT:
            at = np.int64(a4[(slot >> 2) + row]) + layout[c, DATA]
            if at + size > layout[c, DATA_END]:
                return -FULL
            a1[at : at + size] = raw[pos : pos + size]
            a4[(slot >> 2) + row + 1] = np.int32(at + size - layout[c, DATA])
        elif encoding == DECIMAL:
            words = np.int64(table[B, c])
            if is_null:
                for i in range(words):
                    a8[(slot >> 3) + row * words + i] = 0
            elif v.store_text_decimal(raw, pos, pos + size, np.int64(table[A, c]), limbs, a8, (slot >> 3) + row * words, words) < 0:
                state[ERROR_COLUMN] = c
                return -MALFORMED
        else:
            number = np.int64(0)
            if not is_null:
                if encoding == FIXED:
                    number = v.read_le(raw, pos, size)
                elif encoding == BITS:
                    number = v.read_be(raw, pos, size)
                elif encoding == TIME:
                    number = _time(raw, pos, size)
                else:
                    number = _datetime(raw, pos, size)
                    if number == v.NO_DATE:
                        if not zero_null:
                            state[ERROR_COLUMN] = c
                            return -ZERO_DATE
                        is_null = 1
                        number = np.int64(0)
                    elif encoding == DATE:
                        number = number // 86_400_000_000
            width = table[B, c]
            if width == 8:
                a8[(slot >> 3) + row] = number
            elif width == 4:
                a4[(slot >> 2) + row] = np.int32(number)
            elif width == 2:
                a2[(slot >> 1) + row] = np.int16(number)
            else:
                a1[slot + row] = np.uint8(number)
        if not is_null:
            a1[layout[c, VALIDITY] + (row >> 3)] |= np.uint8(1 << (row & 7))
        pos += size
    return 0 if pos == end else -MALFORMED


@njit("void(u1[::1], i8, i4[:,::1], i8, u1[::1], i2[::1], i4[::1], i8[::1], i8[:,::1], b1, i8[::1])", cache=True)
def decode_rows(raw, end, table, capacity, a1, a2, a4, a8, layout, zero_null, state):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Decode the row packets in raw[state[AT]:end) on top of the state[ROWS] rows already in the arena."""
    limbs = np.empty(8, dtype=np.uint64)
    scratch = np.zeros(1, dtype=np.int64)
    state[STATUS] = MORE
    while state[AT] + 4 <= end:
        pos = state[AT]
        size = v.read_le(raw, pos, 3)
        if size == 0xFFFFFF:
            state[STATUS] = SPLIT
            return
        if pos + 4 + size > end:
            return
        if size == 0 or raw[pos + 4] != 0:
            state[STATUS] = NOT_A_ROW
            return
        if state[ROWS] >= capacity:
            state[STATUS] = FULL
            return
        done = decode_row(
            raw, pos + 4, pos + 4 + size, table, state[ROWS], a1, a2, a4, a8, layout, limbs, scratch, zero_null, state
        )
        if done < 0:
            state[STATUS] = -done
            return
        state[ROWS] += 1
        state[AT] = pos + 4 + size
