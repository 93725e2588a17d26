"""What an alteration did to the values that were there, in words that neither source nor sink owns.

A server may rewrite every row of a table without a word in its log. The source says column by column what it surely did; a sink does the
same to its copy, or has the table read again where only the source can tell (`Untold`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from headrace.model.schema import Column, TableSchema
from headrace.model.schema_change import AddColumn, DropColumn, ModifyColumn, RenameColumn, SchemaChange


@dataclass(frozen=True, slots=True)
class Kept:
    """Every value is what it was, as the new type spells it. What the new type cannot hold was not there."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """Text was cut to so many characters (None: to none in particular), and lost the spaces at its end if it was stripped."""

    length: int | None
    stripped: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """Every row holds this: a value that Arrow takes for the column's type, days and microseconds for dates and times."""

    value: object


@dataclass(frozen=True, slots=True)
class Untold:
    """Only the source knows."""

    why: str


Show: TypeAlias = Callable[[TableSchema], TableSchema]
"""A source's table as the sink gets to see it."""

Effect: TypeAlias = Kept | Shortened | Filled | Untold


@dataclass(frozen=True, slots=True)
class Fate:
    """A column after an alteration, and what it was before."""

    column: Column
    origin: str | None
    """The name it had; None for a new column."""
    effect: Effect


@dataclass(frozen=True, slots=True)
class Alteration:
    """One table before and after a statement."""

    before: TableSchema
    after: TableSchema
    fates: tuple[Fate, ...]
    """Of each column of `after`, in its order."""
    left: frozenset[str] = frozenset()
    """Columns of `before` that the copy shall leave as they are: it was chosen to ignore what became of them."""

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns that are no more."""
        kept = {fate.origin for fate in self.fates}
        return tuple(column.name for column in self.before.columns if column.name not in kept)

    @property
    def moves_key(self) -> bool:
        """Whether another key tells rows apart."""
        new_names = {fate.origin: fate.column.name for fate in self.fates if fate.origin is not None}
        return tuple(new_names.get(name) for name in self.before.row_key) != self.after.row_key

    def shown(
        self, show: Callable[[TableSchema], TableSchema], show_after: Callable[[TableSchema], TableSchema] | None = None
    ) -> Alteration:
        """The alteration of what is carried of the table (`show_after`: from now on)."""
        before, after = show(self.before), (show_after or show)(self.after)
        visible = {column.name for column in before.columns}
        fates = {fate.column.name: fate for fate in self.fates}
        return replace(
            self, before=before, after=after, fates=tuple(_seen(fates[column.name], column, visible) for column in after.columns)
        )


def _seen(fate: Fate, column: Column, visible: set[str]) -> Fate:
    if fate.origin is not None and fate.origin not in visible:
        return Fate(column, None, Untold("its values were not carried before"))
    return replace(fate, column=column)


def alteration(
    before: TableSchema, after: TableSchema, changes: Iterable[SchemaChange], effect_of: Callable[[AddColumn | ModifyColumn], Effect]
) -> Alteration:
    """What the changes of one statement make of a table."""
    origins: dict[str, str | None] = {column.name: column.name for column in before.columns}
    effects: dict[str, Effect] = {}
    for change in changes:
        match change:
            case DropColumn(_, name):
                origins.pop(name, None)
                effects.pop(name, None)
            case RenameColumn(_, name, new_name):
                origins[new_name] = origins.pop(name)
                if name in effects:
                    effects[new_name] = effects.pop(name)
            case AddColumn(_, column):
                origins[column.name], effects[column.name] = None, effect_of(change)
            case ModifyColumn(_, column):
                effects[column.name] = effect_of(change)
    fates = (Fate(column, origins[column.name], effects.get(column.name, Kept())) for column in after.columns)
    return Alteration(before, after, tuple(fates))
