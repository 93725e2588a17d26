"""Labels changes with whether the server checked foreign keys, from the flags of their row events.

A statement with `foreign_key_checks = 0` has no effect on child tables. The label is made for whole blocks from the versions, and only for
the tables that need it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName
from headrace.model.version import OFFSET_BITS
from headrace.sources.mysql.events.event_types import HEADER_SIZE
from headrace.sources.mysql.segments.event_expander import EventBuffer

_ADDRESS: Final = np.uint64((1 << OFFSET_BITS) - 1)
_FLAGS_AT: Final = HEADER_SIZE + 6
"""The flags follow the table id of six bytes."""
_NO_FOREIGN_KEY_CHECKS: Final = 0x02


class ForeignKeyChecks:
    """The row events of one window of a segment."""

    def __init__(self, tables: frozenset[TableName]) -> None:
        self._tables = tables
        self._addresses = np.empty(0, dtype=np.int64)
        self._unchecked = np.empty(0, dtype=np.bool_)

    def note(self, piece: EventBuffer, positions: npt.NDArray[np.int64]) -> None:
        """Record the flags of the row events that start at these positions of a buffer, in the order of the log."""
        self._addresses = piece.locate(positions)[0]
        self._unchecked = (piece.buf[positions + _FLAGS_AT] & _NO_FOREIGN_KEY_CHECKS) != 0

    def attach(self, block: ChangeBlock) -> ChangeBlock:
        """Return the block with labels, if its table needs them."""
        if block.schema.name not in self._tables:
            return block
        addresses = (block.version.to_numpy(zero_copy_only=False) & _ADDRESS).astype(np.int64)
        at = np.searchsorted(self._addresses, addresses, side="right") - 1
        return replace(block, unchecked=pa.array(self._unchecked[at]))
