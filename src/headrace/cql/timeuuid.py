"""Timeuuids: their microseconds, their order, the greatest of a moment.

CQL orders timeuuids by their time (in units of 100 ns), then by the other half as *signed* bytes.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

_EPOCH: Final = 0x01B21DD213814000
"""1970 in units of 100 ns since 1582."""
_LEAST, _GREATEST = 0x8080808080808080, 0x7F7F7F7F7F7F7F7F


def make(micros: int, rest: int, ticks: int = 0) -> UUID:
    """The timeuuid of a microsecond (and `ticks` of 100 ns in it); `rest` is its other half, 64 bits."""
    time = micros * 10 + ticks + _EPOCH
    return UUID(int=((time & 0xFFFFFFFF) << 96) | ((time >> 32 & 0xFFFF) << 80) | (1 << 76) | ((time >> 48 & 0xFFF) << 64) | rest)


def greatest(micros: int) -> UUID:
    return make(micros, _GREATEST, 9)


def micros(value: UUID) -> int:
    """The microseconds since 1970 of a timeuuid."""
    return (value.time - _EPOCH) // 10


def order_key(value: UUID) -> bytes:
    """Sixteen bytes that sort as CQL sorts timeuuids."""
    return value.time.to_bytes(8, "big") + (value.int & (1 << 64) - 1 ^ _LEAST).to_bytes(8, "big")


def bulk_micros(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The microseconds of many, given as rows of sixteen bytes."""
    low = raw[:, 0:4].copy().view(">u4")[:, 0].astype(np.int64)
    middle = raw[:, 4:6].copy().view(">u2")[:, 0].astype(np.int64)
    high = raw[:, 6:8].copy().view(">u2")[:, 0].astype(np.int64) & 0x0FFF
    found: NDArray[np.int64] = ((high << 48 | middle << 32 | low) - _EPOCH) // 10
    return found


def bulk_order_keys(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of sixteen bytes that sort as CQL sorts these timeuuids."""
    found = np.empty_like(raw)
    found[:, 0] = raw[:, 6] & 0x0F
    found[:, 1] = raw[:, 7]
    found[:, 2:4] = raw[:, 4:6]
    found[:, 4:8] = raw[:, 0:4]
    found[:, 8:] = raw[:, 8:] ^ 0x80
    return found
