"""Compiled arithmetic on column values, shared by the two row decoders (binary log images and protocol rows).

Everything here is pure: bytes in, numbers out. Callers have checked that the bytes are there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NO_DATE = -(1 << 62)
"""What the date functions answer for a date that no calendar has: zero dates, zero parts, the 31st of February."""

_DIGITS_TO_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
_POWERS = np.array([10**n for n in range(10)], dtype=np.uint64)
_DAYS_BEFORE_MONTH = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334], dtype=np.int64)
_DAYS_IN_MONTH = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
_FRACTION_SCALE = np.array([0, 10_000, 10_000, 100, 100, 1, 1], dtype=np.int64)


@njit("i8(u1[::1], i8, i8)", cache=True, inline="always")
def read_le(buf, pos, size):  # type: ignore[no-untyped-def]
    """An unsigned little-endian integer of up to 8 bytes (as the 64 bits of an int64)."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buf[pos + i]) << (8 * i)
    return value


@njit("i8(u1[::1], i8, i8)", cache=True, inline="always")
def read_be(buf, pos, size):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(buf[pos + i])
    return value


@njit("i8(i8, i8, i8)", cache=True)
def days_from_civil(year, month, day):  # type: ignore[no-untyped-def]
    """Days since 1970-01-01 in the proleptic Gregorian calendar, or NO_DATE."""
    if month < 1 or month > 12 or day < 1 or day > _DAYS_IN_MONTH[month - 1]:
        return NO_DATE
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2 and day == 29 and not leap:
        return NO_DATE
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400
    days = before * 365 + leap_days + _DAYS_BEFORE_MONTH[month - 1] + day - 1
    if month > 2 and leap:
        days += 1
    return days - 719162


@njit("i8(i8, i8, i8, i8, i8, i8, i8)", cache=True)
def micros_from_civil(year, month, day, hour, minute, second, micros):  # type: ignore[no-untyped-def]
    days = days_from_civil(year, month, day)
    if days == NO_DATE:
        return NO_DATE
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros


@njit("i8(i8)", cache=True, inline="always")
def fraction_bytes(digits):  # type: ignore[no-untyped-def]
    return (digits + 1) // 2


@njit("i8(u1[::1], i8, i8)", cache=True)
def read_fraction(buf, pos, digits):  # type: ignore[no-untyped-def]
    """The fractional seconds of the new temporal types, as microseconds."""
    return read_be(buf, pos, fraction_bytes(digits)) * _FRACTION_SCALE[digits]


@njit("i8(u1[::1], i8)", cache=True)
def read_date(buf, pos):  # type: ignore[no-untyped-def]
    packed = read_le(buf, pos, 3)
    return days_from_civil(packed >> 9, (packed >> 5) & 15, packed & 31)


@njit("i8(u1[::1], i8, i8)", cache=True)
def read_datetime2(buf, pos, digits):  # type: ignore[no-untyped-def]
    packed = read_be(buf, pos, 5) - 0x8000000000
    year_month = packed >> 22
    return micros_from_civil(
        year_month // 13,
        year_month % 13,
        (packed >> 17) & 31,
        (packed >> 12) & 31,
        (packed >> 6) & 63,
        packed & 63,
        read_fraction(buf, pos + 5, digits),
    )


@njit("i8(u1[::1], i8, i8)", cache=True)
def read_timestamp2(buf, pos, digits):  # type: ignore[no-untyped-def]
    micros = read_be(buf, pos, 4) * 1_000_000 + read_fraction(buf, pos + 4, digits)
    # MariaDB takes the fractions of the epoch's first second; only the epoch itself is the zero date.
    return NO_DATE if micros == 0 else micros


@njit("i8(u1[::1], i8, i8)", cache=True)
def read_time2(buf, pos, digits):  # type: ignore[no-untyped-def]
    size = fraction_bytes(digits)
    packed = read_be(buf, pos, 3 + size) - (np.int64(0x800000) << (8 * size))
    sign = np.int64(1)
    if packed < 0:
        sign, packed = np.int64(-1), -packed
    whole = packed >> (8 * size)
    micros = (packed & ((np.int64(1) << (8 * size)) - 1)) * _FRACTION_SCALE[digits]
    seconds = ((whole >> 12) & 1023) * 3600 + ((whole >> 6) & 63) * 60 + (whole & 63)
    return sign * (seconds * 1_000_000 + micros)


@njit("i8(i8, i8)", cache=True)
def decimal_size(precision, scale):  # type: ignore[no-untyped-def]
    """How many bytes a packed decimal takes."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGITS_TO_BYTES[whole % 9] + scale // 9 * 4 + _DIGITS_TO_BYTES[scale % 9]


@njit("void(u8[::1], u8, u8)", cache=True, inline="always")
def _multiply_add(limbs, factor, addend):  # type: ignore[no-untyped-def]
    carry = addend
    for i in range(8):
        product = limbs[i] * factor + carry
        limbs[i] = product & np.uint64(0xFFFFFFFF)
        carry = product >> np.uint64(32)


@njit("void(u8[::1], b1, i8[::1], i8, i8)", cache=True)
def store_limbs(limbs, negative, out, slot, words):  # type: ignore[no-untyped-def]
    """Eight 32-bit limbs as a two's complement integer of `words` 64-bit words at out[slot]."""
    carry = np.uint64(1)
    for i in range(words):
        word = limbs[2 * i] | (limbs[2 * i + 1] << np.uint64(32))
        if negative:
            word = ~word + carry
            if word != 0:
                carry = np.uint64(0)
        out[slot + i] = np.int64(word)


@njit("void(u1[::1], i8, i8, i8, u8[::1], i8[::1], i8, i8)", cache=True)
def store_packed_decimal(buf, pos, precision, scale, limbs, out, slot, words):  # type: ignore[no-untyped-def]
    """MySQL's packed decimal at buf[pos] as an Arrow decimal (unscaled integer of `words` words) at out[slot]."""
    negative = (buf[pos] & 0x80) == 0
    flip = np.int64(0xFF) if negative else np.int64(0)
    small = precision <= 18
    total = np.int64(0)
    if not small:
        limbs[:] = 0
    first = True
    for part in range(2):
        digits = precision - scale if part == 0 else scale
        odd = digits % 9
        groups = digits // 9 + (1 if odd else 0)
        for g in range(groups):
            # The odd group comes first before the point and last after it.
            is_odd = odd != 0 and ((part == 0 and g == 0) or (part == 1 and g == groups - 1))
            width = odd if is_odd else np.int64(9)
            size = _DIGITS_TO_BYTES[width]
            group = np.int64(0)
            for i in range(size):
                byte = np.int64(buf[pos + i])
                if first:
                    byte ^= 0x80
                    first = False
                group = (group << 8) | (byte ^ flip)
            pos += size
            if small:
                total = total * np.int64(_POWERS[width]) + group
            else:
                _multiply_add(limbs, _POWERS[width], np.uint64(group))
    if small:
        if negative:
            total = -total
        out[slot] = total
        for i in range(1, words):
            out[slot + i] = total >> 63
    else:
        store_limbs(limbs, negative, out, slot, words)


@njit("i8(u1[::1], i8, i8, i8, u8[::1], i8[::1], i8, i8)", cache=True)
def store_text_decimal(buf, pos, end, scale, limbs, out, slot, words):  # type: ignore[no-untyped-def]
    """A decimal written in ASCII as an Arrow decimal at out[slot]; 0, or -1 if the text is not such a number."""
    negative = False
    if pos < end and (buf[pos] == 45 or buf[pos] == 43):
        negative = buf[pos] == 45
        pos += 1
    limbs[:] = 0
    after_point = np.int64(-1)
    while pos < end:
        char = np.int64(buf[pos])
        if char == 46 and after_point < 0:
            after_point = 0
        elif 48 <= char <= 57:
            _multiply_add(limbs, np.uint64(10), np.uint64(char - 48))
            if after_point >= 0:
                after_point += 1
        else:
            return -1
        pos += 1
    missing = scale - max(after_point, 0)
    if missing < 0:
        return -1
    for _ in range(missing):
        _multiply_add(limbs, np.uint64(10), np.uint64(0))
    store_limbs(limbs, negative, out, slot, words)
    return 0
