"""The five bytes before an Avro body: a zero, and the id of its schema in a registry, its most significant byte first."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEAD: Final = 5
_MAGIC: Final = 0


def schema_ids(messages: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The id of each message's schema, and which messages have one; NULL has none."""
    rows = len(messages)
    ids, framed = np.full(rows, -1, np.int64), np.zeros(rows, np.bool_)
    _, offsets_buffer, data_buffer = messages.buffers()
    if not rows or data_buffer is None:
        return ids, framed
    offsets = np.frombuffer(offsets_buffer, np.int32)[messages.offset : messages.offset + rows + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)
    long = (np.diff(offsets) >= HEAD) & messages.is_valid().to_numpy(zero_copy_only=False)
    starts = offsets[:-1][long]
    places = np.flatnonzero(long)[data[starts] == _MAGIC]
    heads = data[offsets[places][:, None] + np.arange(1, HEAD)].astype(np.int64)
    ids[places] = heads @ (1 << np.array([24, 16, 8, 0]))
    framed[places] = True
    return ids, framed


def framed_with(number: int) -> bytes:
    """The bytes before a body whose schema has this id."""
    return bytes([_MAGIC]) + number.to_bytes(4, "big")
