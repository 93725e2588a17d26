"""Selects the columns of a table by globs over `database.table.column`.

A projection is a pure function from the source's table to the table that the sink sees. Readers apply it to the columns they decode and
select. Code that creates, checks or compares sink tables applies it to the same schemas, so both use the same columns. Key columns are
never excluded: without them, two rows would become one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns to replicate; without globs, all of them.

    The part of a glob after the last dot matches columns, the rest matches tables: `shop.*.secret`, `shop.orders.note*`, `*.*.raw`.
    """

    include: tuple[str, ...] = ()
    """For tables that one of these globs names, only the matching columns; for other tables, all columns. Key columns are always included.
    """
    exclude: tuple[str, ...] = ()
    """Columns to exclude, even if they are included."""
    hidden: frozenset[tuple[TableName, str]] = frozenset()
    """Columns that are excluded because they were added while the schema policy ignored new columns."""

    def __post_init__(self) -> None:
        for pattern in self.include + self.exclude:
            if pattern.count(".") < 2 or not all(pattern.rpartition(".")):
                raise DefiniteError(
                    f"{pattern!r} does not name columns", place="choice of columns", hint="columns are chosen by database.table.column"
                )

    def project(self, schema: TableSchema) -> TableSchema:
        """Return the table with the selected columns, and the indexes over these columns only."""
        hidden = {column for table, column in self.hidden if table == schema.name}
        if not self.include and not self.exclude and not hidden:
            return schema
        key = schema.row_key
        only = [column for table, column in map(_split, self.include) if _matches(schema.name, table)]
        without = [column for table, column in map(_split, self.exclude) if _matches(schema.name, table)]
        kept = []
        for column in schema.columns:
            if column.name in hidden or any(fnmatch.fnmatchcase(column.name, pattern) for pattern in without):
                if column.name in key:
                    raise _needed(schema.name, column.name)
            elif not only or column.name in key or any(fnmatch.fnmatchcase(column.name, pattern) for pattern in only):
                kept.append(column)
        if not kept:
            raise DefiniteError(f"no column of {schema.name} is left", place=str(schema.name), hint="leave the table out as a whole")
        if len(kept) == len(schema.columns):
            return schema
        names = {column.name for column in kept}
        indexes = tuple(index for index in schema.indexes if names.issuperset(index.columns))
        return replace(schema, columns=tuple(kept), indexes=indexes)

    def unmatched(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
        """Return the globs that match no column of these tables. They are probably misspelt."""
        columns = [(schema.name, column.name) for schema in schemas for column in schema.columns]

        def is_used(pattern: str) -> bool:
            table, column = _split(pattern)
            return any(_matches(name, table) and fnmatch.fnmatchcase(one, column) for name, one in columns)

        return tuple(pattern for pattern in self.include + self.exclude if not is_used(pattern))


def _split(pattern: str) -> tuple[str, str]:
    table, _, column = pattern.rpartition(".")
    return table, column


def _matches(name: TableName, pattern: str) -> bool:
    return fnmatch.fnmatchcase(str(name), pattern)


def _needed(table: TableName, column: str) -> DefiniteError:
    return DefiniteError(
        f"column {column} of {table} is part of the key that tells its rows apart and cannot be left out",
        place=f"{table}, column {column}",
        hint="choose other columns, or leave the table out as a whole",
    )
