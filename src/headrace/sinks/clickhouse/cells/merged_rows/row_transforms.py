"""Transforms of merged rows: renamed, masked and left out columns. Cells stay as the source wrote them.

Invariant: a pure function of the base table and the options. A mask applies to the merged value, so it cannot change which cell wins. The
keys of rows keep their values.
"""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never

from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.types import is_nullable, nullable_type
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.transforms.options import Mask, MaskKind, Transforms, read_mask

_TEXTS: Final = frozenset({"ascii", "text"})
_KEYS: Final = (ColumnRole.PARTITION, ColumnRole.CLUSTERING)


@dataclass(frozen=True, slots=True)
class RowTransforms:
    """The transforms of one base table, by source column."""

    renamed: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    masks: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.renamed or self.dropped or self.masks)

    def makes_other_values(self, other: RowTransforms) -> bool:
        """Whether stored rows differ, not only the names that the view gives to their columns."""
        return (self.dropped, self.masks) != (other.dropped, other.masks)

    def name_of(self, column: CqlColumn) -> str:
        """Return the name in the view."""
        return dict(self.renamed).get(column.name, column.name)

    def shows(self, column: CqlColumn) -> bool:
        return column.name not in self.dropped

    def mask_of(self, column: CqlColumn) -> Mask | None:
        text = dict(self.masks).get(column.name)
        return None if text is None else read_mask(text, f"mask.{column.name}")

    def value_sql(self, column: CqlColumn, value: str) -> str:
        """Return SQL of the value that is stored."""
        mask = self.mask_of(column)
        return value if mask is None else mask_sql(mask, value, nullable_type(column.type))

    def shown_table(self, table: CqlTable) -> CqlTable:
        """Return the table without the columns that are left out."""
        return CqlTable(table.name, tuple(filter(self.shows, table.columns)))

    def to_json(self) -> dict[str, Any]:
        return {"rename": dict(self.renamed), "drop": list(self.dropped), "mask": dict(self.masks)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RowTransforms:
        return cls(tuple(raw["rename"].items()), tuple(raw["drop"]), tuple(raw["mask"].items()))


def row_transforms(transforms: Transforms, table: CqlTable) -> RowTransforms:
    """Return the transforms of a table; raise `DefiniteError` if they do not fit it."""
    options = transforms.of(table.name)
    if options.is_empty:
        return RowTransforms()
    names = {column.name for column in table.columns}
    dropped = tuple(sorted(name for name in names if any(fnmatch.fnmatchcase(name, one) for one in options.drop)))
    renamed = tuple(sorted((name, new) for name, new in options.rename if name in names and name not in dropped and new != name))
    masks = tuple(sorted((name, text) for name, text in options.mask if name in names and name not in dropped))
    made = RowTransforms(renamed, dropped, masks)
    for column in table.columns:
        _check_column(made, transforms, table, column)
    _check_new_names(made, transforms, table)
    return made


def mask_sql(mask: Mask, value: str, kind: str) -> str:
    """Return SQL of a masked value; NULL stays NULL. `kind` is the ClickHouse type of the value, a Nullable one."""
    match mask.kind:
        case MaskKind.NULL:
            return f"CAST(NULL AS {kind})"
        case MaskKind.EMPTY:
            return f"if(isNull({value}), NULL, '')"
        case MaskKind.TEXT:
            return f"if(isNull({value}), NULL, {quote_text(mask.text)})"
        case MaskKind.EMAIL:
            domain = f"arrayElement(splitByChar('@', assumeNotNull({value})), -1)"
            shown = f"concat(substringUTF8(assumeNotNull({value}), 1, 1), '***@', {domain})"
            return f"if(isNull({value}), NULL, if(length(assumeNotNull({value})) > length({domain}) + 1, {shown}, '***'))"
        case MaskKind.FIRST | MaskKind.LAST:
            return f"if(isNull({value}), NULL, {_partly(mask, f'assumeNotNull({value})')})"
        case unknown:
            assert_never(unknown)


def _partly(mask: Mask, text: str) -> str:
    length, count = f"lengthUTF8({text})", mask.count
    if not count:
        return f"repeat('*', {length})"
    stars = f"repeat('*', if({length} > {count}, toUInt64({length} - {count}), {length}))"
    if mask.kind is MaskKind.LAST:
        return f"concat({stars}, if({length} > {count}, rightUTF8({text}, {count}), ''))"
    return f"concat(if({length} > {count}, leftUTF8({text}, {count}), ''), {stars})"


def check_names(transforms: Transforms, table: CqlTable) -> None:
    """Raise if options for exactly this table name columns that it does not have: a misspelt name would leave a value visible."""
    names = [column.name for column in table.columns]
    for pattern, own in transforms.tables:
        if pattern != str(table.name):
            continue
        for field, pairs in own:
            lacking = [name for name, _ in pairs if name not in names] if field in ("rename", "mask") else []
            lacking += [one for one in pairs if not (glob.has_magic(one) or one in names)] if field == "drop" else []
            if lacking:
                raise DefiniteError(
                    f"{field} names {lacking[0]}, and {table.name} has no such column",
                    place=transforms.place(table.name, field),
                    hint=f"correct the name, or remove it if the column was dropped; its columns: {', '.join(names)}",
                )


def _check_column(made: RowTransforms, transforms: Transforms, table: CqlTable, column: CqlColumn) -> None:
    mask = made.mask_of(column)
    if column.role in _KEYS and (mask is not None or not made.shows(column)):
        field = "drop" if mask is None else "mask"
        raise DefiniteError(
            f"column {column.name} of {table.name} is part of the key that tells its rows apart, and cannot be left out or masked",
            place=transforms.place(table.name, field),
            hint=f"remove it from {field}; in a view of your own that reads {table.name.table}, rows need no key",
        )
    if mask is None:
        return
    fits = is_nullable(column.type) if mask.kind is MaskKind.NULL else column.type.name in _TEXTS
    if not fits:
        raise DefiniteError(
            f"column {column.name} of {table.name} is {column.type}, which {mask.kind} cannot mask",
            place=transforms.place(table.name, "mask"),
            hint=f'texts have all masks, other scalar types "null"; drop = ["{column.name}"] leaves out a column of any type',
        )


def _check_new_names(made: RowTransforms, transforms: Transforms, table: CqlTable) -> None:
    taken: dict[str, str] = {}
    for column in filter(made.shows, table.columns):
        name = made.name_of(column)
        other = taken.setdefault(name, column.name)
        if not name or other != column.name:
            what = "a column's name is empty" if not name else f"columns {other} and {column.name} would both be called {name}"
            raise DefiniteError(
                f"{what} in the view of {table.name}", place=transforms.place(table.name, "rename"), hint="choose another name in rename"
            )
