"""The compiled decoder of Avro's binary encoding: runs a schema's program over bodies, into columns.

Invariant: nothing is read outside of a body (or the program's constants), and nothing is written past a buffer. Every length and number of
the input is checked against the remaining bytes, and every write against the remaining room. A record that cannot be decoded leaves only
its reason: its values in nested levels are removed, and its row is NULL. When a buffer is full, the kernel stops before that record and
resumes after the buffer has grown. The work per record is bounded by its bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kafka.avro import opcodes as o
from headrace.kernels.memory import Slots, copy_run, load_int32, slots_of, store_int8, store_int32, store_int64
from headrace.kernels.pointers import Pointer, as_signed, byte_at, compiled, load_word, pointer_at, stack_slots
from headrace.kernels.utf8 import is_text

Numbers = npt.NDArray[np.int64]

_NO_ROOM = -100
_ONE, _SEVEN, _LOW = np.uint64(1), np.uint64(7), np.uint64(0x7F)


@compiled("Tuple((int64, int64))(CPointer(uint8), int64, int64)", inlined=True)
def _number(buf: Pointer, pos: int, end: int) -> tuple[int, int]:
    """Return the position after the number at `pos`, and the number; or a negative error code."""
    if pos >= end:
        return -o.TRUNCATED, 0
    byte = byte_at(buf, pos)
    pos += 1
    if byte < 0x80:
        return pos, byte >> 1 ^ -(byte & 1)
    word, shift = np.uint64(byte) & _LOW, np.uint64(7)
    while True:
        if pos >= end:
            return -o.TRUNCATED, 0
        byte = byte_at(buf, pos)
        pos += 1
        if shift == np.uint64(63) and byte > 1:
            return -o.NUMBER_TOO_LONG, 0
        word |= (np.uint64(byte) & _LOW) << shift
        if byte < 0x80:
            break
        shift += _SEVEN
    return pos, as_signed(word >> _ONE) ^ -as_signed(word & _ONE)


@compiled("void(CPointer(uint8), int64)", inlined=True)
def _clear_bit(bits: Pointer, at: int) -> None:
    store_int8(bits, at >> 3, byte_at(bits, at >> 3) & ~(1 << (at & 7)))


@compiled("void(CPointer(int64), int64, int64)", inlined=True)
def _put_null(cols: Slots, line: int, at: int) -> None:
    """No value in a column at `at`."""
    cols[line + o.C_NULLS] += 1
    _clear_bit(pointer_at(cols[line + o.C_VALIDITY]), at)
    width = cols[line + o.C_WIDTH]
    values = pointer_at(cols[line + o.C_VALUES])
    if width < 0:
        store_int32(values, 4 * at + 4, load_int32(values, 4 * at))
    else:
        for i in range(width):
            store_int8(values, at * width + i, 0)


@compiled("int64(CPointer(int64), int64, int64, CPointer(uint8), int64, int64, int64, CPointer(int64))", inlined=True)
def _put_run(cols: Slots, line: int, at: int, buf: Pointer, pos: int, size: int, limit: int, state: Slots) -> int:
    """The bytes buf[pos:pos+size) as a value; 0, or _NO_ROOM."""
    values = pointer_at(cols[line + o.C_VALUES])
    to = load_int32(values, 4 * at)
    room = cols[line + o.C_DATA_SIZE]
    if size > room - to:
        state[o.STATUS], state[o.ROOM_OF], state[o.ROOM_NEEDED] = o.DATA_FULL, line // o.C_LINE, to + size
        return _NO_ROOM
    copy_run(buf, pos, limit, pointer_at(cols[line + o.C_DATA]), to, room, size)
    store_int32(values, 4 * at + 4, to + size)
    return 0


@compiled("int64(CPointer(int64), int64, int64, int64, int64)", inlined=True)
def _put_number(cols: Slots, op: int, line: int, at: int, number: int) -> int:
    """Store a number in the step's form; return 0, or a negative error code."""
    values = pointer_at(cols[line + o.C_VALUES])
    if op == o.LONG:
        store_int64(values, 8 * at, number)
        return 0
    if op != o.LONG_AS_FLOAT and op != o.LONG_AS_DOUBLE and (number < -0x80000000 or number > 0x7FFFFFFF):
        return -o.INT_TOO_LARGE
    if op == o.INT:
        store_int32(values, 4 * at, number)
    elif op == o.INT_AS_LONG:
        store_int64(values, 8 * at, number)
    elif op == o.INT_AS_FLOAT or op == o.LONG_AS_FLOAT:
        store_int32(values, 4 * at, int(np.float32(number).view(np.int32)))
    else:
        store_int64(values, 8 * at, int(np.float64(number).view(np.int64)))
    return 0


@compiled("int64(CPointer(int64), int64, int64, int64, CPointer(uint8), int64)", inlined=True)
def _put_float(cols: Slots, op: int, line: int, at: int, buf: Pointer, pos: int) -> int:
    """Store a float or double whose bytes are complete; return the position after it."""
    values = pointer_at(cols[line + o.C_VALUES])
    if op == o.DOUBLE:
        store_int64(values, 8 * at, as_signed(load_word(buf, pos)))
        return pos + 8
    bits = load_int32(buf, pos)
    if op == o.FLOAT:
        store_int32(values, 4 * at, bits)
    else:
        store_int64(values, 8 * at, int(np.float64(np.int32(bits).view(np.float32)).view(np.int64)))
    return pos + 4


@compiled("int64(CPointer(int64), int64, CPointer(int64), CPointer(int64), int64, int64, CPointer(int64), int64, CPointer(int64))")
def _run(program: Slots, step: int, cols: Slots, levels: Slots, constants: int, start: int, body: Slots, tables: int, state: Slots) -> int:
    """Run the program from a step; return the position after the value, a negative error code, or _NO_ROOM.

    body: address, end and limit of the input. Constants and tables are addresses.
    """
    left = stack_slots(64)
    message, pos = pointer_at(body[0]), start
    buf, end, limit = message, body[1], body[2]
    kept = empty = 0
    while True:
        base = step * o.STEP
        op, a, b = program[base], program[base + 1], program[base + 2]
        line = a * o.C_LINE
        step += 1
        if op <= o.LONG_AS_DOUBLE:
            if op == o.END:
                return pos
            pos, number = _number(buf, pos, end)
            if pos < 0:
                return pos
            wrong = _put_number(cols, op, line, levels[cols[line] * o.L_LINE], number)
            if wrong < 0:
                return wrong
        elif op == o.STRING or op == o.BYTES:
            pos, number = _number(buf, pos, end)
            if pos < 0:
                return pos
            if number < 0 or number > end - pos:
                return -o.BAD_LENGTH
            if op == o.STRING and not is_text(buf, pos, pos + number):
                return -o.BAD_TEXT
            if _put_run(cols, line, levels[cols[line] * o.L_LINE], buf, pos, number, limit, state) < 0:
                return _NO_ROOM
            pos += number
        elif op == o.BRANCH:
            pos, number = _number(buf, pos, end)
            if pos < 0:
                return pos
            if number < 0 or number >= a:
                return -o.BAD_BRANCH
            step = program[(step + number) * o.STEP + 1]
        elif op == o.NULL:
            _put_null(cols, line, levels[cols[line] * o.L_LINE])
        elif op == o.JUMP:
            step = a
        elif op <= o.DOUBLE:
            if end - pos < (8 if op == o.DOUBLE else 4):
                return -o.TRUNCATED
            pos = _put_float(cols, op, line, levels[cols[line] * o.L_LINE], buf, pos)
        elif op == o.BOOLEAN:
            if pos >= end:
                return -o.TRUNCATED
            if byte_at(buf, pos) > 1:
                return -o.BAD_BOOLEAN
            store_int8(pointer_at(cols[line + o.C_VALUES]), levels[cols[line] * o.L_LINE], byte_at(buf, pos))
            pos += 1
        elif op == o.FIXED:
            if end - pos < b:
                return -o.TRUNCATED
            at, room = levels[cols[line] * o.L_LINE], levels[cols[line] * o.L_LINE + o.L_ROOM]
            copy_run(buf, pos, limit, pointer_at(cols[line + o.C_VALUES]), at * b, room * b, b)
            pos += b
        elif op == o.ENUM:
            pos, number = _number(buf, pos, end)
            if pos < 0:
                return pos
            if number < 0 or number >= program[base + 3]:
                return -o.BAD_SYMBOL
            symbol = load_int32(pointer_at(tables), 4 * (b + number))
            if symbol < 0:
                return -o.BAD_SYMBOL
            store_int32(pointer_at(cols[line + o.C_VALUES]), 4 * levels[cols[line] * o.L_LINE], symbol)
        elif op == o.LOOP or op == o.ITEM:
            depth = program[base + 3]
            items = cols[line + o.C_ITEMS] if a >= 0 else -1
            if op == o.LOOP:
                left[depth] = 0
            else:
                if items >= 0:
                    levels[items * o.L_LINE] += 1
                base = b * o.STEP
                step = b + 1
            if left[depth] == 0:
                pos, number = _number(buf, pos, end)
                if pos < 0:
                    return pos
                if number < 0:
                    # A block with a count of items and bytes; the bytes are for skipping it.
                    number = -number
                    pos, size = _number(buf, pos, end)
                    if pos < 0:
                        return pos
                    if size < 0 or size > end - pos:
                        return -o.BAD_LENGTH
                if number == 0:
                    step = program[base + 2]
                    if items >= 0:
                        level = cols[line] * o.L_LINE
                        store_int32(pointer_at(cols[line + o.C_VALUES]), 4 * levels[level] + 4, levels[items * o.L_LINE])
                    continue
                least = program[step * o.STEP + 1]
                if least > 0:
                    if number < 0 or number > (end - pos) // least:
                        return -o.BAD_LENGTH
                else:
                    empty += number
                    if number < 0 or number > o.MOST_EMPTY_ITEMS or empty > o.MOST_EMPTY_ITEMS:
                        return -o.TOO_MANY_ITEMS
                left[depth] = number
            left[depth] -= 1
            if items >= 0 and levels[items * o.L_LINE] >= levels[items * o.L_LINE + o.L_ROOM]:
                state[o.STATUS], state[o.ROOM_OF], state[o.ROOM_NEEDED] = o.LEVEL_FULL, items, levels[items * o.L_LINE] + 1
                return _NO_ROOM
            # Past LEAST.
            step += 1
        elif op == o.SKIP_NUMBER:
            pos, number = _number(buf, pos, end)
            if pos < 0:
                return pos
        elif op == o.SKIP_RUN:
            pos, number = _number(buf, pos, end)
            if pos < 0:
                return pos
            if number < 0 or number > end - pos:
                return -o.BAD_LENGTH
            pos += number
        elif op == o.SKIP_BYTES:
            if end - pos < a:
                return -o.TRUNCATED
            pos += a
        elif op == o.CONSTANT:
            kept = pos
            buf, pos, end, limit = pointer_at(constants), a, b, b
        elif op == o.MESSAGE:
            buf, pos, end, limit = message, kept, body[1], body[2]
        else:
            return -int(a)


@compiled("void(CPointer(int64), int64, CPointer(int64), CPointer(int64))")
def _take_back(cols: Slots, columns: int, levels: Slots, before: Slots) -> None:
    """Restore nested levels and their validity bits to the state before the record."""
    for c in range(columns):
        line = c * o.C_LINE
        level = cols[line]
        if level == 0:
            continue
        bits = pointer_at(cols[line + o.C_VALIDITY])
        for at in range(before[level], min(levels[level * o.L_LINE] + 1, levels[level * o.L_LINE + o.L_ROOM])):
            store_int8(bits, at >> 3, byte_at(bits, at >> 3) | 1 << (at & 7))
    # Levels are put back by the caller, who knows how many there are.


@compiled("void(CPointer(int64), int64, CPointer(int64), int64)")
def _make_null(program: Slots, step: int, cols: Slots, row: int) -> None:
    """Nothing in all columns of level 0; the steps from `step` on name them."""
    while program[step * o.STEP] != o.END:
        _put_null(cols, program[step * o.STEP + 1] * o.C_LINE, row)
        step += 1


@compiled(
    "void(int64[::1], int64, int64, int64, int64, int64, int64, int64, int64[::1], int64[::1], int64, int64,"
    " int32[::1], int64[::1], int64[::1])"
)
def decode_rows(
    program: Numbers,
    null_step: int,
    data: int,
    offsets: int,
    validity: int,
    first: int,
    rows: int,
    skip: int,
    cols: Numbers,
    levels: Numbers,
    constants: int,
    tables: int,
    reasons: npt.NDArray[np.int32],
    before: Numbers,
    state: Numbers,
) -> None:
    """Decode bodies state[AT] to `rows`; state[STATUS] is the reason for stopping.

    data, offsets, validity: addresses of an Arrow array's buffers (validity 0: no NULLs), `first` its offset; skip: bytes before each
    body. null_step: the part of the program that makes a row NULL. reasons: the error code of each row.
    """
    steps, columns, counts, kept, note = slots_of(program), slots_of(cols), slots_of(levels), slots_of(before), slots_of(state)
    bounds, known = pointer_at(offsets), pointer_at(validity)
    body = stack_slots(3)
    body[0], body[2] = data, load_int32(bounds, 4 * (first + rows))
    number_of_levels = len(levels) // o.L_LINE
    for row in range(state[o.AT], rows):
        counts[0] = row
        reason = o.ABSENT
        at = first + row
        if validity == 0 or byte_at(known, at >> 3) >> (at & 7) & 1:
            for level in range(number_of_levels):
                kept[level] = counts[level * o.L_LINE]
            start = load_int32(bounds, 4 * at) + skip
            body[1] = load_int32(bounds, 4 * at + 4)
            done = -o.TRUNCATED if start > body[1] else _run(steps, 0, columns, counts, constants, start, body, tables, note)
            reason = o.FINE
            if done < 0:
                reason = -done
            elif done != body[1]:
                reason = o.LEFT_OVER
            if reason != o.FINE:
                _take_back(columns, len(cols) // o.C_LINE, counts, kept)
                for level in range(number_of_levels):
                    counts[level * o.L_LINE] = kept[level]
            if done == _NO_ROOM:
                state[o.AT] = row
                return
        if reason != o.FINE:
            _make_null(steps, null_step, columns, row)
        reasons[row] = reason
    counts[0] = rows
    state[o.AT], state[o.STATUS] = rows, o.DONE
