"""Groups the changes of a batch by transaction, in the exact order of the log.

A batch holds whole transactions, so each transaction in it is complete. Blocks are cut where the log switches to another table: within a
transaction, versions rise from block to block. The code works on whole arrays; only the cuts, about one per statement, are made one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from headrace.model.change_block import ChangeBlock


@dataclass(frozen=True, slots=True)
class Transaction:
    """The changes of one transaction."""

    id: str
    """Its GTID, otherwise the position in the log where it begins."""
    commit_ts: int
    """The commit time, in microseconds since 1970."""
    blocks: tuple[ChangeBlock, ...]
    """The changes in log order. A table may have several blocks."""

    @property
    def changes(self) -> int:
        return sum(block.changes for block in self.blocks)


def group_by_transaction(blocks: Iterable[ChangeBlock]) -> Iterator[Transaction]:
    """Yield the transactions of whole batches of blocks that carry transaction labels."""
    held = [block for block in blocks if block.rows]
    if not held:
        return
    for name, pieces in groupby(_pieces(held), key=_name):
        cut = tuple(pieces)
        yield Transaction(name, max(int(pc.max(piece.commit_ts).as_py()) for piece in cut), cut)


def slice_block(block: ChangeBlock, start: int, size: int) -> ChangeBlock:
    """Return the images [start, start + size) of a block, without copying."""
    return replace(
        block,
        images=block.images.slice(start, size),
        op=block.op.slice(start, size),
        version=block.version.slice(start, size),
        commit_ts=block.commit_ts.slice(start, size),
        transaction=None if block.transaction is None else block.transaction.slice(start, size),
        order=None if block.order is None else block.order.slice(start, size),
        query=None if block.query is None else block.query.slice(start, size),
    )


def _name(piece: ChangeBlock) -> str:
    assert piece.transaction is not None
    return str(piece.transaction[0].as_py())


def _pieces(blocks: list[ChangeBlock]) -> Iterator[ChangeBlock]:
    """Yield slices of the blocks, each of one table and one transaction, in log order."""
    versions = np.concatenate([block.version.to_numpy() for block in blocks])
    owner = np.repeat(np.arange(len(blocks)), [block.rows for block in blocks])
    row = np.concatenate([np.arange(block.rows) for block in blocks])
    transaction = _numbered(blocks)
    order = np.argsort(versions, kind="stable")
    owner, row, transaction = owner[order], row[order], transaction[order]
    changes = np.flatnonzero((np.diff(owner) != 0) | (np.diff(transaction) != 0)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(order)]):
        # Versions rise within a block, so images that are adjacent in the log are adjacent in their block.
        yield slice_block(blocks[int(owner[start])], int(row[start]), end - start)


def _numbered(blocks: list[ChangeBlock]) -> npt.NDArray[np.int64]:
    """Return each image's transaction as a number that is the same in all blocks."""
    numbers: dict[str, int] = {}
    parts = []
    for block in blocks:
        assert block.transaction is not None, "the reader was not asked for transactions"
        names = block.transaction.dictionary.to_pylist()
        known = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
        parts.append(known[block.transaction.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)
