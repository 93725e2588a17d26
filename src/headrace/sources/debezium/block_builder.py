"""Builds change blocks from row images: one per table, in the order of the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableName
from headrace.sources.debezium.events.parsed_events import Rows
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.row_images import RowImages

UnchangedColumns = Mapping[str, pa.BooleanArray]

_NUMBERED: Final = 1 << 63
"""Numbers of a snapshot's rows are above all versions of the first 32 epochs."""
_PARTITION_SHIFT: Final = 40


def build_blocks(images: Sequence[RowImages], records: Records) -> tuple[tuple[ChangeBlock, ...], tuple[UnchangedColumns, ...]]:
    """Return one block per table, and masks of values that are missing because they did not change."""
    by_table: dict[TableName, list[RowImages]] = {}
    for part in images:
        by_table.setdefault(part.schema.name, []).append(part)
    cut = [pair for parts in by_table.values() for pair in _cut(parts[0] if len(parts) == 1 else _joined(parts), records)]
    return tuple(block for block, _ in cut), tuple(kept for _, kept in cut)


def _cut(whole: RowImages, records: Records) -> list[tuple[ChangeBlock, UnchangedColumns]]:
    """Return a table's images as a block. Snapshot rows of a table without a key form a block of their own, with row numbers."""
    snapshot = whole.op == Op.SNAPSHOT
    if whole.schema.row_key or not snapshot.any():
        return [_block(whole)]
    read, changed = take_images(whole, np.flatnonzero(snapshot)), take_images(whole, np.flatnonzero(~snapshot))
    offsets = records.offset.to_numpy(zero_copy_only=False)[read.record].astype(np.uint64)
    block, kept = _block(read)
    numbered = replace(block, order=pa.array(np.uint64(_NUMBERED | records.partition << _PARTITION_SHIFT) + offsets))
    return [(numbered, kept), *([_block(changed)] if len(changed.op) else [])]


def _block(whole: RowImages) -> tuple[ChangeBlock, UnchangedColumns]:
    block = ChangeBlock(whole.schema, whole.images, pa.array(whole.op), pa.array(whole.version), pa.array(whole.commit_ts, pa.int64()))
    return block, {name: pa.array(mask) for name, mask in whole.kept.items()}


def take_images(whole: RowImages, rows: Rows) -> RowImages:
    """Return the selected images."""
    return RowImages(
        whole.schema,
        whole.images.take(pa.array(rows)),
        whole.record[rows],
        whole.op[rows],
        whole.version[rows],
        whole.commit_ts[rows],
        {name: mask[rows] for name, mask in whole.kept.items()},
        (),
    )


def _joined(parts: Sequence[RowImages]) -> RowImages:
    """Join images of several schemas of one table, in the order of the records."""
    record = np.concatenate([part.record for part in parts])
    order = np.argsort(record, kind="stable")
    images = pa.Table.from_batches([part.images for part in parts]).unify_dictionaries().take(pa.array(order)).combine_chunks()
    names = dict.fromkeys(name for part in parts for name in part.kept)
    kept = {name: np.concatenate([part.kept.get(name, np.zeros(len(part.op), np.bool_)) for part in parts])[order] for name in names}
    return RowImages(
        parts[0].schema,
        images.to_batches()[0],
        record[order],
        np.concatenate([part.op for part in parts])[order],
        np.concatenate([part.version for part in parts])[order],
        np.concatenate([part.commit_ts for part in parts])[order],
        kept,
        (),
    )
