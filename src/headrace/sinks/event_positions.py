"""Computes the log position of each image of a block from its version.

Images of one event have versions without gaps, and no event begins so soon after another's last image (decision 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.version import FILE_BITS, OFFSET_BITS

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EventPlaces:
    """The position of each image's event in its file, and the image's row in the event."""

    pos: Places
    row: Places


def event_places(block: ChangeBlock) -> EventPlaces:
    """Return the event positions of a block's images. (For a snapshot: its position.)"""
    addresses = (block.version.to_numpy() & np.uint64((1 << OFFSET_BITS) - 1)).astype(np.int64)
    ops = block.op.to_numpy()
    if not len(ops) or ops[0] == Op.SNAPSHOT:
        return EventPlaces(addresses, np.zeros(len(addresses), dtype=np.int64))
    first = np.concatenate(([True], np.diff(addresses) != 1))
    # A block that begins with the second half of an update's event begins with its before image, never with its after image.
    starts = np.maximum.accumulate(np.where(first, np.arange(len(addresses)), 0))
    ordinal = addresses - addresses[starts]
    paired = np.isin(ops, (Op.BEFORE, Op.UPDATE))
    return EventPlaces(addresses[starts] - 1, np.where(paired, ordinal // 2, ordinal))


def file_numbers(versions: pa.UInt64Array) -> npt.NDArray[np.uint64]:
    """Return the log file numbers of versions."""
    numbers: Any = versions.to_numpy() >> np.uint64(OFFSET_BITS) & np.uint64((1 << FILE_BITS) - 1)
    return np.asarray(numbers, dtype=np.uint64)


def file_name(log: str, number: int) -> str:
    """Return the name of a log file; `log` is the common base name."""
    return f"{log}.{number:06d}"
