"""The compiled decoder of row events: one kernel for all tables.

A table is described by small arrays (how each column is encoded, where its output goes, which columns make up the key); the kernel walks
the images of a list of row events and fills an arena. It never reads past an event's end and never writes past the arena: a malformed
event ends in an error code with its place. When the arena is full the kernel stops *before* the change that does not fit and says where
to go on. An update whose key bytes differ yields its before image and then its after image; any other update only the latter.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.model.change import Op
from headrace.sources.mysql import values as v
from headrace.sources.mysql.arena import DATA, DATA_END, VALIDITY, VALUES
from headrace.sources.mysql.jsonb import json_to_text

# How a column lies in a row image. Parameters a and b follow in the table description.
(
    INT,  # a: bytes, b: bytes of the output
    UINT,  # a: bytes, b: bytes of the output
    YEAR,
    DECIMAL,  # a: precision, b: scale
    VAR,  # a: bytes of the length, b: pad to this length with zero bytes
    ENUM,  # a: bytes
    BITS,  # a: bytes, big-endian (BIT)
    MASK,  # a: bytes, little-endian (SET)
    DATE,
    DATETIME2,  # a: fractional digits
    TIMESTAMP2,  # a: fractional digits
    TIME2,  # a: fractional digits
    JSON,  # a: bytes of the length
) = range(13)

# Rows of the table description.
ENCODING, A, B, OUT, IS_KEY, WORDS = range(6)

# Kinds of change as the kernel sees them.
WRITE, UPDATE, DELETE = range(3)

# Cells of the cursor: where to go on, what was done, what went wrong.
EVENT, OFFSET, ORDINAL, ROWS, STATUS, ERROR_COLUMN, ERROR_AT = range(7)
DONE, FULL, TRUNCATED, BAD_JSON, ZERO_DATE, PARTIAL_IMAGE, WRONG_WIDTH = range(7)

_OP_INSERT, _OP_UPDATE, _OP_DELETE, _OP_BEFORE = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE), int(Op.BEFORE)
_NO_DATE = v.NO_DATE


@njit("i8(i4[:,::1], i8, u1[::1], i8, i8)", cache=True)
def _size(table, c, buf, pos, end):  # type: ignore[no-untyped-def]
    """Bytes of the value of column c at buf[pos], or -1 if they are not all there."""
    encoding = table[ENCODING, c]
    a = np.int64(table[A, c])
    if encoding == VAR or encoding == JSON:
        if pos + a > end:
            return -1
        size = a + v.read_le(buf, pos, a)
    elif encoding == DECIMAL:
        size = v.decimal_size(a, np.int64(table[B, c]))
    elif encoding == DATE:
        size = np.int64(3)
    elif encoding == DATETIME2:
        size = 5 + v.fraction_bytes(a)
    elif encoding == TIMESTAMP2:
        size = 4 + v.fraction_bytes(a)
    elif encoding == TIME2:
        size = 3 + v.fraction_bytes(a)
    elif encoding == YEAR:
        size = np.int64(1)
    else:
        size = a
    if size < 0 or pos + size > end:
        return -1
    return size


@njit("i8(i4[:,::1], i8, i8, u1[::1], i8, i8, i8[:,::1])", cache=True)
def _walk(table, columns, width, buf, pos, end, key):  # type: ignore[no-untyped-def]
    """Step over the first `columns` values of an image, noting start and size of the key's; the position after them, or -1."""
    nulls = pos
    pos += (width + 7) // 8
    if pos > end:
        return -1
    k = 0
    for c in range(columns):
        if buf[nulls + (c >> 3)] >> (c & 7) & 1:
            size = np.int64(-1)
        else:
            size = _size(table, c, buf, pos, end)
            if size < 0:
                return -1
        if table[IS_KEY, c]:
            key[k, 0], key[k, 1] = pos, size
            k += 1
        if size > 0:
            pos += size
    return pos


@njit("b1(u1[::1], i8[:,::1], i8[:,::1])", cache=True)
def _same_key(buf, before, after):  # type: ignore[no-untyped-def]
    for k in range(before.shape[0]):
        size = before[k, 1]
        if size != after[k, 1]:
            return False
        for i in range(size):
            if buf[before[k, 0] + i] != buf[after[k, 0] + i]:
                return False
    return True


@njit("i8(i4[:,::1], i8, u1[::1], i8, i8, i8, u1[::1], i2[::1], i4[::1], i8[::1], i8[:,::1], u8[::1], b1, i8[::1])", cache=True)
def _write(table, width, buf, pos, end, row, a1, a2, a4, a8, layout, limbs, zero_null, cursor):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Write one image as row `row`; the position after it, or minus the status that stopped it."""
    nulls = pos
    pos += (width + 7) // 8
    if pos > end:
        return -TRUNCATED
    for c in range(width):
        encoding = table[ENCODING, c]
        out = table[OUT, c]
        is_null = buf[nulls + (c >> 3)] >> (c & 7) & 1
        size = np.int64(0)
        if not is_null:
            size = _size(table, c, buf, pos, end)
            if size < 0:
                cursor[ERROR_COLUMN] = c
                return -TRUNCATED
        if out < 0:
            pos += size
            continue
        slot = layout[out, VALUES]
        number = np.int64(0)
        out_bytes = np.int64(8)
        if encoding == VAR or encoding == JSON:
            at = np.int64(a4[(slot >> 2) + row]) + layout[out, DATA]
            if not is_null:
                a = np.int64(table[A, c])
                if encoding == VAR:
                    length = size - a
                    padded = max(length, np.int64(table[B, c]))
                    if at + padded > layout[out, DATA_END]:
                        return -FULL
                    a1[at : at + length] = buf[pos + a : pos + size]
                    if padded > length:
                        a1[at + length : at + padded] = 0
                    at += padded
                else:
                    at = json_to_text(buf, pos + a, pos + size, a1[: layout[out, DATA_END]], at)
                    if at == -1:
                        return -FULL
                    if at < 0:
                        cursor[ERROR_COLUMN] = c
                        return -BAD_JSON
            a4[(slot >> 2) + row + 1] = np.int32(at - layout[out, DATA])
        elif encoding == DECIMAL:
            words = np.int64(table[WORDS, c])
            if is_null:
                for i in range(words):
                    a8[(slot >> 3) + row * words + i] = 0
            else:
                v.store_packed_decimal(buf, pos, np.int64(table[A, c]), np.int64(table[B, c]), limbs, a8, (slot >> 3) + row * words, words)
        else:
            if not is_null:
                if encoding == INT:
                    number = v.read_le(buf, pos, size)
                    shift = 64 - 8 * size
                    number = (number << shift) >> shift
                elif encoding == UINT or encoding == ENUM or encoding == MASK:
                    number = v.read_le(buf, pos, size)
                elif encoding == BITS:
                    number = v.read_be(buf, pos, size)
                elif encoding == YEAR:
                    number = np.int64(buf[pos])
                    if number != 0:
                        number += 1900
                elif encoding == TIME2:
                    number = v.read_time2(buf, pos, np.int64(table[A, c]))
                else:
                    if encoding == DATE:
                        number = v.read_date(buf, pos)
                    elif encoding == DATETIME2:
                        number = v.read_datetime2(buf, pos, np.int64(table[A, c]))
                    else:
                        number = v.read_timestamp2(buf, pos, np.int64(table[A, c]))
                    if number == _NO_DATE:
                        if not zero_null:
                            cursor[ERROR_COLUMN] = c
                            return -ZERO_DATE
                        is_null = 1
                        number = np.int64(0)
            out_bytes = np.int64(table[WORDS, c])
            if out_bytes == 8:
                a8[(slot >> 3) + row] = number
            elif out_bytes == 4:
                a4[(slot >> 2) + row] = np.int32(number)
            elif out_bytes == 2:
                a2[(slot >> 1) + row] = np.int16(number)
            else:
                a1[slot + row] = np.uint8(number)
        if not is_null:
            a1[layout[out, VALIDITY] + (row >> 3)] |= np.uint8(1 << (row & 7))
        pos += size
    return pos


@njit("i8(u1[::1], i8, i8, i8, i8)", cache=True)
def _first_image(buf, pos, end, width, kind):  # type: ignore[no-untyped-def]
    """Where the images of a row event start, given where its column count starts; or minus a status."""
    if pos >= end:
        return -TRUNCATED
    count = np.int64(buf[pos])
    pos += 1
    if count == 252:
        if pos + 2 > end:
            return -TRUNCATED
        count = v.read_le(buf, pos, 2)
        pos += 2
    elif count > 250:
        return -WRONG_WIDTH
    if count != width:
        return -WRONG_WIDTH
    bitmap = (width + 7) // 8
    bitmaps = 2 if kind == UPDATE else 1
    if pos + bitmap * bitmaps > end:
        return -TRUNCATED
    for b in range(bitmaps):
        for c in range(width):
            if not buf[pos + b * bitmap + (c >> 3)] >> (c & 7) & 1:
                return -PARTIAL_IMAGE
    return pos + bitmap * bitmaps


@njit(
    "void(u1[::1], i8[:,::1], i4[:,::1], i8, i8, u8, b1, b1, u1[::1], i2[::1], i4[::1], i8[::1], i8[:,::1], i8,"
    " u1[::1], u8[::1], i8[::1], i8[::1])",
    cache=True,
)
def decode_images(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    buf, events, table, keys, key_span, version_base, every_before, zero_null, a1, a2, a4, a8, layout, capacity, op, version, commit_ts, cursor
):
    """Decode row events from `cursor` on until all are done, the arena is full, or something is wrong.

    events: one line each: start of the column count, end of the images, kind, commit time in microseconds, offset of the event in the log.
    keys, key_span: how many key columns there are, and how many leading columns hold them all.
    """
    width = table.shape[1]
    before_key = np.empty((keys, 2), dtype=np.int64)
    after_key = np.empty((keys, 2), dtype=np.int64)
    limbs = np.empty(8, dtype=np.uint64)
    row = np.int64(0)
    cursor[STATUS] = DONE
    while cursor[EVENT] < events.shape[0]:
        event = cursor[EVENT]
        end = events[event, 1]
        kind = events[event, 2]
        pos = cursor[OFFSET]
        if pos == 0:
            pos = _first_image(buf, events[event, 0], end, width, kind)
            cursor[ORDINAL] = 1
            if pos < 0:
                cursor[STATUS], cursor[ERROR_AT], cursor[ROWS] = -pos, event, row
                return
        address = version_base + np.uint64(events[event, 4])
        while pos < end:
            cursor[OFFSET] = pos
            ordinal = cursor[ORDINAL]
            if row + 2 > capacity:
                cursor[STATUS], cursor[ROWS] = FULL, row
                return
            first_row = row
            if kind == UPDATE:
                after = _walk(table, width, width, buf, pos, end, before_key)
                if after < 0 or _walk(table, key_span, width, buf, after, end, after_key) < 0:
                    cursor[STATUS], cursor[ERROR_AT], cursor[ROWS] = TRUNCATED, event, row
                    return
                done = after
                if every_before or not _same_key(buf, before_key, after_key):
                    done = _write(table, width, buf, pos, after, row, a1, a2, a4, a8, layout, limbs, zero_null, cursor)
                    op[row], version[row] = _OP_BEFORE, address + np.uint64(ordinal)
                    commit_ts[row] = events[event, 3]
                    row += 1
                if done >= 0:
                    done = _write(table, width, buf, after, end, row, a1, a2, a4, a8, layout, limbs, zero_null, cursor)
                op[row], version[row] = _OP_UPDATE, address + np.uint64(ordinal + 1)
                cursor[ORDINAL] = ordinal + 2
            else:
                done = _write(table, width, buf, pos, end, row, a1, a2, a4, a8, layout, limbs, zero_null, cursor)
                op[row], version[row] = (_OP_INSERT if kind == WRITE else _OP_DELETE), address + np.uint64(ordinal)
                cursor[ORDINAL] = ordinal + 1
            commit_ts[row] = events[event, 3]
            row += 1
            if done < 0:
                # Nothing of this change counts: it is decoded again in a fresh arena, or reported.
                cursor[STATUS], cursor[ERROR_AT], cursor[ROWS], cursor[ORDINAL] = -done, event, first_row, ordinal
                return
            pos = done
        if pos != end:
            cursor[STATUS], cursor[ERROR_AT], cursor[ROWS] = TRUNCATED, event, row
            return
        cursor[EVENT] = event + 1
        cursor[OFFSET] = 0
    cursor[ROWS] = row


@njit("i8(u1[::1], i8, i8, i8, i4[:,::1])", cache=True)
def count_changes(buf, pos, end, kind, table):  # type: ignore[no-untyped-def]
    """How many changes a row event holds, or minus a status."""
    width = table.shape[1]
    none = np.empty((width, 2), dtype=np.int64)
    pos = _first_image(buf, pos, end, width, kind)
    if pos < 0:
        return pos
    changes = np.int64(0)
    while pos < end:
        pos = _walk(table, width, width, buf, pos, end, none)
        if pos >= 0 and kind == UPDATE:
            pos = _walk(table, width, width, buf, pos, end, none)
        if pos < 0:
            return -TRUNCATED
        changes += 1
    return changes
