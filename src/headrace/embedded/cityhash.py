"""CityHash128 in the variant of ClickHouse's block checksums (version 1.0.2 of the algorithm).

Only the main loop is compiled; the code before and after it handles at most 128 bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from headrace.embedded.access.sandbox import run_unconfined

_K0, _K1, _K2, _K3 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MUL: Final = 0x9DDFEA08EB382D69
_MASK: Final = (1 << 64) - 1
_QUAD = struct.Struct("<4Q")


def cityhash128(data: bytes) -> bytes:
    """Return the checksum as ClickHouse writes it: low word, high word, little-endian."""
    size = len(data)
    if size >= 16:
        low, high = _seeded(data, 16, size - 16, _word(data, 0) ^ _K3, _word(data, 8))
    elif size >= 8:
        low, high = _murmur(data, 0, 0, _word(data, 0) ^ _wrap(size * _K0), _word(data, size - 8) ^ _K1)
    else:
        low, high = _murmur(data, 0, size, _K0, _K1)
    return struct.pack("<QQ", low, high)


def _seeded(data: bytes, start: int, size: int, x: int, y: int) -> tuple[int, int]:
    if size < 128:
        return _murmur(data, start, size, x, y)
    rounds, left = divmod(size, 128)
    x, y, z, v0, v1, w0, w1 = _bulk(data, start, rounds, size, x, y)
    y = _wrap(y + _rotate(w0, 37) * _K0 + z)
    x = _wrap(x + _rotate(_wrap(v0 + z), 49) * _K0)
    end = start + size
    for done in range(32, left + 32, 32):
        y = _wrap(_rotate(_wrap(y - x), 42) * _K0 + v1)
        w0 = _wrap(w0 + _word(data, end - done + 16))
        x = _wrap(_rotate(x, 49) * _K0 + w0)
        w0 = _wrap(w0 + v0)
        v0, v1 = _weak(data, end - done, v0, v1)
    x, y = _fold(x, v0), _fold(y, w0)
    return _wrap(_fold(_wrap(x + v1), w1) + y), _fold(_wrap(x + w1), _wrap(y + v1))


@functools.cache
def _compiled() -> Callable[[Any, int, Any], Any]:
    """Return the main loop, compiled where numba can write its cache."""
    loaded: list[Callable[[Any, int, Any], Any]] = []

    def load() -> None:
        from headrace.embedded.cityhash_kernel import mix_words

        # From bytes, as below: numba compiles separately for read-only arrays.
        mix_words(np.frombuffer(bytes(128), dtype=np.uint64), 1, np.zeros(7, dtype=np.uint64))
        loaded.append(mix_words)

    run_unconfined(load)
    return loaded[0]


def _bulk(data: bytes, start: int, rounds: int, size: int, x: int, y: int) -> tuple[int, ...]:
    mix_words = _compiled()
    z = _wrap(size * _K1)
    v0 = _wrap(_rotate(y ^ _K1, 49) * _K1 + _word(data, start))
    v1 = _wrap(_rotate(v0, 42) * _K1 + _word(data, start + 8))
    w0 = _wrap(_rotate(_wrap(y + z), 35) * _K1 + x)
    w1 = _wrap(_rotate(_wrap(x + _word(data, start + 88)), 53) * _K1)
    words = np.frombuffer(data, dtype=np.uint64, count=rounds * 16, offset=start)
    state = np.array([x, y, z, v0, v1, w0, w1], dtype=np.uint64)
    return tuple(int(word) for word in mix_words(words, rounds, state))


def _murmur(data: bytes, start: int, size: int, a: int, b: int) -> tuple[int, int]:
    if size <= 16:
        a = _wrap(_shift(_wrap(a * _K1)) * _K1)
        c = _wrap(b * _K1 + _short(data, start, size))
        d = _shift(_wrap(a + (_word(data, start) if size >= 8 else c)))
    else:
        c = _fold(_wrap(_word(data, start + size - 8) + _K1), a)
        d = _fold(_wrap(b + size), _wrap(c + _word(data, start + size - 16)))
        a = _wrap(a + d)
        for at in range(start, start + size - 16, 16):
            a = _wrap((a ^ _wrap(_shift(_wrap(_word(data, at) * _K1)) * _K1)) * _K1)
            b ^= a
            c = _wrap((c ^ _wrap(_shift(_wrap(_word(data, at + 8) * _K1)) * _K1)) * _K1)
            d ^= c
    a, b = _fold(a, c), _fold(d, b)
    return a ^ b, _fold(b, a)


def _short(data: bytes, start: int, size: int) -> int:
    if size > 8:
        last = _word(data, start + size - 8)
        return _fold(_word(data, start), _rotate(_wrap(last + size), size)) ^ last
    if size >= 4:
        first, last = (int.from_bytes(data[at : at + 4], "little") for at in (start, start + size - 4))
        return _fold(size + (first << 3), last)
    if size > 0:
        y = data[start] + (data[start + (size >> 1)] << 8)
        z = size + (data[start + size - 1] << 2)
        return _wrap(_shift(_wrap(y * _K2) ^ _wrap(z * _K3)) * _K2)
    return _K2


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = _QUAD.unpack_from(data, at)
    first = _wrap(a + w)
    b = _rotate(_wrap(b + first + z), 21)
    a = _wrap(first + x + y)
    b = _wrap(b + _rotate(a, 44))
    return _wrap(a + z), _wrap(b + first)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _wrap(value: int) -> int:
    return value & _MASK


def _rotate(value: int, bits: int) -> int:
    return ((value >> bits) | (value << (64 - bits))) & _MASK


def _shift(value: int) -> int:
    return value ^ (value >> 47)


def _fold(low: int, high: int) -> int:
    a = _shift(_wrap((low ^ high) * _MUL))
    return _wrap(_shift(_wrap((high ^ a) * _MUL)) * _MUL)
