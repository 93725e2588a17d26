"""The memory that decoders fill: one allocation per block, laid out as Arrow buffers.

For every output column the arena holds a validity bitmap and either a fixed-width value buffer or int32 offsets and a data region. The
compiled decoders write through four views of the same bytes (1, 2, 4 and 8 wide). `to_arrays` wraps the filled parts as Arrow arrays
without copying. A block is bounded: `rows` images and `data_bytes` per variable-width column. A decoder stops before the image that does
not fit and is called again with a new arena, so memory never depends on the size of a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

VALIDITY, VALUES, DATA, DATA_END = range(4)
"""The columns of `Arena.layout`: byte offsets of each buffer."""


@dataclass(frozen=True, slots=True)
class Slot:
    """How the arena stores one column's values before they become the column's Arrow type."""

    width: int
    """Bytes per value; 0 for variable width."""
    carrier: pa.DataType
    """The Arrow type of the bytes as the decoder wrote them."""


class Arena:
    """The output buffers of one block."""

    def __init__(self, slots: Sequence[Slot], rows: int, data_bytes: int) -> None:
        self.rows = rows
        self.slots = slots
        layout = np.zeros((max(len(slots), 1), 4), dtype=np.int64)
        at = 0
        for i, _ in enumerate(slots):
            layout[i, VALIDITY] = at
            at += _aligned((rows + 7) // 8)
        bitmaps = at
        for i, slot in enumerate(slots):
            layout[i, VALUES] = at
            at += _aligned((rows + 1) * 4 if slot.width == 0 else rows * slot.width)
        for i, slot in enumerate(slots):
            if slot.width == 0:
                layout[i, DATA], layout[i, DATA_END] = at, at + data_bytes
                at += _aligned(data_bytes)
        self.layout = layout
        self.a1: npt.NDArray[np.uint8] = np.empty(_aligned(max(at, 1)), dtype=np.uint8)
        # All values are valid until a decoder clears a bit: most values are not NULL.
        self.a1[:bitmaps] = 0xFF
        self.a2 = self.a1.view(np.int16)
        self.a4 = self.a1.view(np.int32)
        self.a8 = self.a1.view(np.int64)
        for i, slot in enumerate(slots):
            if slot.width == 0:
                self.a4[layout[i, VALUES] // 4] = 0

    def to_arrays(self, rows: int) -> list[pa.Array]:
        """Return the first `rows` values of every slot as Arrow arrays over the arena's own memory."""
        memory = pa.py_buffer(self.a1)
        arrays = []
        for slot, (validity, values, data, _) in zip(self.slots, self.layout.tolist(), strict=False):
            bitmap = memory.slice(validity, (rows + 7) // 8)
            if slot.width == 0:
                end = int(self.a4[values // 4 + rows])
                buffers = [bitmap, memory.slice(values, (rows + 1) * 4), memory.slice(data, end)]
            else:
                buffers = [bitmap, memory.slice(values, rows * slot.width)]
            arrays.append(pa.Array.from_buffers(slot.carrier, rows, buffers))
        return arrays


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64
