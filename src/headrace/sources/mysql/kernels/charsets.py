"""Compiled conversions of text columns from the servers' character sets to UTF-8. The values are adjacent in memory.

A set of one-byte and two-byte characters is a trie of pages of 256 entries. An entry is a character (its UTF-8 bytes in the low three
bytes, their number above them), the next page, or NO_CHARACTER. Where the servers print a question mark, so does this code: for a character
without a meaning, and for the first byte of an invalid sequence.

Invariant: no read leaves a value, and no write passes `out`, whose size the caller bounds: a byte of input becomes at most three bytes of
output, and eight spare bytes follow. A value's characters never use bytes of the next value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import store_int32
from headrace.kernels.pointers import Bytes, Pointer, byte_at, compiled, load_word, pointer_to, store_word
from headrace.kernels.utf8 import sequence_size

NO_CHARACTER = -1
"""A trie entry without a character. Smaller entries are pages: page p is -1 - p."""
LENGTH_SHIFT = 24
UCS2, UTF16, UTF16LE, UTF32 = range(4)
ALL_FINE, TOO_LARGE = -1, -2
"""Results of conversions, in addition to the index of a bad value. TOO_LARGE minus the index of the value that did not fit."""

# Arrow's buffers are read-only; writable arrays are accepted too.
_READ, _BOUNDS = "Array(uint8, 1, 'C', readonly=True)", "Array(int32, 1, 'C', readonly=True)"
_HIGH_BITS = np.uint64(0x8080808080808080)
_STRIDE = 256
_QUESTION = 0x3F
_LARGEST = (1 << 31) - 1
_BEYOND = 189_000
"""The number of gb18030's four-byte character for U+10000. A table covers the numbers below it."""


@compiled(f"boolean({_READ}, int64, int64)")
def is_ascii(data: Bytes, start: int, end: int) -> bool:
    """Whether no byte of data[start:end) has its high bit set."""
    source = pointer_to(data)
    while start + _STRIDE <= end:
        seen = np.uint64(0)
        # Enough words in a row for the compiler to load them as vectors.
        for i in range(0, _STRIDE, 8):
            seen |= load_word(source, start + i)
        if seen & _HIGH_BITS:
            return False
        start += _STRIDE
    while start < end:
        if byte_at(source, start) >= 0x80:
            return False
        start += 1
    return True


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _put_point(out: Pointer, at: int, point: int) -> int:
    """Write a code point as UTF-8 at out[at:]; return the position after it. May write up to three bytes behind it."""
    if point < 0x80:
        store_int32(out, at, point)
        return at + 1
    if point < 0x800:
        store_int32(out, at, 0x80C0 | point >> 6 | (point & 63) << 8)
        return at + 2
    if point < 0x10000:
        store_int32(out, at, 0x8080E0 | point >> 12 | (point >> 6 & 63) << 8 | (point & 63) << 16)
        return at + 3
    store_int32(out, at, 0x808080F0 | point >> 18 | (point >> 12 & 63) << 8 | (point >> 6 & 63) << 16 | (point & 63) << 24)
    return at + 4


@compiled("int64(CPointer(uint8), int64, int64, int32[::1])")
def _four_byte_point(data: Pointer, at: int, end: int, four: npt.NDArray[np.int32]) -> int:
    """Return the code point of gb18030's four-byte character at data[at:], a question mark if it is unassigned; -1 if the bytes are no such
    character.
    """
    if end - at < 4:
        return -1
    one, two, three, last = byte_at(data, at), byte_at(data, at + 1), byte_at(data, at + 2), byte_at(data, at + 3)
    if not (0x81 <= one <= 0xFE and 0x30 <= two <= 0x39 and 0x81 <= three <= 0xFE and 0x30 <= last <= 0x39):
        return -1
    number = (((one - 0x81) * 10 + two - 0x30) * 126 + three - 0x81) * 10 + last - 0x30
    if number < len(four):
        return int(four[number])
    beyond = number - _BEYOND
    return beyond + 0x10000 if 0 <= beyond < 0x100000 else _QUESTION


@compiled(f"int64({_READ}, {_BOUNDS}, int32[::1], int32[::1], boolean, uint8[::1], int32[::1])")
def transcode_trie(
    data: Bytes,
    offsets: npt.NDArray[np.int32],
    trie: npt.NDArray[np.int32],
    four: npt.NDArray[np.int32],
    ascii_same: bool,
    out: Bytes,
    out_offsets: npt.NDArray[np.int32],
) -> int:
    """Convert the values data[offsets[i]:offsets[i+1]) by a trie; return ALL_FINE, or TOO_LARGE and below.

    four: code points of four-byte characters by number (gb18030 only). ascii_same: bytes below 0x80 stand for themselves.
    """
    source, target, at = pointer_to(data), pointer_to(out), 0
    for i in range(len(offsets) - 1):
        pos, end = int(offsets[i]), int(offsets[i + 1])
        while pos < end:
            while ascii_same and pos + 8 <= end:
                word = load_word(source, pos)
                if word & _HIGH_BITS:
                    break
                store_word(target, at, word)
                pos += 8
                at += 8
            if pos == end:
                break
            next_at = pos + 1
            entry = int(trie[byte_at(source, pos)])
            while entry < NO_CHARACTER:
                if next_at == end:
                    entry = NO_CHARACTER
                else:
                    entry = int(trie[(-1 - entry) * 256 + byte_at(source, next_at)])
                    next_at += 1
            if entry >= 0:
                store_int32(target, at, entry)
                at += entry >> LENGTH_SHIFT
                pos = next_at
                continue
            point = _four_byte_point(source, pos, end, four) if len(four) else -1
            at = _put_point(target, at, point if point >= 0 else _QUESTION)
            pos += 4 if point >= 0 else 1
        if at > _LARGEST:
            return TOO_LARGE - i
        out_offsets[i + 1] = at
    return ALL_FINE


@compiled("int64(CPointer(uint8), int64, boolean)", inlined=True)
def _unit(data: Pointer, at: int, little: bool) -> int:
    one, two = byte_at(data, at), byte_at(data, at + 1)
    return two << 8 | one if little else one << 8 | two


@compiled(f"int64({_READ}, {_BOUNDS}, int64, uint8[::1], int32[::1])")
def transcode_wide(data: Bytes, offsets: npt.NDArray[np.int32], form: int, out: Bytes, out_offsets: npt.NDArray[np.int32]) -> int:
    """Convert values in UCS-2, UTF-16 or UTF-32; return ALL_FINE, TOO_LARGE and below, or the first value with an unpaired surrogate."""
    source, target, at, bad = pointer_to(data), pointer_to(out), 0, ALL_FINE
    width = 4 if form == UTF32 else 2
    for i in range(len(offsets) - 1):
        pos, end = int(offsets[i]), int(offsets[i + 1])
        while pos < end:
            if end - pos < width:
                at = _put_point(target, at, _QUESTION)
                break
            point = _unit(source, pos, form == UTF16LE)
            size = width
            if form == UTF32:
                point = point << 16 | _unit(source, pos + 2, False)
                if point > 0x10FFFF:
                    point, size = _QUESTION, 1
            elif form != UCS2 and point >> 10 == 0x36 and end - pos >= 4:
                low = _unit(source, pos + 2, form == UTF16LE)
                if low >> 10 == 0x37:
                    point, size = 0x10000 + ((point & 0x3FF) << 10 | low & 0x3FF), 4
            if point >> 11 == 0x1B:
                bad = i if bad < 0 else bad
                point = _QUESTION
            at = _put_point(target, at, point)
            pos += size
        if at > _LARGEST:
            return TOO_LARGE - i
        out_offsets[i + 1] = at
    return bad


@compiled("boolean(uint8, uint8, uint8, uint8)", inlined=True)
def _is_out_of_place(third: np.uint8, second: np.uint8, first: np.uint8, byte: np.uint8) -> bool:
    """Whether a byte cannot follow the three before it in UTF-8. Without branches, so that the compiler vectorises it."""
    wanted = (first >= 0xC0) | (second >= 0xE0) | (third >= 0xF0)
    too_long = ((first == 0xE0) & (byte < 0xA0)) | ((first == 0xF0) & (byte < 0x90)) | (byte == 0xC0) | (byte == 0xC1)
    no_point = ((first == 0xED) & (byte > 0x9F)) | ((first == 0xF4) & (byte > 0x8F)) | (byte > 0xF4)
    return bool((((byte & 0xC0) == 0x80) != wanted) | too_long | no_point)


@compiled(f"boolean({_READ}, {_BOUNDS})")
def is_utf8(data: Bytes, offsets: npt.NDArray[np.int32]) -> bool:
    """Whether all values are UTF-8: the whole buffer is valid, and no value begins inside a character."""
    source, start, end = pointer_to(data), int(offsets[0]), int(offsets[-1])
    bad = False
    first = second = third = np.uint8(0)
    for i in range(start, min(start + 3, end)):
        byte = source[i]
        bad |= _is_out_of_place(third, second, first, byte)
        first, second, third = byte, first, second
    for i in range(start + 3, end):
        bad |= _is_out_of_place(source[i - 3], source[i - 2], source[i - 1], source[i])
    for k in range(1, min(3, end - start) + 1):
        # The last bytes must not start a longer character.
        bad |= byte_at(source, end - k) >= (0xC0, 0xE0, 0xF0)[k - 1]
    for i in range(1, len(offsets) - 1):
        at = int(offsets[i])
        bad |= at < end and byte_at(source, at) >> 6 == 2
    return not bad


@compiled(f"int64({_READ}, {_BOUNDS})")
def find_bad_utf8(data: Bytes, offsets: npt.NDArray[np.int32]) -> int:
    """Return the first value that is not UTF-8, or ALL_FINE. Only for error messages: it is slower than `is_utf8`."""
    source = pointer_to(data)
    for i in range(len(offsets) - 1):
        pos, end = int(offsets[i]), int(offsets[i + 1])
        while pos < end:
            if byte_at(source, pos) < 0x80:
                pos += 1
                continue
            size = sequence_size(source, pos, end)
            if size == 0:
                return i
            pos += size
    return ALL_FINE
