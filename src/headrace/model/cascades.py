"""Foreign keys through which a change of a parent table changes rows of a child table.

MariaDB, and MySQL before 9.6, log the change of the parent only. A `CascadePlan` tells a sink which changes of parents it must apply to
which children, and in which order: a table comes after its parents, and tables that reference each other form one group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from headrace.model.column_types import ValueForm
from headrace.model.schema import ForeignKey, ReferentialAction, TableName, TableSchema

NO_KEY: Final = "the child table has no key, so its rows cannot be told apart"


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key of a child table that has an action."""

    child: TableName
    key: ForeignKey

    @property
    def parent(self) -> TableName:
        return self.key.parent

    @property
    def keeps_row(self) -> bool:
        """Whether a child row can outlive the action."""
        changes = (ReferentialAction.SET_NULL, ReferentialAction.SET_DEFAULT)
        return self.key.on_delete in changes or self.key.on_update is not ReferentialAction.NONE

    def moves_rows(self, key_columns: Collection[str]) -> bool:
        """Whether the action changes the keys of child rows, which consist of these columns."""
        return self.key.on_update is ReferentialAction.CASCADE and not set(self.key.columns).isdisjoint(key_columns)

    def __str__(self) -> str:
        return f"{self.key.name} of {self.child}"


@dataclass(frozen=True)
class CascadePlan:
    """The cascades between the tables of one pipe."""

    schemas: Mapping[TableName, TableSchema]
    """The tables that take part."""
    cascades: tuple[Cascade, ...]
    moving: frozenset[TableName] = frozenset()
    """Child tables with a cascade that changes the keys of rows in the target."""

    def __bool__(self) -> bool:
        return bool(self.cascades)

    @cached_property
    def parents(self) -> frozenset[TableName]:
        return frozenset(cascade.parent for cascade in self.cascades)

    @cached_property
    def logged(self) -> Mapping[TableName, tuple[str, ...]]:
        """The tables whose changes the sink logs. An update comes with its before image if it changes one of these columns."""
        return {name: self._logged(name) for name in sorted(self.parents | self.moving)}

    def of_child(self, child: TableName) -> tuple[Cascade, ...]:
        return tuple(cascade for cascade in self.cascades if cascade.child == child)

    def needs_states(self, name: TableName) -> bool:
        """Whether the sink needs each state of each row of the table: it is parent and child, or its rows move to other keys."""
        return name in self.moving or (name in self.parents and bool(self.of_child(name)))

    def with_target_keys(self, key_columns: Mapping[TableName, Collection[str]]) -> CascadePlan:
        """Return the plan for targets whose keys consist of these columns."""
        return replace(self, moving=frozenset(one.child for one in self.cascades if one.moves_rows(key_columns[one.child])))

    def groups(self) -> list[tuple[TableName, ...]]:
        """Return the child tables in the order in which effects are applied. Tables of one group reference each other."""
        children = {cascade.child for cascade in self.cascades}
        descendants = {name: self.descendants(name) for name in children}
        groups: list[tuple[TableName, ...]] = []
        done: set[TableName] = set()
        # A table that reaches another one, and is not reached by it, comes first.
        for name in sorted(children, key=lambda one: (-len(descendants[one] | {one}), one)):
            if name not in done:
                group = tuple(sorted({name} | {other for other in descendants[name] if name in descendants[other]}))
                groups.append(tuple(one for one in group if one in children))
                done.update(group)
        return groups

    def descendants(self, name: TableName) -> frozenset[TableName]:
        """Return the tables that the cascades of a table reach."""
        found: set[TableName] = set()
        left = [name]
        while left:
            parent = left.pop()
            new = {cascade.child for cascade in self.cascades if cascade.parent == parent} - found
            found |= new
            left.extend(new)
        return frozenset(found)

    def _logged(self, name: TableName) -> tuple[str, ...]:
        referenced = [column for cascade in self.cascades if cascade.parent == name for column in cascade.key.parent_columns]
        if not self.needs_states(name):
            return tuple(dict.fromkeys(referenced))
        own = [column for cascade in self.of_child(name) for column in cascade.key.columns]
        return tuple(dict.fromkeys([*self.schemas[name].row_key, *referenced, *own]))


def plan_cascades(schemas: Iterable[TableSchema]) -> CascadePlan:
    """Return the cascades between these tables. Foreign keys to other tables are left out."""
    tables = {schema.name: schema for schema in schemas}
    found = [
        Cascade(schema.name, key) for schema in tables.values() for key in schema.foreign_keys if key.cascades and key.parent in tables
    ]
    involved = {cascade.child for cascade in found} | {cascade.parent for cascade in found}
    return CascadePlan({name: tables[name] for name in sorted(involved)}, tuple(found))


def source_obstacles(
    cascade: Cascade, schemas: Mapping[TableName, TableSchema], ignores_trailing_spaces: Callable[[TableName, str], bool]
) -> Iterator[str]:
    """Yield why no sink can apply the cascade exactly, as far as the source determines it.

    `schemas`: the replicated tables. `ignores_trailing_spaces`: whether the source does when it compares texts of a column.
    """
    child, parent, key = schemas[cascade.child], schemas.get(cascade.parent), cascade.key
    if parent is None:
        yield f"its parent {cascade.parent} is not replicated"
    if not child.row_key:
        yield NO_KEY
    if ReferentialAction.SET_DEFAULT in (key.on_delete, key.on_update):
        yield "it sets defaults, which no tested server does"
    if any(column.form is ValueForm.MEMBERS for column in child.columns if column.name in key.columns):
        yield "its columns are of type ENUM or SET, which the source compares by number"
    if cascade.keeps_row and any(column.generated for column in child.columns):
        yield "the table has generated columns, which the server computes again"
    if parent is not None:
        yield from _padding_obstacles(key, child, parent, ignores_trailing_spaces)


def _padding_obstacles(
    key: ForeignKey, child: TableSchema, parent: TableSchema, ignores_trailing_spaces: Callable[[TableName, str], bool]
) -> Iterator[str]:
    """Yield where the key connects a CHAR with a VARCHAR, and the spaces count with which the server fills the CHAR."""
    for own, referenced in zip(key.columns, key.parent_columns, strict=True):
        is_char, was_char = _is_char(child, own), _is_char(parent, referenced)
        if is_char == was_char:
            continue
        if not ignores_trailing_spaces(parent.name, referenced):
            yield f"either {own} or {referenced} is a CHAR, and the collation compares the spaces with which the server fills it"
        elif was_char and key.on_update is ReferentialAction.CASCADE:
            yield f"it copies texts of a CHAR to {own}, with the spaces with which the server fills them"


def _is_char(schema: TableSchema, name: str) -> bool:
    return any(column.is_char for column in schema.columns if column.name == name)
