"""Computes the schema changes from a table before a statement to the table after it. Applying them gives exactly the latter."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from headrace.model.schema import TableSchema
from headrace.model.schema_change import (
    FIRST,
    AddColumn,
    ChangeForeignKeys,
    ChangeIndexes,
    ChangeOptions,
    ChangePrimaryKey,
    DropColumn,
    ModifyColumn,
    RenameColumn,
    TableChange,
    alter,
)


class _Steps:
    """The changes so far, and the table after them."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.changes: list[TableChange] = []

    def take(self, change: TableChange) -> None:
        self.schema = alter(change, self.schema)
        self.changes.append(change)


def changes_between(before: TableSchema, after: TableSchema, origins: Mapping[str, str | None]) -> list[TableChange]:
    """Return the changes from `before` to `after` (of one name); `origins`: the old name of every new column that existed before."""
    steps = _Steps(before)
    name = before.name
    kept = {origin for origin in origins.values() if origin is not None}
    for column in before.columns:
        if column.name not in kept:
            steps.take(DropColumn(name, column.name))
    _rename(steps, {origin: new for new, origin in origins.items() if origin is not None and origin != new})
    _arrange(steps, after, {new for new, origin in origins.items() if origin is None})
    if steps.schema.primary_key != after.primary_key:
        steps.take(ChangePrimaryKey(name, steps.schema.primary_key, after.primary_key))
    if steps.schema.indexes != after.indexes:
        steps.take(ChangeIndexes(name, steps.schema.indexes, after.indexes))
    if steps.schema.foreign_keys != after.foreign_keys:
        steps.take(ChangeForeignKeys(name, steps.schema.foreign_keys, after.foreign_keys))
    if (steps.schema.charset, steps.schema.comment) != (after.charset, after.comment):
        steps.take(ChangeOptions(name, after.charset, after.comment))
    assert steps.schema == after
    return steps.changes


def _rename(steps: _Steps, renames: dict[str, str]) -> None:
    """Rename in an order in which no name is used twice; break a cycle with an unused name."""
    waiting = dict(renames)
    while waiting:
        taken = {column.name for column in steps.schema.columns}
        free = next((old for old, new in waiting.items() if new not in taken), None)
        if free is None:
            old, new = waiting.popitem()
            aside = next(name for name in (f"{old}_{number}" for number in range(1 << 16)) if name not in taken)
            steps.take(RenameColumn(steps.schema.name, old, aside))
            waiting[aside] = new
        else:
            steps.take(RenameColumn(steps.schema.name, free, waiting.pop(free)))


def _arrange(steps: _Steps, after: TableSchema, new: set[str]) -> None:
    """Give every column its position and definition, with the fewest moves."""
    places = {column.name: i for i, column in enumerate(steps.schema.columns)}
    staying = _longest_rising([places[column.name] for column in after.columns if column.name not in new])
    before = FIRST
    for column in after.columns:
        if column.name in new:
            at_end = before == (steps.schema.columns[-1].name if steps.schema.columns else FIRST)
            steps.take(AddColumn(steps.schema.name, column, None if at_end else before))
        else:
            old = steps.schema.column(column.name)
            moved = places[column.name] not in staying
            if moved or old != column:
                steps.take(ModifyColumn(steps.schema.name, old, column, before if moved else None))
        before = column.name


def _longest_rising(numbers: list[int]) -> set[int]:
    """Return the members of a longest rising subsequence of distinct numbers."""
    tails: list[int] = []
    previous: dict[int, int | None] = {}
    for number in numbers:
        at = bisect_left(tails, number)
        previous[number] = tails[at - 1] if at else None
        tails[at : at + 1] = [number]
    found: set[int] = set()
    last = tails[-1] if tails else None
    while last is not None:
        found.add(last)
        last = previous[last]
    return found
