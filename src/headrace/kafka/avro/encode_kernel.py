"""The compiled encoder of Avro's binary encoding: runs a program over Arrow columns, row by row, into one buffer.

Invariant: nothing is written past the buffer's end. When a row does not fit, the kernel stops before it and resumes with a larger buffer.
Columns are read at the row's index; the caller has checked that they are long enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kafka.avro import opcodes as o
from headrace.kernels.memory import Slots, copy_run, load_int32, slots_of, store_int8
from headrace.kernels.pointers import Pointer, as_signed, byte_at, compiled, load_word, pointer_at, pointer_to

Numbers = npt.NDArray[np.int64]

_NO_ROOM, _MISSING = -1, -2
_LONGEST_NUMBER = 10
_ONE, _SEVEN, _LOW, _MORE = np.uint64(1), np.uint64(7), np.uint64(0x7F), np.uint64(0x80)


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _put_number(out: Pointer, at: int, number: int) -> int:
    """Write an int or a long; return the position after it. The caller has checked the room for the longest."""
    word = np.uint64(number << 1 ^ number >> 63)
    while word >= _MORE:
        store_int8(out, at, as_signed(word & _LOW | _MORE))
        word >>= _SEVEN
        at += 1
    store_int8(out, at, as_signed(word))
    return at + 1


@compiled("boolean(CPointer(int64), int64, int64)", inlined=True)
def _is_there(cols: Slots, line: int, at: int) -> bool:
    """Whether a column has a value; `at` counts from the start of its buffers."""
    if cols[line + o.C_VALIDITY] == 0:
        return True
    return bool(byte_at(pointer_at(cols[line + o.C_VALIDITY]), at >> 3) >> (at & 7) & 1)


@compiled("int64(CPointer(int64), CPointer(int64), int64, int64, CPointer(uint8), int64, int64, CPointer(int64))")
def _write(program: Slots, cols: Slots, index: int, constants: int, out: Pointer, at: int, room: int, state: Slots) -> int:
    """Write the row `index` at out[at:]; return the position after it, _NO_ROOM, or _MISSING if a required value is NULL."""
    step = tally = 0
    while True:
        base = step * o.STEP
        op, a, b = program[base], program[base + 1], program[base + 2]
        step += 1
        if op == o.W_CONSTANT:
            if b - a > room - at:
                return _NO_ROOM
            copy_run(pointer_at(constants), a, b, out, at, room, b - a)
            at += b - a
            continue
        if op == o.W_END:
            return at
        if op == o.W_JUMP:
            step = a
            continue
        if op == o.W_ENTRIES:
            if room - at < _LONGEST_NUMBER:
                return _NO_ROOM
            if a + tally == 0:
                step = b
            at = _put_number(out, at, a + tally)
            tally = 0
            continue
        if room - at < _LONGEST_NUMBER:
            return _NO_ROOM
        line = a * o.C_LINE
        # C_ITEMS is where the column's values begin in its buffers.
        row = index + cols[line + o.C_ITEMS]
        there = _is_there(cols, line, row)
        if op == o.W_IF_NULL:
            if not there:
                step = b
            continue
        if op == o.W_TALLY:
            tally += there
            continue
        if not there:
            state[o.ROOM_OF] = a
            return _MISSING
        values = pointer_at(cols[line + o.C_VALUES])
        if op == o.W_INT:
            at = _put_number(out, at, load_int32(values, 4 * row))
        elif op == o.W_LONG:
            at = _put_number(out, at, as_signed(load_word(values, 8 * row)))
        elif op == o.W_BYTES:
            start, end = load_int32(values, 4 * row), load_int32(values, 4 * row + 4)
            if end - start > room - at - _LONGEST_NUMBER:
                return _NO_ROOM
            at = _put_number(out, at, end - start)
            copy_run(pointer_at(cols[line + o.C_DATA]), start, cols[line + o.C_DATA_SIZE], out, at, room, end - start)
            at += end - start
        elif op == o.W_RAW:
            if b > room - at:
                return _NO_ROOM
            copy_run(values, row * b, cols[line + o.C_DATA_SIZE], out, at, room, b)
            at += b
        elif op == o.W_BOOLEAN:
            store_int8(out, at, byte_at(values, row >> 3) >> (row & 7) & 1)
            at += 1


@compiled("void(int64[::1], int64[::1], int64, int64, uint8[::1], int32[::1], int64[::1])")
def encode_rows(
    program: Numbers,
    cols: Numbers,
    constants: int,
    rows: int,
    out: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int32],
    state: Numbers,
) -> None:
    """Write rows state[AT] to `rows` one after the other; state[STATUS] is the reason for stopping."""
    steps, columns, note, target, room = slots_of(program), slots_of(cols), slots_of(state), pointer_to(out), len(out)
    for row in range(state[o.AT], rows):
        done = _write(steps, columns, row, constants, target, offsets[row], room, note)
        if done < 0:
            state[o.AT], state[o.STATUS] = row, o.DATA_FULL if done == _NO_ROOM else o.WRONG
            return
        offsets[row + 1] = done
    state[o.AT], state[o.STATUS] = rows, o.DONE
