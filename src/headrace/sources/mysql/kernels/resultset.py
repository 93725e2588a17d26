"""The compiled decoder of query results in the binary protocol: packets to an arena, for snapshots and verification.

Works on whatever part of the result has arrived: it stops at the first packet that is not all there, before the row that does not fit
the arena, or at a packet that is not a row. It checks every length against the packet's end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import Slots, copy_run, load_2, load_3, load_4, load_int32, load_le, slots_of, store_int32
from headrace.kernels.pointers import Bytes, Pointer, byte_at, compiled, pointer_to
from headrace.sources.mysql.kernels import values as v
from headrace.sources.mysql.kernels.arrow_arena import DATA, DATA_END, VALIDITY, VALUES

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
ZEROS = 4
"""From here on, per column, the number of invalid dates that were read as the epoch."""
MORE, FULL, NOT_A_ROW, SPLIT, MALFORMED, ZERO_DATE = range(6)


# Cells of a column's line in the plan, which joins description and layout.
_P_ENCODING, _P_A, _P_WIDTH, _P_VALIDITY, _P_VALUES, _P_DATA, _P_DATA_END = range(7)
_LINE = 7


@compiled("int64[::1](int32[:,::1], int64[:,::1])")
def _plan_columns(table: npt.NDArray[np.int32], layout: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    plan = np.zeros(table.shape[1] * _LINE, dtype=np.int64)
    for c in range(table.shape[1]):
        line = plan[c * _LINE : (c + 1) * _LINE]
        line[_P_ENCODING], line[_P_A] = table[ENCODING, c], table[A, c]
        line[_P_WIDTH] = int(table[B, c]) * (8 if table[ENCODING, c] == DECIMAL else 1)
        line[_P_VALIDITY], line[_P_VALUES] = layout[c, VALIDITY], layout[c, VALUES]
        line[_P_DATA], line[_P_DATA_END] = layout[c, DATA], layout[c, DATA_END]
    return plan


@compiled("Tuple((int64, int64))(CPointer(uint8), int64, int64, int64)", inlined=True)
def _length(raw: Pointer, pos: int, end: int, limit: int) -> tuple[int, int]:
    """Return the position after the length-encoded size at `pos`, or -1 if its bytes are incomplete, and that size."""
    first = byte_at(raw, pos) if pos < end else 255
    size, width = first, 0
    if first >= 251:
        if first < 252 or first > 254:
            return -1, 0
        width = 8 if first == 254 else first - 250
        if width > end - pos - 1:
            return -1, 0
        size = load_le(raw, pos + 1, width, limit)
    pos += 1 + width
    if size < 0 or size > end - pos:
        return -1, 0
    return pos, size


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _datetime(raw: Pointer, pos: int, size: int) -> int:
    """Return the microseconds of a date or datetime value of `size` bytes at pos, or NO_DATE."""
    if size < 4:
        return v.NO_DATE
    hour = minute = second = micros = 0
    if size >= 7:
        hour, minute, second = byte_at(raw, pos + 4), byte_at(raw, pos + 5), byte_at(raw, pos + 6)
    if size >= 11:
        micros = load_4(raw, pos + 7)
    return v.micros_from_civil(load_2(raw, pos), byte_at(raw, pos + 2), byte_at(raw, pos + 3), hour, minute, second, micros)


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _time(raw: Pointer, pos: int, size: int) -> int:
    """Return microseconds, or NO_DATE if the value is no time."""
    if size < 8:
        return 0
    hours = load_4(raw, pos + 1) * 24 + byte_at(raw, pos + 5)
    minute, second = byte_at(raw, pos + 6), byte_at(raw, pos + 7)
    fraction = load_4(raw, pos + 8) if size >= 12 else 0
    if hours > 838 or minute > 59 or second > 59 or fraction > 999_999:
        return v.NO_DATE
    micros = (hours * 3600 + minute * 60 + second) * 1_000_000 + fraction
    return -micros if byte_at(raw, pos) else micros


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _bits(raw: Pointer, pos: int, size: int) -> int:
    value = 0
    for i in range(size):
        value = value << 8 | byte_at(raw, pos + i)
    return value


@compiled("int64(CPointer(int64), int64, CPointer(uint8), int64, int64, int64, CPointer(uint8), int64)", inlined=True)
def _put_value(plan: Slots, line: int, raw: Pointer, pos: int, size: int, limit: int, out: Pointer, row: int) -> int:
    """Write raw[pos:pos+size) as value `row` of its column; return 0 or the status that stopped it."""
    encoding, values, width = int(plan[line + _P_ENCODING]), int(plan[line + _P_VALUES]), int(plan[line + _P_WIDTH])
    if encoding == FIXED:
        v.store(out, values, row, width, load_le(raw, pos, size, limit))
    elif encoding == TEXT:
        offsets, data, data_end = values + 4 * row, int(plan[line + _P_DATA]), int(plan[line + _P_DATA_END])
        at = data + load_int32(out, offsets)
        if size > data_end - at:
            return FULL
        copy_run(raw, pos, limit, out, at, data_end, size)
        store_int32(out, offsets + 4, at + size - data)
    elif encoding == DECIMAL:
        if v.store_text_decimal(raw, pos, pos + size, int(plan[line + _P_A]), out, values + row * width, width >> 3) < 0:
            return MALFORMED
    elif encoding == BITS:
        v.store(out, values, row, width, _bits(raw, pos, size))
    elif encoding == TIME:
        number = _time(raw, pos, size)
        if number == v.NO_DATE:
            return MALFORMED
        v.store(out, values, row, width, number)
    else:
        number = _datetime(raw, pos, size)
        if number == v.NO_DATE:
            return ZERO_DATE
        v.store(out, values, row, width, number // 86_400_000_000 if encoding == DATE else number)
    return 0


@compiled("int64(CPointer(int64), int64, CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64, CPointer(int64))")
def _write_row(
    plan: Slots, columns: int, raw: Pointer, pos: int, end: int, limit: int, out: Pointer, row: int, zero_dates: int, state: Slots
) -> int:
    """Write the row in raw[pos:end) (a whole payload) as row `row`; return 0 or minus the status that stopped it."""
    nulls = pos + 1
    pos = nulls + ((columns + 9) >> 3)
    if pos > end:
        return -MALFORMED
    for c in range(columns):
        line = c * _LINE
        if byte_at(raw, nulls + ((c + 2) >> 3)) >> ((c + 2) & 7) & 1:
            v.put_null(out, int(plan[line + _P_VALIDITY]), int(plan[line + _P_VALUES]), int(plan[line + _P_WIDTH]), row)
            continue
        if plan[line + _P_ENCODING] == FIXED:
            size = int(plan[line + _P_A])
            if size > end - pos:
                pos = -1
        else:
            pos, size = _length(raw, pos, end, limit)
        status = MALFORMED
        if pos >= 0:
            status = _put_value(plan, line, raw, pos, size, limit, out, row)
        if status == ZERO_DATE and zero_dates == v.EPOCH_FOR_ZERO:
            v.store(out, int(plan[line + _P_VALUES]), row, int(plan[line + _P_WIDTH]), 0)
            state[ZEROS + c] += 1
        elif status == ZERO_DATE and zero_dates == v.NULL_FOR_ZERO:
            v.put_null(out, int(plan[line + _P_VALIDITY]), int(plan[line + _P_VALUES]), int(plan[line + _P_WIDTH]), row)
        elif status != 0:
            state[ERROR_COLUMN] = c
            return -status
        pos += size
    return 0 if pos == end else -MALFORMED


@compiled(
    "int64(uint8[::1], int64, int64, int32[:,::1], int64, uint8[::1], int16[::1], int32[::1], int64[::1], int64[:,::1], uint64[::1],"
    " int64[::1], int64, int64[::1])"
)
def decode_row(
    raw: Bytes,
    pos: int,
    end: int,
    table: npt.NDArray[np.int32],
    row: int,
    a1: Bytes,
    a2: npt.NDArray[np.int16],
    a4: npt.NDArray[np.int32],
    a8: npt.NDArray[np.int64],
    layout: npt.NDArray[np.int64],
    limbs: npt.NDArray[np.uint64],
    scratch: npt.NDArray[np.int64],
    zero_dates: int,
    state: npt.NDArray[np.int64],
) -> int:
    """Write the row in raw[pos:end) (a whole payload) as row `row`; return 0 or minus the status that stopped it."""
    plan = _plan_columns(table, layout)
    return _write_row(slots_of(plan), table.shape[1], pointer_to(raw), pos, end, len(raw), pointer_to(a1), row, zero_dates, slots_of(state))


@compiled("void(uint8[::1], int64, int32[:,::1], int64, uint8[::1], int16[::1], int32[::1], int64[::1], int64[:,::1], int64, int64[::1])")
def decode_rows(
    raw: Bytes,
    end: int,
    table: npt.NDArray[np.int32],
    capacity: int,
    a1: Bytes,
    a2: npt.NDArray[np.int16],
    a4: npt.NDArray[np.int32],
    a8: npt.NDArray[np.int64],
    layout: npt.NDArray[np.int64],
    zero_dates: int,
    state: npt.NDArray[np.int64],
) -> None:
    """Decode the row packets in raw[state[AT]:end) after the state[ROWS] rows already in the arena."""
    lines = _plan_columns(table, layout)
    plan, source, out, note, limit = slots_of(lines), pointer_to(raw), pointer_to(a1), slots_of(state), len(raw)
    state[STATUS] = MORE
    while state[AT] + 4 <= end:
        pos = state[AT]
        size = load_3(source, pos)
        if size == 0xFFFFFF:
            state[STATUS] = SPLIT
            return
        if pos + 4 + size > end:
            return
        if size == 0 or byte_at(source, pos + 4) != 0:
            state[STATUS] = NOT_A_ROW
            return
        if state[ROWS] >= capacity:
            state[STATUS] = FULL
            return
        done = _write_row(plan, table.shape[1], source, pos + 4, pos + 4 + size, limit, out, state[ROWS], zero_dates, note)
        if done < 0:
            state[STATUS] = -done
            return
        state[ROWS] += 1
        state[AT] = pos + 4 + size
