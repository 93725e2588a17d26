"""Foreign keys through which a change of a parent table changes rows of a child table.

MariaDB, and MySQL before 9.6, log the change of the parent only. A `CascadePlan` tells a sink which changes of parents it must apply to
which children, and in which order: a table comes after its parents, and tables that reference each other form one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from headrace.model.schema import ForeignKey, ReferentialAction, TableName, TableSchema


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

    def __str__(self) -> str:
        return f"{self.key.name} of {self.child}"


@dataclass(frozen=True)
class CascadePlan:
    """The cascades between the tables of one pipe."""

    schemas: Mapping[TableName, TableSchema]
    """The tables that take part."""
    cascades: tuple[Cascade, ...]

    def __bool__(self) -> bool:
        return bool(self.cascades)

    @cached_property
    def parents(self) -> frozenset[TableName]:
        return frozenset(cascade.parent for cascade in self.cascades)

    @cached_property
    def logged(self) -> Mapping[TableName, tuple[str, ...]]:
        """The columns of each parent table whose values the sink needs of every change.

        A parent that is itself a child also has its row key and its own foreign keys in it.
        """
        return {name: self._logged(name) for name in sorted(self.parents)}

    def of_child(self, child: TableName) -> tuple[Cascade, ...]:
        return tuple(cascade for cascade in self.cascades if cascade.child == child)

    def is_middle(self, name: TableName) -> bool:
        """Whether the table is parent and child."""
        return name in self.parents and bool(self.of_child(name))

    def groups(self) -> list[tuple[TableName, ...]]:
        """Return the child tables in the order in which effects are applied. Tables of one group reference each other."""
        children = {cascade.child for cascade in self.cascades}
        descendants = {name: self._descendants(name) for name in children}
        groups: list[tuple[TableName, ...]] = []
        done: set[TableName] = set()
        # A table that reaches another one, and is not reached by it, comes first.
        for name in sorted(children, key=lambda one: (-len(descendants[one] | {one}), one)):
            if name not in done:
                group = tuple(sorted({name} | {other for other in descendants[name] if name in descendants[other]}))
                groups.append(tuple(one for one in group if one in children))
                done.update(group)
        return groups

    def _descendants(self, name: TableName) -> frozenset[TableName]:
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
        if not self.is_middle(name):
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
