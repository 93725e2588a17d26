"""Drops deletions for tables with `deletes = ignore`, which keep rows that the source deletes.

Invariant: only deletions are dropped. An update that changes a row's key removes the row under its old key, which is not a deletion. A
table that cannot mark a removal halts there; otherwise it would show the row twice.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sinks.clickhouse.server.scalar_values import render_value
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, TargetTable

_TAKING = (MetadataRole.SIGN, MetadataRole.DELETED, MetadataRole.OPERATION)


def drop_deletions(target_table: TargetTable, block: ChangeBlock) -> ChangeBlock:
    """Return the block without deletions."""
    if not any(mark.role in _TAKING for mark in target_table.metadata_columns):
        _check_unmoved(block)
    deleted = pc.equal(block.op, pa.scalar(Op.DELETE, pa.uint8()))
    if not pc.any(deleted).as_py():
        return block
    return block.taken(~deleted.to_numpy(zero_copy_only=False))


def _check_unmoved(block: ChangeBlock) -> None:
    moved = pc.equal(block.op, pa.scalar(Op.BEFORE, pa.uint8()))
    if pc.any(moved).as_py():
        row = pc.index(moved, pa.scalar(True)).as_py()
        key = ", ".join(f"{name}={render_value(block.images.column(name)[row])}" for name in block.schema.row_key)
        raise DefiniteError(
            f"an update moved the row {key} to another key, and its table has no column that marks the old row as deleted",
            place=f"table {block.schema.name}, row {key}",
            hint="choose the column that marks deletions (delete_column), or have one added (missing_columns = add)",
        )
