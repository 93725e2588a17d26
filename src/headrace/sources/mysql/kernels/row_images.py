"""The compiled decoder of row events: one kernel for all tables.

A table is described by small arrays (how each column is encoded, where its output goes, which columns make up the key). The kernel walks
the row images of a list of row events and fills an arena. It never reads past an event's end and never writes past the arena: a malformed
event returns an error code with its place. If the arena is full, the kernel stops *before* the change that does not fit and returns where
to continue. An update whose key bytes differ yields its before image and then its after image; any other update yields only the after
image.

Per block, description and layout become one plan (`_plan_columns`): a line of numbers per column, so that the loop over columns only
compares and adds. Values are loaded as whole words and cut; see `kernels.memory`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import (
    Slots,
    copy_run,
    load_be,
    load_int32,
    load_le,
    load_word_within,
    same_bytes,
    slots_of,
    store_int32,
)
from headrace.kernels.pointers import NO_ROOM as JSON_NO_ROOM
from headrace.kernels.pointers import Bytes, Pointer, as_signed, byte_at, compiled, pointer_to
from headrace.model.change_block import Op
from headrace.sources.mysql.kernels import values as v
from headrace.sources.mysql.kernels.arrow_arena import DATA, DATA_END, VALIDITY, VALUES
from headrace.sources.mysql.kernels.jsonb import put_json

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
    OLD_DATETIME,  # a: fractional digits; this and the next two as servers before MySQL 5.6 kept them, and MariaDB still may
    OLD_TIMESTAMP,  # a: fractional digits
    OLD_TIME,  # a: fractional digits
) = range(16)

# Rows of the table description.
ENCODING, A, B, OUT, IS_KEY, WORDS = range(6)

# Kinds of change.
WRITE, UPDATE, DELETE = range(3)

# Cells of the cursor: where to continue, what was done, what went wrong.
EVENT, OFFSET, ORDINAL, ROWS, STATUS, ERROR_COLUMN, ERROR_AT = range(7)
ZEROS = 7
"""From here on, per column, the number of invalid dates that were read as the epoch."""
DONE, FULL, TRUNCATED, BAD_JSON, ZERO_DATE, PARTIAL_IMAGE, WRONG_WIDTH, BAD_VALUE = range(8)

_OP_INSERT, _OP_UPDATE, _OP_DELETE, _OP_BEFORE = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE), int(Op.BEFORE)
_NO_DATE = v.NO_DATE

# Cells of a column's line in the plan. Size 0: a length of _P_A bytes precedes the value. Width 0: variable-width output.
_P_ENCODING, _P_SIZE, _P_A, _P_B, _P_IS_KEY, _P_WIDTH, _P_VALIDITY, _P_VALUES, _P_DATA, _P_DATA_END = range(10)
_LINE = 10
_SKIPPED = 16
"""The encoding of a column that has no output."""


@compiled("int64(int64, int64, int64)")
def fixed_size(encoding: int, a: int, b: int) -> int:
    """Return the bytes of every value of a column, or 0 if the size varies."""
    if encoding == VAR or encoding == JSON:
        return 0
    if encoding == DECIMAL:
        return v.decimal_size(a, b)
    if encoding == DATE:
        return 3
    if encoding == DATETIME2:
        return 5 + v.fraction_bytes(a)
    if encoding == TIMESTAMP2:
        return 4 + v.fraction_bytes(a)
    if encoding == TIME2:
        return 3 + v.fraction_bytes(a)
    if encoding == OLD_DATETIME or encoding == OLD_TIMESTAMP or encoding == OLD_TIME:
        return v.old_size(8 if encoding == OLD_DATETIME else 4 if encoding == OLD_TIMESTAMP else 3, a)
    return 1 if encoding == YEAR else a


@compiled("int64[::1](int32[:,::1], int64[:,::1])")
def _plan_columns(table: npt.NDArray[np.int32], layout: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return one line per column of the image: the description, the location of the output, and derived values."""
    plan = np.zeros(table.shape[1] * _LINE, dtype=np.int64)
    for c in range(table.shape[1]):
        line = plan[c * _LINE : (c + 1) * _LINE]
        encoding, out = int(table[ENCODING, c]), int(table[OUT, c])
        line[_P_ENCODING] = encoding
        line[_P_A], line[_P_B], line[_P_IS_KEY] = table[A, c], table[B, c], table[IS_KEY, c]
        line[_P_SIZE] = fixed_size(encoding, int(table[A, c]), int(table[B, c]))
        if encoding == DECIMAL:
            line[_P_WIDTH] = 8 * int(table[WORDS, c])
        elif encoding != VAR and encoding != JSON:
            line[_P_WIDTH] = table[WORDS, c]
        if out < 0:
            line[_P_ENCODING] = _SKIPPED
        else:
            line[_P_VALIDITY], line[_P_VALUES] = layout[out, VALIDITY], layout[out, VALUES]
            line[_P_DATA], line[_P_DATA_END] = layout[out, DATA], layout[out, DATA_END]
    return plan


@compiled("int64(CPointer(int64), int64, CPointer(uint8), int64, int64, int64)", inlined=True)
def _value_end(plan: Slots, line: int, buf: Pointer, pos: int, end: int, limit: int) -> int:
    """Return the end of the value at buf[pos], or -1 if it is incomplete."""
    size = int(plan[line + _P_SIZE])
    if size == 0:
        size = int(plan[line + _P_A])
        if size > end - pos:
            return -1
        size += load_le(buf, pos, size, limit)
    return pos + size if size <= end - pos else -1


@compiled("boolean(CPointer(uint8), int64, int64)", inlined=True)
def _is_null(buf: Pointer, nulls: int, c: int) -> bool:
    return byte_at(buf, nulls + (c >> 3)) >> (c & 7) & 1 != 0


@compiled("int64(CPointer(int64), int64, CPointer(uint8), int64, int64, int64, CPointer(int64))")
def _walk(plan: Slots, columns: int, buf: Pointer, pos: int, end: int, limit: int, key: Slots) -> int:
    """Step over an image and record start and size (-1 for NULL) of the key's values; return the position after it, or -1."""
    nulls = pos
    pos += (columns + 7) >> 3
    if pos > end:
        return -1
    k = 0
    for c in range(columns):
        line = c * _LINE
        start = pos
        null = _is_null(buf, nulls, c)
        if not null:
            pos = _value_end(plan, line, buf, pos, end, limit)
            if pos < 0:
                return -1
        if plan[line + _P_IS_KEY]:
            key[k] = start
            key[k + 1] = -1 if null else pos - start
            k += 2
    return pos


@compiled("int64(CPointer(int64), int64, int64, CPointer(uint8), int64, int64, int64, CPointer(int64))")
def _compare_key(plan: Slots, columns: int, span: int, buf: Pointer, pos: int, end: int, limit: int, key: Slots) -> int:
    """Whether the key of the image at `pos`, which lies in its first `span` columns, equals the one that `_walk` recorded; or -1."""
    nulls = pos
    pos += (columns + 7) >> 3
    if pos > end:
        return -1
    k = 0
    for c in range(span):
        line = c * _LINE
        start = pos
        null = _is_null(buf, nulls, c)
        if not null:
            pos = _value_end(plan, line, buf, pos, end, limit)
            if pos < 0:
                return -1
        if plan[line + _P_IS_KEY]:
            size = -1 if null else pos - start
            if size != key[k + 1] or (size > 0 and not same_bytes(buf, int(key[k]), start, size, limit)):
                return 0
            k += 2
    return 1


@compiled("int64(CPointer(int64), int64, CPointer(uint8), int64, int64, int64, CPointer(uint8), int64)", inlined=True)
def _put_run(plan: Slots, line: int, buf: Pointer, pos: int, end: int, limit: int, out: Pointer, row: int) -> int:
    """Write buf[pos:end), length first, as value `row` of a column of variable width; return DONE or the reason why not."""
    offsets, data, data_end = int(plan[line + _P_VALUES]) + 4 * row, int(plan[line + _P_DATA]), int(plan[line + _P_DATA_END])
    at = data + load_int32(out, offsets)
    pos += int(plan[line + _P_A])
    if plan[line + _P_ENCODING] == JSON:
        at = put_json(buf, pos, end, limit, out, at, data_end)
        if at < 0:
            return FULL if at == JSON_NO_ROOM else BAD_JSON
    else:
        size = end - pos
        padded = max(size, int(plan[line + _P_B]))
        if at + padded > data_end:
            return FULL
        copy_run(buf, pos, limit, out, at, data_end, size)
        for i in range(size, padded):
            out[at + i] = 0
        at += padded
    store_int32(out, offsets + 4, at - data)
    return DONE


@compiled("int64(CPointer(int64), int64, int64, CPointer(uint8), int64, int64, int64)", inlined=True)
def _read_number(plan: Slots, line: int, encoding: int, buf: Pointer, pos: int, size: int, limit: int) -> int:
    """Return the number that represents a value of fixed width, or NO_DATE."""
    if encoding == INT:
        shift = 64 - 8 * size
        return as_signed(load_word_within(buf, pos, size, limit)) << shift >> shift
    if encoding == UINT or encoding == ENUM or encoding == MASK:
        return load_le(buf, pos, size, limit)
    a = int(plan[line + _P_A])
    if encoding == DATETIME2:
        return v.read_datetime2(buf, pos, a, limit)
    if encoding == TIMESTAMP2:
        return v.read_timestamp2(buf, pos, a, limit)
    if encoding == DATE:
        return v.read_date(buf, pos, limit)
    if encoding == TIME2:
        return v.read_time2(buf, pos, a, limit)
    if encoding == BITS:
        return load_be(buf, pos, size, limit)
    if encoding == OLD_DATETIME:
        return v.read_old_datetime(buf, pos, a, limit)
    if encoding == OLD_TIMESTAMP:
        return v.read_old_timestamp(buf, pos, a, limit)
    if encoding == OLD_TIME:
        return v.read_old_time(buf, pos, a, limit)
    year = byte_at(buf, pos)
    return year + 1900 if year != 0 else 0


@compiled("int64(CPointer(int64), int64, CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64, CPointer(int64))")
def _write(
    plan: Slots, columns: int, buf: Pointer, pos: int, end: int, limit: int, out: Pointer, row: int, zero_dates: int, cursor: Slots
) -> int:
    """Write one image as row `row`; return the position after it, or minus the status that stopped it."""
    nulls = pos
    pos += (columns + 7) >> 3
    if pos > end:
        return -TRUNCATED
    for c in range(columns):
        line = c * _LINE
        encoding = int(plan[line + _P_ENCODING])
        if _is_null(buf, nulls, c):
            if encoding != _SKIPPED:
                v.put_null(out, int(plan[line + _P_VALIDITY]), int(plan[line + _P_VALUES]), int(plan[line + _P_WIDTH]), row)
            continue
        start = pos
        pos = _value_end(plan, line, buf, start, end, limit)
        if pos < 0:
            cursor[ERROR_COLUMN] = c
            return -TRUNCATED
        if encoding == VAR or encoding == JSON:
            status = _put_run(plan, line, buf, start, pos, limit, out, row)
            if status != DONE:
                cursor[ERROR_COLUMN] = c
                return -status
        elif encoding == DECIMAL:
            width = int(plan[line + _P_WIDTH])
            at = int(plan[line + _P_VALUES]) + row * width
            if not v.store_packed_decimal(buf, start, int(plan[line + _P_A]), int(plan[line + _P_B]), out, at, width >> 3, limit):
                cursor[ERROR_COLUMN] = c
                return -BAD_VALUE
        elif encoding != _SKIPPED:
            number = _read_number(plan, line, encoding, buf, start, pos - start, limit)
            # Only date and time encodings come after DATE. For encodings before it, this number may be a valid integer.
            if number == _NO_DATE and encoding >= DATE:
                if encoding == TIME2 or encoding == OLD_TIME:
                    cursor[ERROR_COLUMN] = c
                    return -BAD_VALUE
                if zero_dates == v.EPOCH_FOR_ZERO:
                    v.store(out, int(plan[line + _P_VALUES]), row, int(plan[line + _P_WIDTH]), 0)
                    cursor[ZEROS + c] += 1
                    continue
                if zero_dates != v.NULL_FOR_ZERO:
                    cursor[ERROR_COLUMN] = c
                    return -ZERO_DATE
                v.put_null(out, int(plan[line + _P_VALIDITY]), int(plan[line + _P_VALUES]), int(plan[line + _P_WIDTH]), row)
            else:
                v.store(out, int(plan[line + _P_VALUES]), row, int(plan[line + _P_WIDTH]), number)
    return pos


@compiled("int64(CPointer(uint8), int64, int64, int64, int64)")
def _first_image(buf: Pointer, pos: int, end: int, width: int, kind: int) -> int:
    """Return the start of the images of a row event, given the start of its column count; or minus a status."""
    if pos >= end:
        return -TRUNCATED
    count = byte_at(buf, pos)
    pos += 1
    if count == 252:
        if pos + 2 > end:
            return -TRUNCATED
        count = byte_at(buf, pos) | byte_at(buf, pos + 1) << 8
        pos += 2
    elif count > 250:
        return -WRONG_WIDTH
    if count != width:
        return -WRONG_WIDTH
    bitmap = (width + 7) >> 3
    bitmaps = 2 if kind == UPDATE else 1
    if pos + bitmap * bitmaps > end:
        return -TRUNCATED
    for b in range(bitmaps):
        for c in range(width):
            if not _is_null(buf, pos + b * bitmap, c):
                return -PARTIAL_IMAGE
    return pos + bitmap * bitmaps


@compiled(
    "void(uint8[::1], int64[:,::1], int32[:,::1], int64, int64, uint64, boolean, int64, uint8[::1], int64[:,::1], int64,"
    " uint8[::1], uint64[::1], int64[::1], int64[::1])"
)
def decode_images(
    buf: Bytes,
    events: npt.NDArray[np.int64],
    table: npt.NDArray[np.int32],
    keys: int,
    key_span: int,
    version_base: np.uint64,
    every_before: bool,
    zero_dates: int,
    arena: Bytes,
    layout: npt.NDArray[np.int64],
    capacity: int,
    op: Bytes,
    version: npt.NDArray[np.uint64],
    commit_ts: npt.NDArray[np.int64],
    cursor: npt.NDArray[np.int64],
) -> None:
    """Decode row events from `cursor` on until all are done, the arena is full, or an error occurs.

    events: one line each: start of the column count, end of the images, kind, commit time in microseconds, offset of the event in the log.
    keys, key_span: the number of key columns, and of the leading columns that contain them all.
    """
    width = table.shape[1]
    key_bounds = np.empty(2 * keys + 2, dtype=np.int64)
    lines = _plan_columns(table, layout)
    source, out, plan, key, note = pointer_to(buf), pointer_to(arena), slots_of(lines), slots_of(key_bounds), slots_of(cursor)
    limit = len(buf)
    row = 0
    cursor[STATUS] = DONE
    while cursor[EVENT] < events.shape[0]:
        event = cursor[EVENT]
        end = events[event, 1]
        kind = events[event, 2]
        pos = cursor[OFFSET]
        if pos == 0:
            pos = _first_image(source, events[event, 0], end, width, kind) if end <= limit else -TRUNCATED
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
                after = _walk(plan, width, source, pos, end, limit, key)
                same = -1 if after < 0 else _compare_key(plan, width, key_span, source, after, end, limit, key)
                if same < 0:
                    cursor[STATUS], cursor[ERROR_AT], cursor[ROWS] = TRUNCATED, event, row
                    return
                done = after
                if every_before or same == 0:
                    done = _write(plan, width, source, pos, after, limit, out, row, zero_dates, note)
                    op[row], version[row] = _OP_BEFORE, address + np.uint64(ordinal)
                    commit_ts[row] = events[event, 3]
                    row += 1
                if done >= 0:
                    done = _write(plan, width, source, after, end, limit, out, row, zero_dates, note)
                op[row], version[row] = _OP_UPDATE, address + np.uint64(ordinal + 1)
                cursor[ORDINAL] = ordinal + 2
            else:
                done = _write(plan, width, source, pos, end, limit, out, row, zero_dates, note)
                op[row], version[row] = (_OP_INSERT if kind == WRITE else _OP_DELETE), address + np.uint64(ordinal)
                cursor[ORDINAL] = ordinal + 1
            commit_ts[row] = events[event, 3]
            row += 1
            if done < 0:
                # Discard all of this change: it is decoded again in a new arena, or reported.
                cursor[STATUS], cursor[ERROR_AT], cursor[ROWS], cursor[ORDINAL] = -done, event, first_row, ordinal
                return
            pos = done
        cursor[EVENT] = event + 1
        cursor[OFFSET] = 0
    cursor[ROWS] = row


@compiled("int64(uint8[::1], int64, int64, int64, int32[:,::1])")
def count_changes(buf: Bytes, start: int, end: int, kind: int, table: npt.NDArray[np.int32]) -> int:
    """Return the number of changes in a row event, or minus a status."""
    width = table.shape[1]
    if start < 0 or end > len(buf):
        return -TRUNCATED
    layout = np.zeros((width + 1, 4), dtype=np.int64)
    lines, bounds = _plan_columns(table, layout), np.empty(2 * width + 2, dtype=np.int64)
    source, plan, key, limit = pointer_to(buf), slots_of(lines), slots_of(bounds), len(buf)
    pos = _first_image(source, start, end, width, kind)
    if pos < 0:
        return pos
    changes = 0
    while pos < end:
        pos = _walk(plan, width, source, pos, end, limit, key)
        if pos >= 0 and kind == UPDATE:
            pos = _walk(plan, width, source, pos, end, limit, key)
        if pos < 0:
            return -TRUNCATED
        changes += 1
    return changes
