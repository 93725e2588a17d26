"""Compiled arithmetic on column values, shared by the two row decoders (binary log images and protocol rows).

All functions are pure: bytes in, numbers out. Callers have checked that the value's bytes exist, and pass the end of the buffer.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.memory import load_be, load_be_high, load_int32, load_le, store_int8, store_int16, store_int32, store_int64
from headrace.kernels.pointers import Pointer, as_signed, byte_at, compiled, load_word, mul_high, store_word

NO_DATE = -(1 << 62)
"""Returned by the date functions for an invalid date (zero dates, zero parts, the 31st of February) and for an invalid time."""
HALT_AT_ZERO, NULL_FOR_ZERO, EPOCH_FOR_ZERO = 0, 1, 2
"""What a decoder does with an invalid date."""

_U64 = np.uint64
_DIGITS_TO_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
_POWERS = np.array([10**n for n in range(20)], dtype=np.uint64)
_DAYS_BEFORE_MONTH = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 0, 0, 0], dtype=np.int64)
_DAYS_IN_MONTH = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0], dtype=np.int64)
_UNITS = np.array([1_000_000, 100_000, 10_000, 1_000, 100, 10, 1], dtype=np.int64)
"""Microseconds per unit, by number of fractional digits."""
_OLD_DATETIME_BYTES = np.array([8, 6, 6, 7, 7, 7, 8], dtype=np.int64)
_OLD_TIMESTAMP_BYTES = np.array([4, 5, 5, 6, 6, 7, 7], dtype=np.int64)
_OLD_TIME_BYTES = np.array([3, 4, 4, 5, 5, 5, 6], dtype=np.int64)
_OLD_TIME_ZERO = 3_020_400_000_000
"""The offset that MariaDB adds to a time with fractions, in microseconds: one second more than the greatest time."""
_FRACTION_SCALE = np.array([0, 10_000, 10_000, 100, 100, 1, 1], dtype=np.int64)

SMALL_DIGITS = 18
"""Decimals of this many digits fit one word."""
_MAX_DIGITS = 38
"""Digits that fit each two words of an Arrow decimal."""


@compiled("int64(int64, int64, int64)", inlined=True)
def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar, or NO_DATE; for years from 0 on."""
    if month < 1 or month > 12 or day < 1 or day > _DAYS_IN_MONTH[_U64(month)] or year > 9999:
        return NO_DATE
    leap = year & 3 == 0 and (_U64(year) % _U64(100) != _U64(0) or year & 15 == 0)
    if month == 2 and day == 29 and not leap:
        return NO_DATE
    # Counted from the year -400, so that no quotient is negative.
    before = _U64(year + 399)
    leap_days = (before >> _U64(2)) - before // _U64(100) + before // _U64(400)
    days = as_signed(before * _U64(365) + leap_days) + int(_DAYS_BEFORE_MONTH[_U64(month)]) + day - 1
    if month > 2 and leap:
        days += 1
    return days - (719162 + 146097)


@compiled("int64(int64, int64, int64, int64, int64, int64, int64)", inlined=True)
def micros_from_civil(year: int, month: int, day: int, hour: int, minute: int, second: int, micros: int) -> int:
    """Return microseconds since 1970-01-01 00:00, or NO_DATE."""
    days = days_from_civil(year, month, day)
    if days == NO_DATE or hour > 23 or minute > 59 or second > 59 or micros > 999_999:
        return NO_DATE
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros


@compiled("int64(int64)", inlined=True)
def fraction_bytes(digits: int) -> int:
    """Return the bytes that store this many fractional digits of a second."""
    return (digits + 1) >> 1


@compiled("int64(uint64, int64, int64)", inlined=True)
def _fraction(word: np.uint64, whole: int, digits: int) -> int:
    """Return the microseconds from the bytes after the first `whole` of a word whose high bytes are a temporal value."""
    size = fraction_bytes(digits)
    if size == 0:
        return 0
    return as_signed(word << _U64(8 * whole) >> _U64(64 - 8 * size)) * int(_FRACTION_SCALE[_U64(digits)])


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def read_date(buf: Pointer, pos: int, limit: int) -> int:
    packed = load_le(buf, pos, 3, limit)
    return days_from_civil(packed >> 9, (packed >> 5) & 15, packed & 31)


@compiled("int64(CPointer(uint8), int64, int64, int64)", inlined=True)
def read_datetime2(buf: Pointer, pos: int, digits: int, limit: int) -> int:
    word = load_be_high(buf, pos, 5 + fraction_bytes(digits), limit)
    packed = as_signed(word >> _U64(24)) - 0x8000000000
    if packed < 0:
        return NO_DATE
    year_month = _U64(packed >> 22)
    year = year_month // _U64(13)
    return micros_from_civil(
        as_signed(year),
        as_signed(year_month - year * _U64(13)),
        (packed >> 17) & 31,
        (packed >> 12) & 31,
        (packed >> 6) & 63,
        packed & 63,
        _fraction(word, 5, digits),
    )


@compiled("int64(CPointer(uint8), int64, int64, int64)", inlined=True)
def read_timestamp2(buf: Pointer, pos: int, digits: int, limit: int) -> int:
    word = load_be_high(buf, pos, 4 + fraction_bytes(digits), limit)
    fraction = _fraction(word, 4, digits)
    micros = as_signed(word >> _U64(32)) * 1_000_000 + fraction
    # MariaDB accepts fractions of the epoch's first second; only the epoch itself is the zero date.
    return NO_DATE if micros == 0 or fraction > 999_999 else micros


@compiled("int64(CPointer(uint8), int64, int64, int64)", inlined=True)
def read_time2(buf: Pointer, pos: int, digits: int, limit: int) -> int:
    """Return microseconds, or NO_DATE if the value is no time."""
    size = fraction_bytes(digits)
    packed = load_be(buf, pos, 3 + size, limit) - (0x800000 << (8 * size))
    sign = 1
    if packed < 0:
        sign, packed = -1, -packed
    whole = packed >> (8 * size)
    micros = (packed & ((1 << (8 * size)) - 1)) * int(_FRACTION_SCALE[_U64(digits)])
    hour, minute, second = whole >> 12, (whole >> 6) & 63, whole & 63
    if hour > 838 or minute > 59 or second > 59 or micros > 999_999:
        return NO_DATE
    return sign * ((hour * 3600 + minute * 60 + second) * 1_000_000 + micros)


@compiled("int64(int64, int64)")
def old_size(whole: int, digits: int) -> int:
    """Return the bytes of an old temporal value with fractional digits; `whole`: the bytes without (8: datetime, 4: timestamp, 3: time)."""
    if digits == 0:
        return whole
    if whole == 8:
        return int(_OLD_DATETIME_BYTES[_U64(digits)])
    return int(_OLD_TIMESTAMP_BYTES[_U64(digits)]) if whole == 4 else int(_OLD_TIME_BYTES[_U64(digits)])


@compiled("int64(CPointer(uint8), int64, int64, int64)")
def read_old_datetime(buf: Pointer, pos: int, digits: int, limit: int) -> int:
    """Read the number YYYYMMDDhhmmss; with fractions, MariaDB's own packing, big-endian."""
    if digits == 0:
        number = load_le(buf, pos, 8, limit)
        if number < 0:
            return NO_DATE
        day, clock = number // 1_000_000, number % 1_000_000
        return micros_from_civil(day // 10_000, day // 100 % 100, day % 100, clock // 10_000, clock // 100 % 100, clock % 100, 0)
    unit = int(_UNITS[_U64(digits)])
    packed = load_be(buf, pos, int(_OLD_DATETIME_BYTES[_U64(digits)]), limit)
    if packed < 0:
        return NO_DATE
    per_second = 1_000_000 // unit
    seconds = packed // per_second
    day = seconds // 86_400
    clock = seconds % 86_400
    month = day // 32
    return micros_from_civil(month // 13, month % 13, day % 32, clock // 3600, clock // 60 % 60, clock % 60, (packed % per_second) * unit)


@compiled("int64(CPointer(uint8), int64, int64, int64)")
def read_old_timestamp(buf: Pointer, pos: int, digits: int, limit: int) -> int:
    """Read seconds since 1970; with fractions, big-endian, followed by units of the last digit."""
    if digits == 0:
        micros = load_le(buf, pos, 4, limit) * 1_000_000
    else:
        more = int(_OLD_TIMESTAMP_BYTES[_U64(digits)]) - 4
        micros = load_be(buf, pos, 4, limit) * 1_000_000 + load_be(buf, pos + 4, more, limit) * int(_UNITS[_U64(digits)])
    return NO_DATE if micros == 0 else micros


@compiled("int64(CPointer(uint8), int64, int64, int64)")
def read_old_time(buf: Pointer, pos: int, digits: int, limit: int) -> int:
    """Read the signed number hhmmss; with fractions, units of the last digit above a zero point, big-endian."""
    if digits == 0:
        number = load_le(buf, pos, 3, limit)
        sign = 1
        if number & 0x800000:
            sign, number = -1, 0x1000000 - number
        if number // 10_000 > 838 or number // 100 % 100 > 59 or number % 100 > 59:
            return NO_DATE
        return sign * (number // 10_000 * 3600 + number // 100 % 100 * 60 + number % 100) * 1_000_000
    unit = int(_UNITS[_U64(digits)])
    micros = load_be(buf, pos, int(_OLD_TIME_BYTES[_U64(digits)]), limit) * unit - _OLD_TIME_ZERO
    return micros if -_OLD_TIME_ZERO < micros < _OLD_TIME_ZERO else NO_DATE


@compiled("int64(int64, int64)")
def decimal_size(precision: int, scale: int) -> int:
    """Return the bytes of a packed decimal."""
    whole = precision - scale
    return whole // 9 * 4 + int(_DIGITS_TO_BYTES[whole % 9]) + scale // 9 * 4 + int(_DIGITS_TO_BYTES[scale % 9])


@compiled("void(CPointer(uint8), int64, int64, uint64, uint64)", inlined=True)
def _multiply_add(out: Pointer, at: int, words: int, factor: np.uint64, addend: np.uint64) -> None:
    """Multiply the integer of `words` words at out[at] by a factor and add an addend."""
    carry = addend
    for i in range(words):
        word = load_word(out, at + 8 * i)
        low = word * factor
        total = low + carry
        carry = mul_high(word, factor) + (_U64(1) if total < low else _U64(0))
        store_word(out, at + 8 * i, total)


@compiled("void(CPointer(uint8), int64, int64)", inlined=True)
def _negate(out: Pointer, at: int, words: int) -> None:
    carry = _U64(1)
    for i in range(words):
        word = ~load_word(out, at + 8 * i) + carry
        if word != _U64(0):
            carry = _U64(0)
        store_word(out, at + 8 * i, word)


@compiled("void(CPointer(uint8), int64, int64, int64)", inlined=True)
def store_number(out: Pointer, at: int, words: int, number: int) -> None:
    """Store a 64-bit number as an Arrow decimal of `words` words at out[at]."""
    store_int64(out, at, number)
    for i in range(1, words):
        store_int64(out, at + 8 * i, number >> 63)


@compiled("void(CPointer(uint8), int64, int64, int64, int64)", inlined=True)
def store(out: Pointer, values: int, row: int, width: int, number: int) -> None:
    """Store a number as value `row` of a column of 1, 2, 4 or 8 bytes per value."""
    at = values + row * width
    if width == 8:
        store_int64(out, at, number)
    elif width == 4:
        store_int32(out, at, number)
    elif width == 2:
        store_int16(out, at, number)
    else:
        store_int8(out, at, number)


@compiled("void(CPointer(uint8), int64, int64, int64, int64)", inlined=True)
def put_null(out: Pointer, validity: int, values: int, width: int, row: int) -> None:
    """Store NULL as value `row`: clear its validity bit (an arena starts with every bit set), write zeros or an empty value."""
    at = validity + (row >> 3)
    store_int8(out, at, byte_at(out, at) & ~(1 << (row & 7)))
    if width == 0:
        store_int32(out, values + 4 * row + 4, load_int32(out, values + 4 * row))
    elif width <= 8:
        store(out, values, row, width, 0)
    else:
        store_number(out, values + row * width, width >> 3, 0)


@compiled("uint64(CPointer(uint8), int64, int64, uint64, int64)", inlined=True)
def _group(buf: Pointer, pos: int, size: int, flip: np.uint64, limit: int) -> np.uint64:
    """Return a group of digits of a packed decimal: 1 to 4 bytes, big-endian."""
    return (load_be_high(buf, pos, size, limit) ^ flip) >> _U64(64 - 8 * size)


@compiled("boolean(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64, int64)")
def store_packed_decimal(buf: Pointer, pos: int, precision: int, scale: int, out: Pointer, at: int, words: int, limit: int) -> bool:
    """Store MySQL's packed decimal at buf[pos] as an Arrow decimal (unscaled integer of `words` words) at out[at]; false if invalid."""
    whole = _U64(precision - scale)
    odd_whole, odd_scale = whole % _U64(9), _U64(scale) % _U64(9)
    groups = as_signed(whole // _U64(9) + _U64(scale) // _U64(9))
    negative = buf[pos] & 0x80 == 0
    flip = _U64(0xFFFFFFFFFFFFFFFF) if negative else _U64(0)
    # Only the first byte's highest bit is the sign. Later groups have no sign bit.
    first_flip = flip ^ _U64(1 << 63)
    small = precision <= SMALL_DIGITS
    if not small:
        store_number(out, at, words, 0)
    total = _U64(0)
    sound = True
    if odd_whole != _U64(0):
        size = int(_DIGITS_TO_BYTES[odd_whole])
        total = _group(buf, pos, size, first_flip, limit)
        if total >= _POWERS[odd_whole]:
            sound = False
        first_flip = flip
        pos += size
        if not small:
            store_int64(out, at, as_signed(total))
    for _ in range(groups):
        group = _group(buf, pos, 4, first_flip, limit)
        first_flip = flip
        pos += 4
        if group >= _U64(1_000_000_000):
            sound = False
        if small:
            total = total * _U64(1_000_000_000) + group
        else:
            _multiply_add(out, at, words, _U64(1_000_000_000), group)
    if odd_scale != _U64(0):
        group = _group(buf, pos, int(_DIGITS_TO_BYTES[odd_scale]), first_flip, limit)
        if group >= _POWERS[odd_scale]:
            sound = False
        if small:
            total = total * _POWERS[odd_scale] + group
        else:
            _multiply_add(out, at, words, _POWERS[odd_scale], group)
    if small:
        number = as_signed(total)
        store_number(out, at, words, -number if negative else number)
    elif negative:
        _negate(out, at, words)
    return sound


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64)")
def store_text_decimal(buf: Pointer, pos: int, end: int, scale: int, out: Pointer, at: int, words: int) -> int:
    """Store a decimal written in ASCII as an Arrow decimal at out[at]; return 0, or -1 if the text is not such a number."""
    negative = False
    if pos < end and (buf[pos] == 45 or buf[pos] == 43):
        negative = buf[pos] == 45
        pos += 1
    total = _U64(0)
    # Digits in `total`, digits already in `out`, digits after the point.
    held, stored, after_point = 0, 0, -1
    while pos < end or after_point < scale:
        char = 48
        if pos < end:
            char = byte_at(buf, pos)
            pos += 1
            if char == 46 and after_point < 0:
                after_point = 0
                continue
            if char < 48 or char > 57:
                return -1
        elif after_point < 0:
            after_point = 0
            continue
        if after_point >= 0:
            after_point += 1
        if held == SMALL_DIGITS:
            if stored == 0:
                store_number(out, at, words, 0)
            _multiply_add(out, at, words, _POWERS[SMALL_DIGITS], total)
            stored += held
            total, held = _U64(0), 0
        total = total * _U64(10) + _U64(char - 48)
        if held > 0 or stored > 0 or char != 48:
            held += 1
    if after_point > scale or stored + held > _MAX_DIGITS * (words >> 1):
        return -1
    if stored == 0:
        number = as_signed(total)
        store_number(out, at, words, -number if negative else number)
        return 0
    _multiply_add(out, at, words, _POWERS[_U64(held)], total)
    if negative:
        _negate(out, at, words)
    return 0
