"""UTF-8 validation for kernels."""

from __future__ import annotations

import numpy as np

from headrace.kernels.pointers import Pointer, byte_at, compiled, load_word

_HIGH_BITS = np.uint64(0x8080808080808080)


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def sequence_size(data: Pointer, at: int, end: int) -> int:
    """Return the size of the UTF-8 character at data[at:], whose first byte is not ASCII; 0 if it is invalid."""
    lead = byte_at(data, at)
    if lead < 0xC2 or lead > 0xF4:
        return 0
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    if end - at < size:
        return 0
    second = byte_at(data, at + 1)
    low, high = 0x80, 0xBF
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return 0
    for k in range(2, size):
        if byte_at(data, at + k) >> 6 != 2:
            return 0
    return size


@compiled("boolean(CPointer(uint8), int64, int64)", inlined=True)
def is_text(data: Pointer, pos: int, end: int) -> bool:
    """Whether data[pos:end) is UTF-8."""
    while pos + 8 <= end and not load_word(data, pos) & _HIGH_BITS:
        pos += 8
    while pos < end:
        if byte_at(data, pos) < 0x80:
            pos += 1
            continue
        size = sequence_size(data, pos, end)
        if size == 0:
            return False
        pos += size
    return True
