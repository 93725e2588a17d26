"""Kernels that convert text and bytes of whole columns to JSON strings.

Invariant: `out` has the size that was computed before, and no write goes beyond it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.pointers import Bytes, compiled

Offsets = npt.NDArray[np.int32]
Sizes = npt.NDArray[np.int64]

_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
_QUOTE, _BACKSLASH, _EQUALS = np.uint8(0x22), np.uint8(0x5C), np.uint8(0x3D)


@compiled("int64(Array(int32, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True))")
def quoted_size(offsets: Offsets, data: Bytes) -> int:
    """How many bytes the quoted texts take."""
    size = np.int64(2) * (len(offsets) - 1)
    for at in range(offsets[0], offsets[len(offsets) - 1]):
        byte = data[at]
        if byte < 0x20:
            size += 2 if 8 <= byte <= 13 and byte != 11 else 6
        elif byte in (_QUOTE, _BACKSLASH):
            size += 2
        else:
            size += 1
    return int(size)


@compiled("void(Array(int32, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True), int64[::1], uint8[::1])")
def quote(offsets: Offsets, data: Bytes, ends: Sizes, out: Bytes) -> None:
    """Each text as a JSON string, one after the other; `ends` is where each ends."""
    to = np.int64(0)
    for row in range(len(offsets) - 1):
        out[to] = _QUOTE
        to += 1
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if byte >= 0x20 and byte not in (_QUOTE, _BACKSLASH):
                out[to] = byte
                to += 1
                continue
            out[to] = _BACKSLASH
            if byte >= 0x20:
                out[to + 1] = byte
            elif byte == 8:
                out[to + 1] = 0x62
            elif byte == 9:
                out[to + 1] = 0x74
            elif byte == 10:
                out[to + 1] = 0x6E
            elif byte == 12:
                out[to + 1] = 0x66
            elif byte == 13:
                out[to + 1] = 0x72
            else:
                out[to + 1] = 0x75
                out[to + 2] = out[to + 3] = 0x30
                out[to + 4], out[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
                to += 4
            to += 2
        out[to] = _QUOTE
        to += 1
        ends[row] = to


@compiled("int64(Array(int32, 1, 'C', readonly=True))")
def base64_size(offsets: Offsets) -> int:
    """How many bytes the values take in base64, quoted."""
    size = np.int64(0)
    for row in range(len(offsets) - 1):
        size += 2 + 4 * ((np.int64(offsets[row + 1]) - offsets[row] + 2) // 3)
    return int(size)


@compiled("void(Array(int32, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True), int64[::1], uint8[::1])")
def base64(offsets: Offsets, data: Bytes, ends: Sizes, out: Bytes) -> None:
    """Each value as a JSON string of base64, one after the other; `ends` is where each ends."""
    to = np.int64(0)
    for row in range(len(offsets) - 1):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        out[to] = _QUOTE
        to += 1
        while end - at >= 3:
            word = np.uint32(data[at]) << 16 | np.uint32(data[at + 1]) << 8 | np.uint32(data[at + 2])
            out[to], out[to + 1] = _DIGITS[word >> 18], _DIGITS[word >> 12 & 63]
            out[to + 2], out[to + 3] = _DIGITS[word >> 6 & 63], _DIGITS[word & 63]
            at += 3
            to += 4
        if at < end:
            word = np.uint32(data[at]) << 16
            if end - at == 2:
                word |= np.uint32(data[at + 1]) << 8
            out[to], out[to + 1] = _DIGITS[word >> 18], _DIGITS[word >> 12 & 63]
            out[to + 2] = _DIGITS[word >> 6 & 63] if end - at == 2 else _EQUALS
            out[to + 3] = _EQUALS
            to += 4
        out[to] = _QUOTE
        to += 1
        ends[row] = to
