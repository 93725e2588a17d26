"""The compiled main loop of CityHash128. Imported only if a client uses ClickHouse's block compression, because numba loads slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_K1 = np.uint64(0xB492B66FBE98F273)
_R21, _R33, _R37, _R42, _R44 = (np.uint64(bits) for bits in (21, 33, 37, 42, 44))
_64 = np.uint64(64)


@njit(cache=True)
def _rotate(value: Any, bits: Any) -> Any:
    return (value >> bits) | (value << (_64 - bits))


@njit(cache=True)
def _weak(words: Any, at: Any, a: Any, b: Any) -> Any:
    a += words[at]
    first = a
    b = _rotate(b + a + words[at + 3], _R21)
    a += words[at + 1] + words[at + 2]
    b += _rotate(a, _R44)
    return a + words[at + 3], b + first


@njit(cache=True)
def mix_words(words: Any, rounds: Any, state: Any) -> Any:
    """Mix `rounds` times 16 words into the seven words of state (x, y, z, v0, v1, w0, w1); all uint64."""
    x, y, z, v0, v1, w0, w1 = state[0], state[1], state[2], state[3], state[4], state[5], state[6]
    for at in range(0, rounds * 16, 8):
        x = _rotate(x + y + v0 + words[at + 2], _R37) * _K1
        y = _rotate(y + v1 + words[at + 6], _R42) * _K1
        x ^= w1
        y ^= v0
        z = _rotate(z ^ w0, _R33)
        v0, v1 = _weak(words, at, v1 * _K1, x + w0)
        w0, w1 = _weak(words, at + 4, z + w1, y)
        x, z = z, x
    return x, y, z, v0, v1, w0, w1
