"""Doubles as MySQL prints them inside JSON, compiled.

Invariant: the digits are the shortest decimal that parses to the same double, and among those the closest to it (as in Python's `repr`).
The layout is the server's: its `my_gcvt`, followed by `.0` where nothing else marks a floating-point number. So the text is a pure function
of the 64 bits, equal to the server's own, and a replay writes the same bytes.

The digits come from Schubfach (R. Giulietti): the interval of decimals that round to the double is scaled by a power of ten held in 128
bits, rounded to odd, and at most four candidates are compared. It needs no loop, no big integers and no allocation at run time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.pointers import MALFORMED, NO_ROOM, Bytes, Pointer, as_signed, compiled, leading_zeros, mul_high, pointer_to

DOUBLE_ROOM = 34
"""The widest text: a sign, `0.`, 14 zeros and 17 digits."""

_U64 = np.uint64
_MIN_POWER, _MAX_POWER = -292, 324
_FRACTION_MASK = _U64((1 << 52) - 1)
_HIDDEN_BIT = _U64(1 << 52)
_PLAIN_PLACES = 15
"""Up to this many places before the point, and one zero fewer after it, the server writes no exponent."""


def _scaled_powers_of_ten() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """High and low words of 10**k scaled to exactly 128 bits and rounded up, for every k that a double can need."""
    high, low = [], []
    for k in range(_MIN_POWER, _MAX_POWER + 1):
        power = 10 ** abs(k)
        if k >= 0:
            surplus = power.bit_length() - 128
            scaled = power << -surplus if surplus <= 0 else -(-power >> surplus)
        else:
            scaled = -(-(1 << (power.bit_length() + 127)) // power)
        high.append(scaled >> 64)
        low.append(scaled & (1 << 64) - 1)
    return np.array(high, np.uint64), np.array(low, np.uint64)


_POWER_HIGH, _POWER_LOW = _scaled_powers_of_ten()
_PAIRS = np.frombuffer(b"".join(b"%02d" % n for n in range(100)), np.uint8)
_TEN_TO = np.array([10**n for n in range(20)], np.uint64)


@compiled("uint64(uint64, uint64, uint64)", inlined=True)
def _round_to_odd(high: np.uint64, low: np.uint64, factor: np.uint64) -> np.uint64:
    """Return `factor * power / 2**128`, with the last bit set if anything was cut off."""
    middle = high * factor + mul_high(low, factor)
    carry = _U64(middle < high * factor)
    return (mul_high(high, factor) + carry) | _U64(middle > _U64(1))


@compiled("Tuple((uint64, int64))(uint64)", inlined=True)
def shortest_digits(bits: np.uint64) -> tuple[np.uint64, int]:
    """Return `(digits, exponent)`: `digits * 10**exponent` is the shortest decimal for the finite, non-zero double of these bits, without
    sign.
    """
    fraction = bits & _FRACTION_MASK
    biased = as_signed((bits >> _U64(52)) & _U64(0x7FF))
    significand = fraction | _HIDDEN_BIT if biased != 0 else fraction
    binary_exponent = (biased if biased != 0 else 1) - 1075
    # Just above a power of two the next double below is only half as far away as the next one above.
    uneven = fraction == _U64(0) and biased > 1
    exponent = (binary_exponent * 1262611 - (524031 if uneven else 0)) >> 22
    shift = _U64(binary_exponent + ((-exponent * 1741647) >> 19) + 1)
    high = _POWER_HIGH[-exponent - _MIN_POWER]
    low = _POWER_LOW[-exponent - _MIN_POWER]
    centre = significand << _U64(2)
    odd = significand & _U64(1)
    lower = _round_to_odd(high, low, (centre - (_U64(1) if uneven else _U64(2))) << shift) + odd
    upper = _round_to_odd(high, low, (centre + _U64(2)) << shift) - odd
    scaled = _round_to_odd(high, low, centre << shift)
    whole = scaled >> _U64(2)
    if whole >= _U64(10):
        tens = whole // _U64(10)
        down_fits = lower <= tens * _U64(40)
        up_fits = tens * _U64(40) + _U64(40) <= upper
        if down_fits != up_fits:
            return tens + _U64(up_fits), exponent + 1
    down_fits = lower <= whole << _U64(2)
    up_fits = (whole << _U64(2)) + _U64(4) <= upper
    if down_fits != up_fits:
        return whole + _U64(up_fits), exponent
    middle = (whole << _U64(2)) + _U64(2)
    return whole + _U64(scaled > middle or (scaled == middle and (whole & _U64(1)) != _U64(0))), exponent


@compiled("int64(uint64)", inlined=True)
def count_digits(value: np.uint64) -> int:
    """Return the number of decimal digits of `value`; 1 for zero."""
    guess = ((64 - leading_zeros(value | _U64(1))) * 1233) >> 12
    return max(guess + (1 if value >= _TEN_TO[guess] else 0), 1)


@compiled("void(uint64, int64, CPointer(uint8), int64)", inlined=True)
def put_digits(value: np.uint64, count: int, out: Pointer, pos: int) -> None:
    """Write exactly `count` digits of `value` at `pos`. The caller has checked the room."""
    at = pos + count
    while at - pos >= 2:
        rest = value // _U64(100)
        pair = as_signed(value - rest * _U64(100)) * 2
        at -= 2
        out[at] = _PAIRS[pair]
        out[at + 1] = _PAIRS[pair + 1]
        value = rest
    if at > pos:
        out[pos] = 48 + as_signed(value % _U64(10))


@compiled("Tuple((uint64, int64))(uint64, int64)", inlined=True)
def _strip_zeros(digits: np.uint64, exponent: int) -> tuple[np.uint64, int]:
    rest = digits // _U64(100_000_000)
    if rest * _U64(100_000_000) == digits:
        digits, exponent = rest, exponent + 8
    rest = digits // _U64(100)
    while rest * _U64(100) == digits:
        digits, exponent = rest, exponent + 2
        rest = digits // _U64(100)
    rest = digits // _U64(10)
    if rest * _U64(10) == digits:
        digits, exponent = rest, exponent + 1
    return digits, exponent


@compiled("int64(uint64, int64, int64, CPointer(uint8), int64)", inlined=True)
def _put_plain(digits: np.uint64, count: int, places: int, out: Pointer, pos: int) -> int:
    """Write without an exponent; `places` digits precede the point (if negative: zeros after it)."""
    if places <= 0:
        out[pos] = 48
        out[pos + 1] = 46
        for i in range(-places):
            out[pos + 2 + i] = 48
        put_digits(digits, count, out, pos + 2 - places)
        return pos + 2 - places + count
    if places >= count:
        put_digits(digits, count, out, pos)
        for i in range(count, places):
            out[pos + i] = 48
        out[pos + places] = 46
        out[pos + places + 1] = 48
        return pos + places + 2
    put_digits(digits, count, out, pos + 1)
    for i in range(places):
        out[pos + i] = out[pos + i + 1]
    out[pos + places] = 46
    return pos + count + 1


@compiled("int64(uint64, int64, int64, CPointer(uint8), int64)")
def _put_scientific(digits: np.uint64, count: int, exponent: int, out: Pointer, pos: int) -> int:
    """Write one digit, the rest after a point, and the exponent without plus sign or leading zeros."""
    put_digits(digits, count, out, pos + 1)
    out[pos] = out[pos + 1]
    out[pos + 1] = 46
    pos += count + 1 if count > 1 else 1
    out[pos] = 101
    pos += 1
    if exponent < 0:
        out[pos] = 45
        pos += 1
    width = count_digits(_U64(abs(exponent)))
    put_digits(_U64(abs(exponent)), width, out, pos)
    return pos + width


@compiled("int64(uint64, CPointer(uint8), int64)")
def put_double(bits: np.uint64, out: Pointer, pos: int) -> int:
    """Write the double of these bits where `DOUBLE_ROOM` bytes are free; `MALFORMED` if JSON cannot hold it."""
    if (bits >> _U64(52)) & _U64(0x7FF) == _U64(0x7FF):
        return MALFORMED
    if bits >> _U64(63):
        out[pos] = 45
        pos += 1
    if bits << _U64(1) == _U64(0):
        return _put_plain(_U64(0), 1, 1, out, pos)
    digits, exponent = shortest_digits(bits)
    digits, exponent = _strip_zeros(digits, exponent)
    count = count_digits(digits)
    places = count + exponent
    if places > -_PLAIN_PLACES and (places <= _PLAIN_PLACES or count > places):
        return _put_plain(digits, count, places, out, pos)
    return _put_scientific(digits, count, places - 1, out, pos)


@compiled("int64(float64, uint8[::1], int64)")
def write_double(value: float, out: Bytes, pos: int) -> int:
    """Write `value` at `pos` and return the position after it.

    Return `NO_ROOM` if fewer than `DOUBLE_ROOM` bytes are left, `MALFORMED` for infinities and NaN, which the server cannot store in JSON.
    """
    if pos < 0 or len(out) - pos < DOUBLE_ROOM:
        return NO_ROOM
    return put_double(np.float64(value).view(np.uint64), pointer_to(out), pos)
