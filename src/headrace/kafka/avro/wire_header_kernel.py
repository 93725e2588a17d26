"""The compiled reader of schemas' ids before Avro bodies. Reads no byte outside of a message."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import load_int32
from headrace.kernels.pointers import byte_at, compiled, pointer_at


@compiled("void(int64, int64, int64, int64, int64, int64[::1])")
def read_ids(data: int, offsets: int, validity: int, first: int, id_bytes: int, ids: npt.NDArray[np.int64]) -> None:
    """The id after the zero with which each message begins, the most significant byte first; -1 for messages without one.

    data, offsets, validity: addresses of an Arrow array's buffers (validity 0: nothing is NULL), `first` its offset.
    """
    source, bounds, known = pointer_at(data), pointer_at(offsets), pointer_at(validity)
    for row in range(len(ids)):
        at = first + row
        start, end = load_int32(bounds, 4 * at), load_int32(bounds, 4 * at + 4)
        found = -1
        if end - start > id_bytes and byte_at(source, start) == 0 and (validity == 0 or byte_at(known, at >> 3) >> (at & 7) & 1):
            found = 0
            for byte in range(id_bytes):
                found = found << 8 | byte_at(source, start + 1 + byte)
        # No registry gives negative numbers.
        ids[row] = max(found, -1)
