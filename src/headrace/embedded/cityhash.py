"""CityHash128 in the variant ClickHouse froze for its compressed blocks (version 1.0.2 of the algorithm), compiled.

Compiled on first use only: few clients send or ask for ClickHouse's own block compression.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np

_K0, _K1, _K2, _K3 = (np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949C7DEFEBE6F55))
_MUL = np.uint64(0x9DDFEA08EB382D69)


def cityhash128(data: bytes) -> bytes:
    """The checksum as ClickHouse writes it: low word, then high word, little-endian."""
    low, high = _compiled()(np.frombuffer(data, dtype=np.uint8))
    return struct.pack("<QQ", int(low), int(high))


@cache
def _compiled() -> Any:
    """The hash function; building it here keeps numba out of a server that never needs it."""
    from numba import njit

    inline = njit(inline="always")
    u = np.uint64

    @inline
    def word(s: Any, at: int) -> Any:
        value = u(0)
        for i in range(8):
            value |= u(s[at + i]) << u(8 * i)
        return value

    @inline
    def half(s: Any, at: int) -> Any:
        value = u(0)
        for i in range(4):
            value |= u(s[at + i]) << u(8 * i)
        return value

    @inline
    def rotate(value: Any, shift: Any) -> Any:
        return (value >> shift) | (value << (u(64) - shift))

    @inline
    def mix(value: Any) -> Any:
        return value ^ (value >> u(47))

    @inline
    def fold(low: Any, high: Any) -> Any:
        a = mix((low ^ high) * _MUL)
        return mix((high ^ a) * _MUL) * _MUL

    @inline
    def weak(s: Any, at: int, a: Any, b: Any) -> Any:
        a += word(s, at)
        first = a
        b = rotate(b + a + word(s, at + 24), u(21))
        a += word(s, at + 8)
        a += word(s, at + 16)
        b += rotate(a, u(44))
        return a + word(s, at + 24), b + first

    @njit
    def short(s: Any, start: int, size: int) -> Any:
        if size > 8:
            a, b = word(s, start), word(s, start + size - 8)
            return fold(a, rotate(b + u(size), u(size))) ^ b
        if size >= 4:
            return fold(u(size) + (half(s, start) << u(3)), half(s, start + size - 4))
        if size > 0:
            y = u(s[start]) + (u(s[start + (size >> 1)]) << u(8))
            z = u(size) + (u(s[start + size - 1]) << u(2))
            return mix((y * _K2) ^ (z * _K3)) * _K2
        return _K2

    @njit
    def murmur(s: Any, start: int, size: int, a: Any, b: Any) -> Any:
        if size <= 16:
            a = mix(a * _K1) * _K1
            c = b * _K1 + short(s, start, size)
            d = mix(a + (word(s, start) if size >= 8 else c))
        else:
            c = fold(word(s, start + size - 8) + _K1, a)
            d = fold(b + u(size), c + word(s, start + size - 16))
            a += d
            at, left = start, size - 16
            while left > 0:
                a = (a ^ (mix(word(s, at) * _K1) * _K1)) * _K1
                b ^= a
                c = (c ^ (mix(word(s, at + 8) * _K1) * _K1)) * _K1
                d ^= c
                at += 16
                left -= 16
        a, b = fold(a, c), fold(d, b)
        return a ^ b, fold(b, a)

    @njit
    def seeded(s: Any, start: int, size: int, x: Any, y: Any) -> Any:
        if size < 128:
            return murmur(s, start, size, x, y)
        at, left = start, size
        z = u(size) * _K1
        v0 = rotate(y ^ _K1, u(49)) * _K1 + word(s, at)
        v1 = rotate(v0, u(42)) * _K1 + word(s, at + 8)
        w0 = rotate(y + z, u(35)) * _K1 + x
        w1 = rotate(x + word(s, at + 88), u(53)) * _K1
        while left >= 128:
            for _ in range(2):
                x = rotate(x + y + v0 + word(s, at + 16), u(37)) * _K1
                y = rotate(y + v1 + word(s, at + 48), u(42)) * _K1
                x ^= w1
                y ^= v0
                z = rotate(z ^ w0, u(33))
                v0, v1 = weak(s, at, v1 * _K1, x + w0)
                w0, w1 = weak(s, at + 32, z + w1, y)
                x, z = z, x
                at += 64
            left -= 128
        y += rotate(w0, u(37)) * _K0 + z
        x += rotate(v0 + z, u(49)) * _K0
        done = 0
        while done < left:
            done += 32
            y = rotate(y - x, u(42)) * _K0 + v1
            w0 += word(s, at + left - done + 16)
            x = rotate(x, u(49)) * _K0 + w0
            w0 += v0
            v0, v1 = weak(s, at + left - done, v0, v1)
        x, y = fold(x, v0), fold(y, w0)
        return fold(x + v1, w1) + y, fold(x + w1, y + v1)

    @njit
    def whole(s: Any) -> Any:
        size = len(s)
        if size >= 16:
            return seeded(s, 16, size - 16, word(s, 0) ^ _K3, word(s, 8))
        if size >= 8:
            return seeded(s, 0, 0, word(s, 0) ^ (u(size) * _K0), word(s, size - 8) ^ _K1)
        return seeded(s, 0, size, _K0, _K1)

    return whole
