"""The compiled loops of values: base64 to bytes, two's complement to wide numbers, decimals in digits to numbers.

Each row is read between its two offsets and no further; a row that cannot be read is marked and gives nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.kernels.pointers import Bytes, compiled

Offsets = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

READ: Final = "Array(uint8, 1, 'C', readonly=True), int64[::1]"
FINE, BAD, UNUSUAL = range(3)
"""What `state` holds of decimals in digits: read; no such number; a number, perhaps, that only a slower way can read."""
PAD: Final = 64
"""Code of the padding character in an alphabet; larger codes are invalid characters."""
_MOST_DIGITS = 18
_ZERO, _NINE, _POINT, _PLUS, _MINUS, _E, _SMALL_E = 48, 57, 46, 43, 45, 69, 101


@compiled(f"int64({READ}, uint8[::1], uint8[::1], int32[::1], uint8[::1])")
def decode_base64(data: Bytes, offsets: Offsets, alphabet: Bytes, out: Bytes, out_offsets: Places, bad: Bytes) -> int:
    """Bytes of base64, one after the other, to `out`; how many rows are bad."""
    count, to = 0, 0
    out_offsets[0] = 0
    for row in range(len(bad)):
        at, end = offsets[row], offsets[row + 1]
        start = to
        wrong = (end - at) & 3 != 0
        while at < end and not wrong:
            first, second, third, fourth = alphabet[data[at]], alphabet[data[at + 1]], alphabet[data[at + 2]], alphabet[data[at + 3]]
            at += 4
            if (first | second | third | fourth) < PAD:
                out[to] = first << 2 | second >> 4
                out[to + 1] = (second & 15) << 4 | third >> 2
                out[to + 2] = (third & 3) << 6 | fourth
                to += 3
            elif at == end and first < PAD and second < PAD and fourth == PAD and third <= PAD:
                out[to] = first << 2 | second >> 4
                to += 1
                if third < PAD:
                    out[to] = (second & 15) << 4 | third >> 2
                    to += 1
            else:
                wrong = True
        if wrong:
            bad[row] = 1
            count += 1
            to = start
        out_offsets[row + 1] = to
    return count


@compiled(f"void({READ}, int64, uint8[::1], uint8[::1])")
def extend_numbers(data: Bytes, offsets: Offsets, width: int, valid: Bytes, out: Bytes) -> None:
    """Numbers with their most significant byte first to ones of one width with their least significant byte first; none is wider."""
    for row in range(len(valid)):
        to = row * width
        if not valid[row]:
            for place in range(width):
                out[to + place] = 0
            continue
        start, at = offsets[row], offsets[row + 1]
        fill = np.uint8(255) if data[start] & 128 else np.uint8(0)
        for place in range(width):
            at -= 1
            out[to + place] = data[at] if at >= start else fill


@compiled(f"int64({READ}, int64, int64, int64[::1], uint8[::1])")
def read_digits(data: Bytes, offsets: Offsets, before: int, scale: int, out: Offsets, state: Bytes) -> int:
    """Decimals of at most `before` digits, a point and `scale` digits, as so many of their smallest units; how many are unusual."""
    unusual = 0
    for row in range(len(state)):
        at, end = offsets[row], offsets[row + 1]
        negative = at < end and data[at] == _MINUS
        if at < end and (data[at] == _MINUS or data[at] == _PLUS):
            at += 1
        while at < end and data[at] == _ZERO:
            at += 1
        value, whole, fraction, digits = 0, 0, 0, 0
        first = offsets[row] + (1 if negative or (end > offsets[row] and data[offsets[row]] == _PLUS) else 0)
        digits = at - first
        while at < end and _ZERO <= data[at] <= _NINE and whole <= _MOST_DIGITS:
            value = value * 10 + (data[at] - _ZERO)
            whole += 1
            digits += 1
            at += 1
        if at < end and data[at] == _POINT:
            at += 1
            # A point must be followed by a digit.
            if at == end:
                digits = 0
            while at < end and _ZERO <= data[at] <= _NINE and fraction < scale and whole + fraction <= _MOST_DIGITS:
                value = value * 10 + (data[at] - _ZERO)
                fraction += 1
                digits += 1
                at += 1
            while at < end and data[at] == _ZERO and fraction == scale:
                digits += 1
                at += 1
        out[row] = 0
        if (at < end and (data[at] == _E or data[at] == _SMALL_E)) or (whole + scale > _MOST_DIGITS and at <= end and digits > 0):
            state[row] = UNUSUAL
            unusual += 1
        elif at < end or digits == 0 or whole > before:
            state[row] = BAD
        else:
            for _ in range(scale - fraction):
                value *= 10
            out[row] = -value if negative else value
            state[row] = FINE
    return unusual
