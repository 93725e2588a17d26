"""What an ALTER did to existing values, independent of source and sink.

A server may rewrite every row of a table without a row event in its log. The source states for each column what the server did. A sink does
the same to its copy, or requests a resync where only the source knows the values (`UnknownValues`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from headrace.model.schema import Column, TableSchema
from headrace.model.schema_change import AddColumn, DropColumn, ModifyColumn, RenameColumn, SchemaChange


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Every value is unchanged, converted to the new type. No existing value is out of the new type's range."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """Text was cut to this many characters (None: not cut), and lost its trailing spaces if it was stripped."""

    length: int | None
    stripped: bool = False


@dataclass(frozen=True, slots=True)
class BackfillValue:
    """Every row holds this value: one that Arrow accepts for the column's type, days and microseconds for dates and times."""

    value: object


@dataclass(frozen=True, slots=True)
class UnknownValues:
    """Only the source knows the new values."""

    why: str


Effect: TypeAlias = Unchanged | Truncated | BackfillValue | UnknownValues


@dataclass(frozen=True, slots=True)
class AlteredColumn:
    """A column after an ALTER, its former name, and what happened to its values."""

    column: Column
    origin: str | None
    """The former name; None for a new column."""
    effect: Effect


@dataclass(frozen=True, slots=True)
class Alteration:
    """One table before and after a statement."""

    before: TableSchema
    after: TableSchema
    altered_columns: tuple[AlteredColumn, ...]
    """One for each column of `after`, in its order."""
    left: frozenset[str] = frozenset()
    """Columns of `before` that the sink keeps unchanged, because its schema policy ignores the change."""

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns of `before` that no longer exist."""
        kept = {altered_column.origin for altered_column in self.altered_columns}
        return tuple(column.name for column in self.before.columns if column.name not in kept)

    @property
    def moves_key(self) -> bool:
        """Whether the row key changed."""
        new_names = {
            altered_column.origin: altered_column.column.name
            for altered_column in self.altered_columns
            if altered_column.origin is not None
        }
        return tuple(new_names.get(name) for name in self.before.row_key) != self.after.row_key

    def shown(
        self, show: Callable[[TableSchema], TableSchema], show_after: Callable[[TableSchema], TableSchema] | None = None
    ) -> Alteration:
        """Return the alteration of the table that the sink sees (`show_after`: the mapping from now on)."""
        before, after = show(self.before), (show_after or show)(self.after)
        visible = {column.name for column in before.columns}
        altered_columns = {altered_column.column.name: altered_column for altered_column in self.altered_columns}
        return replace(
            self,
            before=before,
            after=after,
            altered_columns=tuple(_seen(altered_columns[column.name], column, visible) for column in after.columns),
        )


def _seen(altered_column: AlteredColumn, column: Column, visible: set[str]) -> AlteredColumn:
    if altered_column.origin is not None and altered_column.origin not in visible:
        return AlteredColumn(column, None, UnknownValues("its values were not carried before"))
    return replace(altered_column, column=column)


def alteration(
    before: TableSchema, after: TableSchema, changes: Iterable[SchemaChange], effect_of: Callable[[AddColumn | ModifyColumn], Effect]
) -> Alteration:
    """Return the effect of one statement's changes on a table."""
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
    altered_columns = (AlteredColumn(column, origins[column.name], effects.get(column.name, Unchanged())) for column in after.columns)
    return Alteration(before, after, tuple(altered_columns))
