"""Compiled loops that turn pages of rows into columns: each cell is a length of four bytes and a value, row after row.

`measure_pages` checks every length against the end of its page; `gather_pages` may run only over pages that passed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.cql.decode.split_kernels import load_length
from headrace.kernels.memory import copy_run
from headrace.kernels.pointers import compiled, pointer_at, pointer_to

Numbers = npt.NDArray[np.int64]
FINE: Final = -1


@compiled("int64(int64[:,::1], int64, int64[::1])")
def measure_pages(pages: Numbers, columns: int, sizes: Numbers) -> int:
    """Compute the total size of each column's values. Return `FINE`, or the number of a malformed row.

    pages: per page the address of its bytes, where its rows begin and end in them, and their number.
    """
    row = 0
    for page in range(pages.shape[0]):
        buf, at, end = pointer_at(pages[page, 0]), pages[page, 1], pages[page, 2]
        for _ in range(pages[page, 3]):
            for column in range(columns):
                if end - at < 4:
                    return row
                size = load_length(buf, at, end)
                at += 4
                if size < -1 or size > end - at:
                    return row
                if size > 0:
                    sizes[column] += size
                    at += size
            row += 1
        if at != end:
            return max(row - 1, 0)
    return FINE


@compiled("void(int64[:,::1], int64, int64[::1], int32[:,::1], uint8[:,::1], int64[::1], uint8[::1])")
def gather_pages(
    pages: Numbers,
    columns: int,
    starts: Numbers,
    offsets: npt.NDArray[np.int32],
    validity: npt.NDArray[np.uint8],
    nulls: Numbers,
    out: npt.NDArray[np.uint8],
) -> None:
    """Copy the values of each column to where it starts in `out`, note where each ends and which are null (`validity` begins as zeros)."""
    target, limit = pointer_to(out), len(out)
    row = 0
    for page in range(pages.shape[0]):
        buf, at, end = pointer_at(pages[page, 0]), pages[page, 1], pages[page, 2]
        for _ in range(pages[page, 3]):
            for column in range(columns):
                size = load_length(buf, at, end)
                at += 4
                to = offsets[column, row]
                if size < 0:
                    nulls[column] += 1
                    size = 0
                else:
                    validity[column, row >> 3] |= np.uint8(1 << (row & 7))
                if size:
                    # A run may leave scratch behind it: what comes there is written later only within the column, so its end is the limit.
                    copy_run(buf, at, end, target, starts[column] + to, min(starts[column + 1], limit), size)
                    at += size
                offsets[column, row + 1] = to + size
            row += 1
