"""JSON's grammar, compiled: where a value ends, or why it is invalid.

Every byte is checked against the grammar and UTF-8. Texts that Python's parser rejects are rejected, and also unpaired surrogates (which
no database text holds) and values nested deeper than 512 levels. Functions take the start of a value, which lies before the limit, and
return its end or a negative error code.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.memory import Slots
from headrace.kernels.pointers import Pointer, as_signed, byte_at, compiled, load_word, stack_slots, trailing_zeros

ABSENT, NULL, TRUE, FALSE, WHOLE, NUMBER, TEXT, ESCAPED, OBJECT, ARRAY = range(10)
"""The JSON type at a position: none; a literal; an integer; a number with a fraction or an exponent; a text without and with escapes; a
container."""

OK, SYNTAX, CUT, CONTROL, ESCAPE, SURROGATE, UTF8, TWICE, DEEP, TRAILING, NO_OBJECT = range(0, -11, -1)
"""What is wrong with a text."""

_MAX_DEPTH = 512
"""How deep values that are passed over may be: a bit of a word for each level."""

_U64 = np.uint64
_ONES = _U64(0x0101010101010101)
_HIGHS = _U64(0x8080808080808080)
_QUOTES = _U64(0x2222222222222222)
_BACKSLASHES = _U64(0x5C5C5C5C5C5C5C5C)
_SPACES = _U64(0x2020202020202020)


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def after_space(buf: Pointer, at: int, limit: int) -> int:
    while at < limit:
        byte = byte_at(buf, at)
        if byte not in (32, 10, 13, 9):
            break
        at += 1
    return at


@compiled("int64(int64)", inlined=True)
def hex_digit(byte: int) -> int:
    """Return the value of a hexadecimal digit; -1 for another character."""
    if 48 <= byte <= 57:
        return byte - 48
    low = byte | 32
    return low - 87 if 97 <= low <= 102 else -1


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def four_digits(buf: Pointer, at: int, limit: int) -> int:
    """The number of four hexadecimal digits; -1 if they are not that."""
    if at + 4 > limit:
        return -1
    value = 0
    for i in range(4):
        digit = hex_digit(byte_at(buf, at + i))
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


@compiled("int64(CPointer(uint8), int64, int64)")
def _after_escape(buf: Pointer, at: int, limit: int) -> int:
    """Where an escape that begins at `at` ends, or what is wrong with it."""
    if at + 1 >= limit:
        return CUT
    byte = byte_at(buf, at + 1)
    if byte == 117:
        unit = four_digits(buf, at + 2, limit)
        if unit < 0:
            return ESCAPE
        if 0xDC00 <= unit <= 0xDFFF:
            return SURROGATE
        if 0xD800 <= unit <= 0xDBFF:
            if at + 8 > limit or byte_at(buf, at + 6) != 92 or byte_at(buf, at + 7) != 117:
                return SURROGATE
            low = four_digits(buf, at + 8, limit)
            return at + 12 if 0xDC00 <= low <= 0xDFFF else SURROGATE
        return at + 6
    # " \ / b f n r t
    if byte in (34, 92, 47, 98, 102, 110, 114, 116):
        return at + 2
    return ESCAPE


@compiled("int64(CPointer(uint8), int64, int64)")
def _after_character(buf: Pointer, at: int, limit: int) -> int:
    """Where a character of two to four bytes ends, or UTF8 if it is none."""
    lead = byte_at(buf, at)
    size = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0
    if size == 0 or at + size > limit:
        return UTF8
    second = byte_at(buf, at + 1)
    least = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
    most = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
    if second < least or second > most:
        return UTF8
    for i in range(2, size):
        if byte_at(buf, at + i) & 0xC0 != 0x80:
            return UTF8
    return at + size


@compiled("int64(CPointer(uint8), int64, int64, CPointer(int64))")
def text_end(buf: Pointer, at: int, limit: int, kind: Slots) -> int:
    """Return the position of the closing quote of a text whose first character is at `at`; its type goes to `kind[0]`."""
    kind[0] = TEXT
    while True:
        while at + 8 <= limit:
            word = load_word(buf, at)
            quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
            found = ((quotes - _ONES) & ~quotes | (backslashes - _ONES) & ~backslashes | (word - _SPACES) & ~word | word) & _HIGHS
            if found != _U64(0):
                at += trailing_zeros(found) >> 3
                break
            at += 8
        if at >= limit:
            return CUT
        byte = byte_at(buf, at)
        if byte == 34:
            return at
        if byte == 92:
            kind[0] = ESCAPED
            at = _after_escape(buf, at, limit)
        elif byte < 32:
            return CONTROL
        elif byte < 128:
            at += 1
        else:
            at = _after_character(buf, at, limit)
        if at < 0:
            return at


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _after_digits(buf: Pointer, at: int, limit: int) -> int:
    while at < limit and 48 <= byte_at(buf, at) <= 57:
        at += 1
    return at


@compiled("int64(CPointer(uint8), int64, int64, CPointer(int64))")
def _after_number(buf: Pointer, at: int, limit: int, kind: Slots) -> int:
    kind[0] = WHOLE
    if byte_at(buf, at) == 45:
        at += 1
    first, at = at, _after_digits(buf, at, limit)
    if at == first:
        return CUT if at >= limit else SYNTAX
    if byte_at(buf, first) == 48 and at > first + 1:
        return SYNTAX
    if at < limit and byte_at(buf, at) == 46:
        kind[0] = NUMBER
        first, at = at + 1, _after_digits(buf, at + 1, limit)
        if at == first:
            return CUT if at >= limit else SYNTAX
    if at < limit and byte_at(buf, at) | 32 == 101:
        kind[0] = NUMBER
        at += 1
        if at < limit and (byte_at(buf, at) == 43 or byte_at(buf, at) == 45):
            at += 1
        first, at = at, _after_digits(buf, at, limit)
        if at == first:
            return CUT if at >= limit else SYNTAX
    return at


@compiled("int64(CPointer(uint8), int64, int64, CPointer(int64))")
def _after_literal(buf: Pointer, at: int, limit: int, kind: Slots) -> int:
    first = byte_at(buf, at)
    size = 5 if first == 102 else 4
    if at + size > limit:
        return CUT
    word = as_signed(load_word(buf, at) & _U64(0xFFFFFFFF)) if at + 8 <= limit else 0
    if at + 8 > limit:
        for i in range(4):
            word |= byte_at(buf, at + i) << 8 * i
    if word == 0x6C6C756E:
        kind[0] = NULL
    elif word == 0x65757274:
        kind[0] = TRUE
    elif word == 0x736C6166 and byte_at(buf, at + 4) == 101:
        kind[0] = FALSE
    else:
        return SYNTAX
    return at + size


@compiled("int64(CPointer(uint8), int64, int64, CPointer(int64))", inlined=True)
def _after_scalar(buf: Pointer, at: int, limit: int, kind: Slots) -> int:
    """Where a value that is no container ends; `at` is before the limit."""
    byte = byte_at(buf, at)
    if byte == 34:
        at = text_end(buf, at + 1, limit, kind)
        return at + 1 if at > 0 else at
    if byte == 45 or 48 <= byte <= 57:
        return _after_number(buf, at, limit, kind)
    return _after_literal(buf, at, limit, kind)


@compiled("int64(CPointer(uint8), int64, int64, CPointer(int64))")
def _after_container(buf: Pointer, at: int, limit: int, kind: Slots) -> int:
    """Where an object or an array that begins at `at` ends."""
    objects = stack_slots(8)
    depth = 0
    opened = OBJECT if byte_at(buf, at) == 123 else ARRAY
    while True:
        # At the bracket that opens a container.
        is_object = byte_at(buf, at) == 123
        if depth >= _MAX_DEPTH:
            return DEEP
        slot, bit = depth >> 6, depth & 63
        if bit == 0:
            objects[slot] = 0
        mask = 1 << bit
        objects[slot] = objects[slot] | mask if is_object else objects[slot] & ~mask
        depth += 1
        at = after_space(buf, at + 1, limit)
        if at >= limit:
            return CUT
        closing = byte_at(buf, at) == (125 if is_object else 93)
        while True:
            if closing:
                depth -= 1
                at += 1
                if depth == 0:
                    kind[0] = opened
                    return at
            else:
                if objects[depth - 1 >> 6] >> (depth - 1 & 63) & 1:
                    if byte_at(buf, at) != 34:
                        return SYNTAX
                    at = text_end(buf, at + 1, limit, kind)
                    if at < 0:
                        return at
                    at = after_space(buf, at + 1, limit)
                    if at >= limit:
                        return CUT
                    if byte_at(buf, at) != 58:
                        return SYNTAX
                    at = after_space(buf, at + 1, limit)
                    if at >= limit:
                        return CUT
                byte = byte_at(buf, at)
                if byte in (123, 91):
                    break
                at = _after_scalar(buf, at, limit, kind)
                if at < 0:
                    return at
            at = after_space(buf, at, limit)
            if at >= limit:
                return CUT
            byte = byte_at(buf, at)
            is_object = objects[depth - 1 >> 6] >> (depth - 1 & 63) & 1 != 0
            if byte == 44:
                at = after_space(buf, at + 1, limit)
                if at >= limit:
                    return CUT
                closing = False
            elif byte == (125 if is_object else 93):
                closing = True
            else:
                return SYNTAX


@compiled("int64(CPointer(uint8), int64, int64, CPointer(int64))", inlined=True)
def after_value(buf: Pointer, at: int, limit: int, kind: Slots) -> int:
    byte = byte_at(buf, at)
    if byte in (123, 91):
        return _after_container(buf, at, limit, kind)
    return _after_scalar(buf, at, limit, kind)


@compiled("int64(CPointer(uint8), int64, int64, CPointer(uint8), int64)")
def unescape(buf: Pointer, at: int, end: int, out: Pointer, to: int) -> int:
    """Write a checked text without its escapes to `out`, which has room for the escaped form; return its end there."""
    while at < end:
        byte = byte_at(buf, at)
        if byte != 92:
            out[to] = byte
            at, to = at + 1, to + 1
            continue
        byte = byte_at(buf, at + 1)
        if byte != 117:
            plain = 8 if byte == 98 else 12 if byte == 102 else 10 if byte == 110 else 13 if byte == 114 else 9 if byte == 116 else byte
            out[to] = plain
            at, to = at + 2, to + 1
            continue
        code = four_digits(buf, at + 2, end)
        at += 6
        if 0xD800 <= code <= 0xDBFF:
            code = 0x10000 + (code - 0xD800 << 10) + (four_digits(buf, at + 2, end) - 0xDC00)
            at += 6
        if code < 0x80:
            out[to] = code
            to += 1
        elif code < 0x800:
            out[to] = 0xC0 | code >> 6
            out[to + 1] = 0x80 | code & 63
            to += 2
        elif code < 0x10000:
            out[to] = 0xE0 | code >> 12
            out[to + 1] = 0x80 | code >> 6 & 63
            out[to + 2] = 0x80 | code & 63
            to += 3
        else:
            out[to] = 0xF0 | code >> 18
            out[to + 1] = 0x80 | code >> 12 & 63
            out[to + 2] = 0x80 | code >> 6 & 63
            out[to + 3] = 0x80 | code & 63
            to += 4
    return to


@compiled("boolean(CPointer(uint8), int64, CPointer(uint8), int64, int64, int64, int64)", inlined=True)
def same_name(buf: Pointer, at: int, names: Pointer, name: int, size: int, limit: int, names_limit: int) -> bool:
    done = 0
    while done < size:
        if at + done + 8 <= limit and name + done + 8 <= names_limit:
            rest = size - done
            differing = load_word(buf, at + done) ^ load_word(names, name + done)
            if rest < 8:
                return bool(differing << _U64(64 - 8 * rest) == _U64(0))
            if differing != _U64(0):
                return False
            done += 8
        else:
            if byte_at(buf, at + done) != byte_at(names, name + done):
                return False
            done += 1
    return True
