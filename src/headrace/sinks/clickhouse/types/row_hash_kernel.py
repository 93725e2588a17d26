"""Compiled hash of byte strings. Imported only when a table needs it (see `row_hash`), because numba loads slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT, _EIGHT = np.uint64(29), np.uint64(8)


@njit(cache=True)
def hash_texts(data: Any, starts: Any, ends: Any, found: Any) -> None:
    """Hash each byte string data[starts[i]:ends[i]] with its length, in words of eight bytes; the last one is padded with zeros."""
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        total = np.uint64(end - at) * _GOLDEN
        while at < end:
            word = np.uint64(0)
            stop = min(at + 8, end)
            for byte in range(stop - 1, at - 1, -1):
                word = (word << _EIGHT) | np.uint64(data[byte])
            total = (total ^ word) * _FIRST
            total ^= total >> _SHIFT
            at = stop
        found[row] = total
