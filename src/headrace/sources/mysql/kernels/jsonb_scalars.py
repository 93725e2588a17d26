"""Writes the scalars of MySQL's binary JSON as text: strings, numbers, and SQL values that JSON does not have.

Invariant: a `put_` function reads only buf[at:end), writes only where its caller's check or its own leaves room, and returns the position
after the text, `NO_ROOM` or `MALFORMED`. If its docstring says so, up to seven bytes after the text are scratch.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.pointers import MALFORMED, NO_ROOM, Pointer, as_signed, byte_at, compiled, load_word, store_word, trailing_zeros
from headrace.sources.mysql.kernels.doubles import count_digits, put_digits, put_double

LITERAL, INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = range(0x04, 0x0D)
OPAQUE = 0x0F
_FIELD_TIMESTAMP, _FIELD_DATE, _FIELD_TIME, _FIELD_DATETIME, _FIELD_DECIMAL = 7, 10, 11, 12, 246

_U64 = np.uint64
_EVERY = 0x0101010101010101
_HIGH_BITS, _LOW_SEVEN = _U64(_EVERY * 0x80), _U64(_EVERY * 0x7F)
_CONTROL_CARRY, _QUOTES, _BACKSLASHES = _U64(_EVERY * 0x60), _U64(_EVERY * 0x22), _U64(_EVERY * 0x5C)
_NULL, _TRUE, _FALSE = (_U64(int.from_bytes(word.ljust(8), "little")) for word in (b"null", b"true", b"false"))
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_BASE64_LINE = 76
_OPAQUE_PREFIX = np.frombuffer(b'"base64:type', np.uint8)
_SHORT_ESCAPES = np.zeros(128, np.uint8)
for _plain, _letter in zip(b'"\\\b\t\f\n\r', b'"\\btfnr', strict=True):
    _SHORT_ESCAPES[_plain] = _letter
_DECIMAL_DIGITS = 81
_DECIMAL_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
_TEN_TO = np.array([10**n for n in range(10)], np.int64)


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def read_offset(buf: Pointer, at: int, width: int) -> int:
    """Load an unsigned little-endian integer of 2 or 4 bytes."""
    low = byte_at(buf, at) | byte_at(buf, at + 1) << 8
    if width == 2:
        return low
    return low | byte_at(buf, at + 2) << 16 | byte_at(buf, at + 3) << 24


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def read_length(buf: Pointer, at: int, limit: int) -> int:
    """Return a length in groups of seven bits, times 8, plus the bytes it took; or `MALFORMED`."""
    length = 0
    for i in range(min(limit - at, 5)):
        length |= (byte_at(buf, at + i) & 0x7F) << (7 * i)
        if buf[at + i] < 0x80:
            return length << 3 | (i + 1)
    return MALFORMED


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _character_size(buf: Pointer, at: int, end: int) -> int:
    """Return the bytes of the UTF-8 character of two to four bytes at `at`; 0 if it is invalid."""
    lead = byte_at(buf, at)
    if lead < 0xC2 or lead > 0xF4 or end - at < 2:
        return 0
    second = byte_at(buf, at + 1)
    if second & 0xC0 != 0x80:
        return 0
    if lead < 0xE0:
        return 2
    if end - at < 3 or buf[at + 2] & 0xC0 != 0x80:
        return 0
    if lead < 0xF0:
        # Overlong forms and surrogates are not characters.
        return 0 if (lead == 0xE0 and second < 0xA0) or (lead == 0xED and second > 0x9F) else 3
    if end - at < 4 or buf[at + 3] & 0xC0 != 0x80:
        return 0
    return 0 if (lead == 0xF0 and second < 0x90) or (lead == 0xF4 and second > 0x8F) else 4


@compiled("uint64(uint64)", inlined=True)
def _marks(word: np.uint64) -> np.uint64:
    """Set the high bit of every byte that cannot be copied unchanged: control, quote, backslash, not ASCII."""
    low = word & _LOW_SEVEN
    plain = (low + _CONTROL_CARRY) & ((low ^ _QUOTES) + _LOW_SEVEN) & ((low ^ _BACKSLASHES) + _LOW_SEVEN)
    return (word | ~plain) & _HIGH_BITS


@compiled("int64(int64, CPointer(uint8), int64)")
def _put_escape(char: int, out: Pointer, pos: int) -> int:
    """Write an ASCII character, escaped if necessary. The caller has checked that six bytes are free."""
    letter = _SHORT_ESCAPES[char]
    if letter != 0:
        out[pos] = 92
        out[pos + 1] = letter
        return pos + 2
    if char >= 0x20:
        out[pos] = char
        return pos + 1
    out[pos] = 92
    out[pos + 1] = 117
    out[pos + 2] = 48
    out[pos + 3] = 48
    out[pos + 4] = _HEX[char >> 4]
    out[pos + 5] = _HEX[char & 15]
    return pos + 6


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64)", inlined=True)
def put_string(buf: Pointer, at: int, end: int, buf_end: int, out: Pointer, pos: int, out_end: int) -> int:
    """Write buf[at:end) in quotes, escaped as the server does: eight plain bytes at a time, then the byte that stopped them. Leaves
    scratch.
    """
    # A word may be read past the string but not past the buffer, and written past the text but not past the room.
    readable, room = buf_end - 8, out_end - 8
    if pos > room:
        return NO_ROOM
    out[pos] = 34
    pos += 1
    while at < end:
        if pos > room:
            return NO_ROOM
        if at <= readable:
            word = load_word(buf, at)
            store_word(out, pos, word)
            marks = _marks(word)
            run = trailing_zeros(marks) >> 3 if marks != _U64(0) else 8
            if run >= end - at:
                pos += end - at
                break
            at += run
            pos += run
            if run == 8:
                continue
            if pos > room:
                return NO_ROOM
        if buf[at] < 0x80:
            pos = _put_escape(byte_at(buf, at), out, pos)
            at += 1
            continue
        while at < end and buf[at] >= 0x80 and pos <= room:
            size = _character_size(buf, at, end)
            if size == 0:
                return MALFORMED
            for i in range(size):
                out[pos + i] = buf[at + i]
            at += size
            pos += size
    if pos >= out_end:
        return NO_ROOM
    out[pos] = 34
    return pos + 1


@compiled("int64(uint64, boolean, CPointer(uint8), int64)", inlined=True)
def put_integer(magnitude: np.uint64, negative: bool, out: Pointer, pos: int) -> int:
    if negative:
        out[pos] = 45
        pos += 1
    count = count_digits(magnitude)
    put_digits(magnitude, count, out, pos)
    return pos + count


@compiled("int64(int64, CPointer(uint8), int64)", inlined=True)
def put_signed(value: int, out: Pointer, pos: int) -> int:
    if value < 0:
        return put_integer(_U64(0) - _U64(value), True, out, pos)
    return put_integer(_U64(value), False, out, pos)


@compiled("int64(int64, int64, int64, int64, CPointer(uint8), int64)")
def _put_clock(hour: int, minute: int, second: int, micros: int, out: Pointer, pos: int) -> int:
    width = 3 if hour > 99 else 2
    put_digits(_U64(hour), width, out, pos)
    pos += width
    out[pos] = 58
    put_digits(_U64(minute), 2, out, pos + 1)
    out[pos + 3] = 58
    put_digits(_U64(second), 2, out, pos + 4)
    out[pos + 6] = 46
    put_digits(_U64(micros), 6, out, pos + 7)
    return pos + 13


@compiled("int64(int64, int64, CPointer(uint8), int64)")
def _put_temporal(field_type: int, packed: int, out: Pointer, pos: int) -> int:
    """Write a DATE, DATETIME, TIMESTAMP or TIME from the server's packed 64-bit form, in quotes."""
    negative = packed < 0
    if negative:
        packed = -packed
    micros, seconds = packed & 0xFFFFFF, packed >> 24
    hour, minute, second = (seconds & 0x1FFFF) >> 12, seconds >> 6 & 63, seconds & 63
    if packed < 0 or micros > 999_999 or minute > 59 or second > 59:
        return MALFORMED
    out[pos] = 34
    pos += 1
    if field_type == _FIELD_TIME:
        hour = seconds >> 12
        if hour > 838:
            return MALFORMED
        if negative:
            out[pos] = 45
            pos += 1
        pos = _put_clock(hour, minute, second, micros, out, pos)
    else:
        day, month = seconds >> 17 & 31, (seconds >> 22) % 13
        year = (seconds >> 22) // 13
        if negative or year > 9999 or hour > 23:
            return MALFORMED
        put_digits(_U64(year), 4, out, pos)
        out[pos + 4] = 45
        put_digits(_U64(month), 2, out, pos + 5)
        out[pos + 7] = 45
        put_digits(_U64(day), 2, out, pos + 8)
        pos += 10
        if field_type != _FIELD_DATE:
            out[pos] = 32
            pos = _put_clock(hour, minute, second, micros, out, pos + 1)
    out[pos] = 34
    return pos + 1


@compiled("int64(int64, CPointer(uint8), int64)", inlined=True)
def put_literal(code: int, out: Pointer, pos: int) -> int:
    """Write null, true or false where eight bytes are free; leaves scratch."""
    if code > 2:
        return MALFORMED
    store_word(out, pos, _NULL if code == 0 else (_TRUE if code == 1 else _FALSE))
    return pos + (5 if code == 2 else 4)


@compiled("int64(int64, CPointer(uint8), int64, CPointer(uint8), int64)", inlined=True)
def put_number(kind: int, buf: Pointer, at: int, out: Pointer, pos: int) -> int:
    """Write a number where `DOUBLE_ROOM` bytes are free. The caller has checked that its bytes exist."""
    if kind == INT16:
        return put_signed(int(np.int16(read_offset(buf, at, 2))), out, pos)
    if kind == UINT16:
        return put_signed(read_offset(buf, at, 2), out, pos)
    if kind == INT32:
        return put_signed(int(np.int32(read_offset(buf, at, 4))), out, pos)
    if kind == UINT32:
        return put_signed(read_offset(buf, at, 4), out, pos)
    if kind == INT64:
        return put_signed(as_signed(load_word(buf, at)), out, pos)
    if kind == UINT64:
        return put_integer(load_word(buf, at), False, out, pos)
    return put_double(load_word(buf, at), out, pos)


@compiled("int64(CPointer(uint8), int64, int64, int64, int64)")
def _decimal_group(buf: Pointer, at: int, width: int, flip: int, sign_bit: int) -> int:
    """Return a group of `width` decimal digits; `MALFORMED` if the number has more."""
    group = byte_at(buf, at) ^ flip ^ sign_bit
    for i in range(1, _DECIMAL_BYTES[width]):
        group = group << 8 | (byte_at(buf, at + i) ^ flip)
    return group if group < _TEN_TO[width] else MALFORMED


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64)")
def _put_packed(buf: Pointer, at: int, whole: int, scale: int, out: Pointer, pos: int) -> int:
    """Groups of nine digits take four bytes, the odd groups are outermost; the first bit is the sign, and negatives are inverted."""
    sign_bit, flip = 0x80, 0
    if buf[at] < 0x80:
        flip = 0xFF
        out[pos] = 45
        pos += 1
    start = pos
    left = whole + scale
    while left > 0:
        # Before the point the odd group comes first, after it last.
        if left > scale:
            width = (left - scale - 1) % 9 + 1
        else:
            width = min(left, 9)
            if left == scale:
                if pos == start:
                    out[pos] = 48
                    pos += 1
                out[pos] = 46
                pos += 1
        group = _decimal_group(buf, at, width, flip, sign_bit)
        if group < 0:
            return MALFORMED
        if pos > start:
            put_digits(_U64(group), width, out, pos)
            pos += width
        elif group > 0:
            pos = put_integer(_U64(group), False, out, pos)
        at += int(_DECIMAL_BYTES[width])
        left -= width
        sign_bit = 0
    if pos == start:
        out[pos] = 48
        pos += 1
    return pos


@compiled("int64(CPointer(uint8), int64, int64, CPointer(uint8), int64, int64)")
def _put_decimal(buf: Pointer, at: int, end: int, out: Pointer, pos: int, out_end: int) -> int:
    """Precision, scale and the packed digits."""
    if end - at < 3:
        return MALFORMED
    precision, scale = byte_at(buf, at), byte_at(buf, at + 1)
    at += 2
    # Results of arithmetic may have more digits than a column: as many as fit the server's nine words of nine.
    if precision < 1 or precision > _DECIMAL_DIGITS or scale > precision:
        return MALFORMED
    whole = precision - scale
    if end - at != whole // 9 * 4 + _DECIMAL_BYTES[whole % 9] + scale // 9 * 4 + _DECIMAL_BYTES[scale % 9]:
        return MALFORMED
    if out_end - pos < precision + 3:
        return NO_ROOM
    return _put_packed(buf, at, whole, scale, out, pos)


@compiled("int64(CPointer(uint8), int64, int64, CPointer(uint8), int64, int64)")
def _put_base64(buf: Pointer, at: int, end: int, out: Pointer, pos: int, out_end: int) -> int:
    """Base64 as the server breaks it: an escaped newline after every 76 characters that others follow."""
    quads = (end - at + 2) // 3
    if out_end - pos < quads * 4 + quads * 4 // _BASE64_LINE * 2:
        return NO_ROOM
    on_line = 0
    while at < end:
        if on_line == _BASE64_LINE:
            out[pos] = 92
            out[pos + 1] = 110
            pos += 2
            on_line = 0
        left = end - at
        triple = byte_at(buf, at) << 16
        if left > 1:
            triple |= byte_at(buf, at + 1) << 8
        if left > 2:
            triple |= byte_at(buf, at + 2)
        out[pos] = _BASE64[triple >> 18]
        out[pos + 1] = _BASE64[triple >> 12 & 63]
        out[pos + 2] = _BASE64[triple >> 6 & 63] if left > 1 else 61
        out[pos + 3] = _BASE64[triple & 63] if left > 2 else 61
        at += 3
        pos += 4
        on_line += 4
    return pos


@compiled("int64(int64, CPointer(uint8), int64, int64, CPointer(uint8), int64, int64)")
def put_opaque(field_type: int, buf: Pointer, at: int, end: int, out: Pointer, pos: int, out_end: int) -> int:
    """A value of an SQL type that JSON does not have, where 32 bytes are free."""
    if field_type == _FIELD_DECIMAL:
        return _put_decimal(buf, at, end, out, pos, out_end)
    if field_type == _FIELD_DATE or field_type == _FIELD_TIME or field_type == _FIELD_DATETIME or field_type == _FIELD_TIMESTAMP:
        return _put_temporal(field_type, as_signed(load_word(buf, at)), out, pos) if end - at == 8 else MALFORMED
    for i in range(len(_OPAQUE_PREFIX)):
        out[pos + i] = _OPAQUE_PREFIX[i]
    pos = put_integer(_U64(field_type), False, out, pos + len(_OPAQUE_PREFIX))
    out[pos] = 58
    pos = _put_base64(buf, at, end, out, pos + 1, out_end - 1)
    if pos < 0:
        return pos
    out[pos] = 34
    return pos + 1
