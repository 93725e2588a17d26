"""Checks that transforms name existing tables and columns: a misspelt name would leave a value visible that should be hidden."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.transforms.duckdb_engine import nearest
from headrace.transforms.options import TransformOptions, Transforms
from headrace.transforms.transform_plan import error_location, unmatched_columns


@dataclass(frozen=True, slots=True)
class NameConflict:
    """An option that matches no table or no column."""

    message: str
    place: str
    hint: str
    is_sure: bool
    """Whether it names one table or column, so that it cannot match later ones."""

    def error(self) -> DefiniteError:
        return DefiniteError(self.message, place=self.place, hint=self.hint)


def find_name_conflicts(transforms: Transforms, schemas: Iterable[TableSchema]) -> list[NameConflict]:
    """Return the options that match no table, or no column of their tables."""
    known, found = list(schemas), []
    for table, own in transforms.tables:
        mine = [schema for schema in known if fnmatch.fnmatchcase(str(schema.name), table)]
        if not mine:
            near = nearest(table, [str(schema.name) for schema in known])
            hint = f"did you mean {near}?" if near else "check the name, and which tables are chosen"
            found.append(NameConflict(f"no chosen table matches {table}", f'transforms."{table}"', hint, not glob.has_magic(table)))
            continue
        options = TransformOptions(**dict(own))
        lacking = [set(unmatched_columns(options, schema)) for schema in mine]
        columns = {column.name for schema in mine for column in schema.columns}
        for field, name in sorted(set.intersection(*lacking)):
            near = nearest(name, columns)
            hint = f"did you mean {near}?" if near else f"its columns: {', '.join(sorted(columns))}"
            what = f"{mine[0].name} has" if len(mine) == 1 else f"the tables of {table} have"
            place = f'transforms."{table}".{field}'
            found.append(NameConflict(f"{field} names {name}, and {what} no such column", place, hint, not glob.has_magic(name)))
    return found


def check_new_table(transforms: Transforms, schema: TableSchema) -> None:
    """Raise `DefiniteError` if options for exactly this table name columns that it does not have."""
    own = Transforms(tuple((table, fields) for table, fields in transforms.tables if table == str(schema.name)))
    sure = [one for one in find_name_conflicts(own, [schema]) if one.is_sure]
    if sure:
        raise sure[0].error()


def check_snapshot_replay(options: TransformOptions, before: TableSchema, now: TableSchema) -> None:
    """Raise `DefiniteError` if a hidden column disappeared and an unmentioned one is new: it may be the same column, renamed."""
    known = {column.name for column in before.columns}
    gone = [column.name for column in before.columns if _is_hidden(options, column.name) and column.name not in _names(now)]
    named = {name for name, _ in options.rename}
    came = [name for name in _names(now) if name not in known | named and not _is_hidden(options, name)]
    if gone and came:
        old, new = ", ".join(gone), ", ".join(came)
        raise DefiniteError(
            f"table {now.name} is to be read again, and is another one: {old}, which its transforms hide, is gone, and {new} came; if that "
            "is the same under another name, it would be shown",
            place=error_location(now.name, f"column {gone[0]}"),
            hint=f'name {came[0]} in the transforms as {gone[0]} was; if it may be shown, say so: rename = {{ {came[0]} = "{came[0]}" }}',
        )


def _is_hidden(options: TransformOptions, name: str) -> bool:
    treated = {one for one, _ in (*options.mask, *options.hash, *options.computed)}
    return name in treated or any(fnmatch.fnmatchcase(name, one) for one in options.drop)


def _names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]
