"""The columns of ours: what each says of the images of a block.

Invariant: a pure function of the block, column by column: a replay gives the same marks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change import ChangeBlock, Op
from headrace.sinks.clickhouse.layout import Mark, Meaning

_SIGN_OF: Final = np.array([-1 if op in (Op.DELETE, Op.BEFORE) else 1 for op in sorted(Op)], dtype=np.int8)
_ARROW: Final = {Meaning.SIGN: pa.int8(), Meaning.VERSION: pa.uint64(), Meaning.OCCURRENCE: pa.uint64()}


def mark_field(mark: Mark) -> pa.Field[Any]:
    """The Arrow field in which a mark travels."""
    return pa.field(mark.name, _ARROW[mark.meaning], False)


def mark_values(mark: Mark, block: ChangeBlock) -> pa.Array[Any]:
    """What a mark says of each image of a block."""
    match mark.meaning:
        case Meaning.SIGN:
            return pa.array(_SIGN_OF[block.op.to_numpy(zero_copy_only=False)])
        case Meaning.VERSION:
            return block.version
        case Meaning.OCCURRENCE:
            return _occurrences(block)
    raise NotImplementedError(mark.meaning)


def _occurrences(block: ChangeBlock) -> pa.Array[Any]:
    """What makes each image of a table without a key a row of its own: its version, or in a snapshot, where all have one, its number."""
    snapshot = np.equal(block.op.to_numpy(zero_copy_only=False), Op.SNAPSHOT)
    if not snapshot.any():
        return block.version
    if block.order is None or not snapshot.all():
        raise DefiniteError(
            "a snapshot block of a table without a key does not number its rows",
            place=f"table {block.schema.name}",
            hint="this is a defect of the source; please report it",
        )
    return block.order
