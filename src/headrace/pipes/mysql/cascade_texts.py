"""Finds the foreign keys over texts whose comparison a statement may change, without the statement being understood.

The source compares keys by the collation of the parent's column, which no event holds: the pipe reads it when it needs it. If the stream is
behind, a statement that is still to come may have changed the collation already. When the stream reaches this statement, the child tables
are read again. A statement that is taken for one of these although it is none costs such a reading, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headrace.model.cascades import Cascade, CascadePlan
from headrace.model.column_types import ValueForm

_NAME: Final = re.compile(r"`((?:[^`]|``)*)`|\"((?:[^\"]|\"\")*)\"|([\w$\u0080-\U0010ffff]+)")
_WHOLE_TABLES: Final = frozenset({"drop table", "drop temporary", "drop database", "drop schema", "rename table", "rename tables"})
_OF_COLUMNS: Final = frozenset({"modify", "change", "drop", "rename"})


def text_cascades(plan: CascadePlan) -> Iterator[Cascade]:
    """Yield the cascades whose keys the source compares by a collation."""
    for cascade in plan.cascades:
        parent = plan.schemas[cascade.parent]
        if any(column.form is ValueForm.TEXT for column in parent.columns if column.name in cascade.key.parent_columns):
            yield cascade


def may_change_comparison(statement: str, cascade: Cascade) -> bool:
    """Whether the statement may change the collation by which the source compares the keys, or end the foreign key.

    A foreign key ends before its columns get another collation, unless they get it with `foreign_key_checks = 0`.
    """
    listed = [(found[1] or found[2] or found[3] or "").lower() for found in _NAME.finditer(statement)]
    words = frozenset(listed)
    is_whole = " ".join(listed[:2]) in _WHOLE_TABLES or {"create", "replace", "table"} <= words
    if is_whole and words & {cascade.parent.table.lower(), cascade.parent.database.lower()}:
        return True
    key, key_columns = cascade.key, {*cascade.key.columns, *cascade.key.parent_columns}
    if words & {cascade.parent.table.lower(), cascade.child.table.lower()}:
        is_renamed = "rename" in words and cascade.parent.table.lower() in words
        named = {name.lower() for name in (key.name, *key_columns)}
        return is_renamed or "convert" in words or bool(words & _OF_COLUMNS and words & named)
    return False
