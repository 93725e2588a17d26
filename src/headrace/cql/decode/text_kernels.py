"""Compiled loops from serialized values to text: integers of any size, decimals, IP addresses.

The texts are those of Python's `str(int)`, `str(Decimal)` (also Java's `BigDecimal.toString`) and glibc's `inet_ntop`. Nothing is rounded,
and the text gives the same value back, including a decimal's scale. Callers provide room for the longest possible text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.cql.decode.split_kernels import CELLS, FINE, Numbers, load_length
from headrace.kernels.memory import Slots, copy_bytes, load_be, slots_of
from headrace.kernels.pointers import Bytes, Pointer, byte_at, compiled, pointer_to

_TEN = np.uint64(10)
_GROUP, _GROUP_DIGITS = 1_000_000_000, 9
_MASK_32 = 0xFFFFFFFF
_ZERO, _POINT, _MINUS, _PLUS, _E, _COLON, _SMALL_A = 48, 46, 45, 43, 69, 58, 97
_LEAST_PLAIN = -6
"""Decimals with more zeros than this after the point are written with an exponent."""
V4, V6 = 4, 16


@compiled("int64(CPointer(uint8), int64, uint64)", inlined=True)
def _put_before(text: Pointer, at: int, magnitude: np.uint64) -> int:
    """A number's digits, the last one before `at`; where the first one is."""
    while True:
        at -= 1
        text[at] = _ZERO + magnitude % _TEN
        magnitude //= _TEN
        if magnitude == np.uint64(0):
            return at


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _put(out: Pointer, to: int, number: int) -> int:
    """A number that is not negative, at `to`; where it ends."""
    digits, rest = 1, number // 10
    while rest:
        digits += 1
        rest //= 10
    _put_before(out, to + digits, np.uint64(number))
    return to + digits


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(int64), CPointer(uint8), int64)")
def _magnitude(data: Pointer, start: int, size: int, limit: int, limbs: Slots, text: Pointer, end: int) -> int:
    """The digits of a two's complement number without its sign, before text[end]; where the first one is."""
    negative = byte_at(data, start) >= 128
    if size <= 8:
        value = load_be(data, start, size, limit)
        if negative:
            # Bits above the number's own are ones too.
            value = -(value | (-1 << (8 * size))) if size < 8 else -value
        return _put_before(text, end, np.uint64(value))
    count = (size + 3) // 4
    for limb in range(count):
        last = start + size - 4 * limb
        word = 0
        for back in range(4, 0, -1):
            byte = byte_at(data, last - back) if last - back >= start else (255 if negative else 0)
            word = word << 8 | byte
        limbs[limb] = word
    if negative:
        carry = 1
        for limb in range(count):
            word = (~limbs[limb] & _MASK_32) + carry
            limbs[limb] = word & _MASK_32
            carry = word >> 32
    at = end
    while count:
        rest = 0
        for limb in range(count - 1, -1, -1):
            word = rest << 32 | limbs[limb]
            limbs[limb] = word // _GROUP
            rest = word % _GROUP
        for _ in range(_GROUP_DIGITS):
            at -= 1
            text[at] = _ZERO + rest % 10
            rest //= 10
        while count and limbs[count - 1] == 0:
            count -= 1
    while at < end - 1 and text[at] == _ZERO:
        at += 1
    return at


@compiled(f"int64({CELLS}, int64[::1], uint8[::1], uint8[::1], int32[::1], uint8[::1])")
def write_varints(
    data: Bytes, starts: Numbers, sizes: Numbers, room: Numbers, scratch: Bytes, out: Bytes, offsets: npt.NDArray[np.int32], valid: Bytes
) -> int:
    """Whole numbers as text."""
    buf, to_text, limbs, limit, end = pointer_to(data), pointer_to(scratch), slots_of(room), len(data), len(scratch)
    target, to = pointer_to(out), 0
    offsets[0] = 0
    for row in range(len(starts)):
        size = sizes[row]
        valid[row] = size > 0
        if size > 0:
            first = _magnitude(buf, starts[row], size, limit, limbs, to_text, end)
            if byte_at(buf, starts[row]) >= 128:
                target[to] = _MINUS
                to += 1
            copy_bytes(to_text, first, target, to, end - first)
            to += end - first
        offsets[row + 1] = to
    return FINE


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64)")
def _point(text: Pointer, first: int, end: int, scale: int, out: Pointer, to: int) -> int:
    """The digits text[first:end) with a point `scale` digits before their end, or with an exponent; where they end in `out`."""
    count = end - first
    left = count - scale
    plain = scale >= 0 and left > _LEAST_PLAIN
    dot = left if plain else 1
    if dot <= 0:
        out[to] = _ZERO
        out[to + 1] = _POINT
        to += 2
        for _ in range(-dot):
            out[to] = _ZERO
            to += 1
        copy_bytes(text, first, out, to, count)
        to += count
    else:
        copy_bytes(text, first, out, to, dot)
        to += dot
        if dot < count:
            out[to] = _POINT
            copy_bytes(text, first + dot, out, to + 1, count - dot)
            to += 1 + count - dot
    if left != dot:
        exponent = left - dot
        out[to] = _E
        out[to + 1] = _MINUS if exponent < 0 else _PLUS
        to = _put(out, to + 2, abs(exponent))
    return to


@compiled(f"int64({CELLS}, int64[::1], uint8[::1], uint8[::1], int32[::1], uint8[::1])")
def write_decimals(
    data: Bytes, starts: Numbers, sizes: Numbers, room: Numbers, scratch: Bytes, out: Bytes, offsets: npt.NDArray[np.int32], valid: Bytes
) -> int:
    """Decimals (a scale of four bytes, then a whole number) as text."""
    buf, to_text, limbs, limit, end = pointer_to(data), pointer_to(scratch), slots_of(room), len(data), len(scratch)
    target, to = pointer_to(out), 0
    offsets[0] = 0
    for row in range(len(starts)):
        size = sizes[row]
        valid[row] = size > 0
        if size > 0:
            if size <= 4:
                return row
            scale, start = load_length(buf, starts[row], limit), starts[row] + 4
            first = _magnitude(buf, start, size - 4, limit, limbs, to_text, end)
            if byte_at(buf, start) >= 128:
                target[to] = _MINUS
                to += 1
            to = _point(to_text, first, end, scale, target, to)
        offsets[row + 1] = to
    return FINE


@compiled("int64(CPointer(uint8), int64, CPointer(uint8), int64)", inlined=True)
def _put_v4(data: Pointer, at: int, out: Pointer, to: int) -> int:
    for part in range(4):
        if part:
            out[to] = _POINT
            to += 1
        to = _put(out, to, byte_at(data, at + part))
    return to


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _put_hex(out: Pointer, to: int, word: int) -> int:
    started = False
    for shift in range(12, -1, -4):
        digit = word >> shift & 15
        started = started or digit != 0 or shift == 0
        if started:
            out[to] = _ZERO + digit if digit < 10 else _SMALL_A + digit - 10
            to += 1
    return to


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def _word(data: Pointer, at: int) -> int:
    return byte_at(data, at) << 8 | byte_at(data, at + 1)


@compiled("int64(CPointer(uint8), int64, CPointer(uint8), int64)")
def _put_v6(data: Pointer, at: int, out: Pointer, to: int) -> int:
    """Write eight groups without the first longest run of zeros; embedded IPv4 addresses with dots."""
    best, longest, run = -1, 1, 0
    for group in range(8):
        run = run + 1 if _word(data, at + 2 * group) == 0 else 0
        if run > longest:
            best, longest = group - run + 1, run
    if best < 0:
        longest = 0
    last = 8
    if best == 0 and (longest == 6 or (longest == 5 and _word(data, at + 10) == 0xFFFF)):
        last = 6
    group = 0
    while group < last:
        if group == best:
            out[to] = _COLON
            to += 1
            group += longest
            if group >= last:
                out[to] = _COLON
                to += 1
            continue
        if group:
            out[to] = _COLON
            to += 1
        to = _put_hex(out, to, _word(data, at + 2 * group))
        group += 1
    if last == 6:
        if longest < 6:
            out[to] = _COLON
            to += 1
        to = _put_v4(data, at + 12, out, to)
    return to


@compiled(f"int64({CELLS}, uint8[::1], int32[::1], uint8[::1])")
def write_inets(data: Bytes, starts: Numbers, sizes: Numbers, out: Bytes, offsets: npt.NDArray[np.int32], valid: Bytes) -> int:
    """Addresses of four or sixteen bytes as text."""
    buf, target = pointer_to(data), pointer_to(out)
    to = 0
    offsets[0] = 0
    for row in range(len(starts)):
        size = sizes[row]
        valid[row] = size > 0
        if size == V4:
            to = _put_v4(buf, starts[row], target, to)
        elif size == V6:
            to = _put_v6(buf, starts[row], target, to)
        elif size > 0:
            return row
        offsets[row + 1] = to
    return FINE
