"""Parts of blocks that are encoded at once, and the code that both line formats share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.text_values import format_timestamps
from headrace.sinks.event_positions import Places

_MOST_BYTES: Final = 32 << 20
"""Of what is made at once: text may be several times as long as the values."""
_LINE_BYTES: Final = 300


@dataclass(frozen=True, slots=True)
class LineOptions:
    human: bool = False
    colour: bool = False
    big_as_text: bool = False
    """Whole numbers of 64 bits in quotes."""
    sql: bool = False
    """SQL statements."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some changes of a block: their images, and for each change its place, its image before and after (-1 for none)."""

    block: ChangeBlock
    images: pa.RecordBatch
    at: Places
    """Among the images of the block."""
    ops: npt.NDArray[np.uint8]
    before: Places
    """Among the images of the piece."""
    after: Places
    own: Places
    """The image whose key the change has."""


class LineForm(Protocol):
    def lines(self, piece: Piece, position: Any) -> Any: ...


def pieces(block: ChangeBlock) -> Iterator[Piece]:
    """Parts of a block that are made into lines at once; an update stays with the row before it."""
    ops = block.op.to_numpy()
    for part in block.pieces(_MOST_BYTES, _LINE_BYTES):
        yield _piece(block, ops, part.start, part.stop)


def _piece(block: ChangeBlock, ops: npt.NDArray[np.uint8], start: int, end: int) -> Piece:
    mine = ops[start:end]
    own = np.flatnonzero(mine != Op.BEFORE)
    kinds = mine[own]
    paired = (kinds == Op.UPDATE) & (own > 0) & (mine[np.maximum(own - 1, 0)] == Op.BEFORE)
    before = np.where(kinds == Op.DELETE, own, np.where(paired, own - 1, -1))
    after = np.where(kinds == Op.DELETE, -1, own)
    return Piece(block, block.images.slice(start, end - start), own + start, kinds, before, after, own)


def committed(block: ChangeBlock, at: Any, between: str) -> Any:
    """When changes were committed, in UTC, to the microsecond; `between` the day and the time."""
    spelled = format_timestamps(block.commit_ts.take(at), 6)
    return spelled if between == " " else pc.replace_substring(spelled, " ", between)


def as_bytes(lines: Any) -> memoryview:
    if not len(lines):
        return memoryview(b"")
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32, count=len(lines) + 1 + lines.offset)
    return memoryview(lines.buffers()[2])[offsets[lines.offset] : offsets[-1]]
