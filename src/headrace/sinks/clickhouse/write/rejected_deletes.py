"""Stores deletions whose row image contains a rejected value.

Invariant: a rejected value does not lose a deletion. A table that merges by version only needs the deletion's key and version; readers
never see its other values. So rejected values are replaced by NULL or by the type's least value, unless they belong to the key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sinks.clickhouse.dead_letters.rejected_rows import RejectedRows
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.clickhouse.types.row_json import row_to_json, rows_from_json
from headrace.sinks.clickhouse.write.block_encoder import BlockEncoder

_TAKING = (Op.DELETE, Op.BEFORE)


def storable_deletion(
    target_table: TargetTable, encoder: BlockEncoder, block: ChangeBlock, find_rejected_rows: RejectedRows, place: int
) -> ChangeBlock | None:
    """Return one rejected row as a deletion that the table accepts; None if it is not a deletion or its key is rejected."""
    row = int(find_rejected_rows.rows[place])
    if block.op[row].as_py() not in _TAKING or target_table.family is not EngineFamily.REPLACING or not target_table.has_key:
        return None
    one = block.taken(np.array([row]))
    values = row_to_json(one.images, block.schema, 0)
    for nulls in (True, False):
        made = _with_blanks(target_table, encoder, one, values, find_rejected_rows.columns[place], nulls=nulls)
        if made is not None:
            return made
    return None


def _with_blanks(
    target_table: TargetTable, encoder: BlockEncoder, one: ChangeBlock, values: dict[str, Any], column: str, *, nulls: bool
) -> ChangeBlock | None:
    """Return the row with blanks in all rejected columns: NULL, or the least value where NULL is rejected too."""
    blanked: set[str] = set()
    while column not in target_table.key_dependencies and column not in blanked:
        blanked.add(column)
        blank = {name: _blank(one.schema.column(name), nulls=nulls) for name in blanked}
        made = replace(one, images=rows_from_json(one.schema, [{**values, **blank}]))
        find_rejected_rows = encoder.find_rejected_rows(made)
        if not len(find_rejected_rows.rows):
            return made
        column = find_rejected_rows.columns[0]
    return None


def _blank(column: Column, *, nulls: bool) -> Any:
    if column.nullable and nulls:
        return None
    match column.form:
        case ValueForm.MEMBERS if not column.type.multiple:
            return column.members[0] if column.members else ""
        case ValueForm.VECTOR:
            return []
        case ValueForm.FIXED_BYTES:
            return column.type.print_value(bytes(column.arrow_type.byte_width))
        case ValueForm.JSON:
            return "{}"
        case ValueForm.TEXT | ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.MEMBERS:
            return ""
        case ValueForm.DECIMAL:
            return "0"
        case ValueForm.INTEGER | ValueForm.FLOAT | ValueForm.YEAR | ValueForm.BITS | ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return 0
        case unknown:
            assert_never(unknown)
