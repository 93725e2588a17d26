"""What a table must be to hold what it holds and what events say of it now.

Events of one table come in several shapes at once: partitions and replays bring old ones after new ones. So the table is the sum of all:
a column that events know and the table does not is added; one that events know no more stays, and holds NULL from then on; a type may
become wider. Invariant: the table that results holds every value that any event so far can carry; where no such table is, there is an
error, and nothing is done. Merging in any order gives tables that hold the same values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.effects import Alteration, Fate, Kept
from headrace.model.schema import Column, Kind, TableSchema
from headrace.pipes.policy import ChangeKind
from headrace.sources.debezium.records import Found
from headrace.sources.mysql.fillings import filling

_SIGNED: Final = (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)
_UNSIGNED: Final = (Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64)
_DIGITS: Final = {
    Kind.INT8: 3,
    Kind.INT16: 5,
    Kind.INT32: 10,
    Kind.INT64: 19,
    Kind.UINT8: 3,
    Kind.UINT16: 5,
    Kind.UINT32: 10,
    Kind.UINT64: 20,
}
_FRACTIONAL: Final = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_MOST_DIGITS: Final = 76


@dataclass(frozen=True, slots=True)
class Merge:
    """A table before and after, and what the difference is."""

    alteration: Alteration
    kinds: tuple[ChangeKind, ...]
    texts: tuple[str, ...]
    """For people: each difference."""

    @property
    def is_nothing(self) -> bool:
        return not self.kinds


def merge(known: TableSchema, found: Found) -> Merge:
    """What the table must become; raises `DefiniteError` where its rows could not be held together with the new ones."""
    told = found.schema
    if told.primary_key != known.primary_key:
        raise _incompatible(found, ", ".join(told.primary_key), "key", _key_text(known), _key_text(told))
    told_columns = {column.name: column for column in told.columns}
    kinds: set[ChangeKind] = set()
    texts: list[str] = []
    columns: list[Column] = []
    for old in known.columns:
        new = _wider(old, told_columns.get(old.name), found)
        columns.append(new)
        if _material(new) != _material(old):
            kinds.add(ChangeKind.MODIFY_COLUMN if old.name in told_columns else ChangeKind.DROP_COLUMN)
            texts.append(f"{old.name}: {type_text(old)} to {type_text(new)}")
    names = {column.name for column in known.columns}
    for column in told.columns:
        if column.name not in names:
            kinds.add(ChangeKind.ADD_COLUMN)
            columns.append(column)
            texts.append(f"new column {column.name} {type_text(column)}")
    after = replace(known, columns=tuple(columns))
    fates = tuple(
        Fate(column, column.name, Kept()) if column.name in names else Fate(column, None, filling(column)) for column in after.columns
    )
    return Merge(Alteration(known, after, fates), tuple(kind for kind in ChangeKind if kind in kinds), tuple(texts))


def type_text(column: Column) -> str:
    """A column's type, for people."""
    inside = f"({column.precision},{column.scale})" if column.kind is Kind.DECIMAL else ""
    if column.kind in _FRACTIONAL and column.precision:
        inside = f"({column.precision})"
    return f"{column.kind}{inside}{' nullable' if column.nullable else ''}"


def _wider(old: Column, new: Column | None, found: Found) -> Column:
    """The column that holds what both hold."""
    if new is None:
        # The source has it no more: rows from now on hold nothing there.
        return old if old.nullable or old.name in found.schema.primary_key else replace(old, nullable=True)
    column = replace(old, nullable=old.nullable or new.nullable)
    if _plain(old) == _plain(new):
        return column
    wide = _widened(old, new)
    if wide is None:
        raise _incompatible(found, old.name, "column", type_text(old), type_text(new))
    return replace(wide, nullable=column.nullable)


def _widened(old: Column, new: Column) -> Column | None:
    kinds = {old.kind, new.kind}
    if kinds <= set(_DIGITS):
        kind = _integer(old.kind, new.kind)
        return None if kind is None else replace(new, kind=kind)
    if old.kind is new.kind:
        return _same_kind(old, new)
    if kinds == {Kind.FLOAT32, Kind.FLOAT64}:
        return replace(new, kind=Kind.FLOAT64)
    if Kind.DECIMAL in kinds and kinds - {Kind.DECIMAL} <= set(_DIGITS):
        return _decimal(old, new)
    if new.kind is Kind.STRING and old.kind in (Kind.ENUM, Kind.SET, Kind.JSON):
        return new
    if old.kind is Kind.STRING and new.kind in (Kind.ENUM, Kind.SET, Kind.JSON):
        return old
    return None


def _same_kind(old: Column, new: Column) -> Column | None:
    if old.kind is Kind.DECIMAL:
        return _decimal(old, new)
    if old.kind in (Kind.ENUM, Kind.SET):
        longer, shorter = (new, old) if len(new.members) >= len(old.members) else (old, new)
        return longer if longer.members[: len(shorter.members)] == shorter.members else _both_names(old, new)
    return replace(new, precision=max(old.precision, new.precision))


def _both_names(old: Column, new: Column) -> Column:
    """Names are carried as names, so their order does not matter."""
    return replace(new, members=(*old.members, *(name for name in new.members if name not in old.members)))


def _integer(one: Kind, other: Kind) -> Kind | None:
    for family in (_SIGNED, _UNSIGNED):
        if one in family and other in family:
            return family[max(family.index(one), family.index(other))]
    signed, unsigned = (one, other) if one in _SIGNED else (other, one)
    # The next wider signed type holds all of an unsigned one.
    need = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
    return _SIGNED[need] if need < len(_SIGNED) else None


def _decimal(old: Column, new: Column) -> Column | None:
    scale = max(old.scale, new.scale)
    digits = max(_before_point(old), _before_point(new)) + scale
    return replace(new, kind=Kind.DECIMAL, precision=digits, scale=scale) if digits <= _MOST_DIGITS else None


def _before_point(column: Column) -> int:
    return _DIGITS.get(column.kind, column.precision - column.scale)


def _plain(column: Column) -> tuple[object, ...]:
    return column.kind, column.precision, column.scale, column.members


def _material(column: Column) -> tuple[object, ...]:
    return (*_plain(column), column.nullable)


def _key_text(schema: TableSchema) -> str:
    return f"({', '.join(schema.primary_key)})"


def _incompatible(found: Found, name: str, what: str, before: str, after: str) -> DefiniteError:
    return DefiniteError(
        f"table {found.schema.name} has changed in a way that its copy cannot follow: {what} {name} was {before} and is now {after}",
        place=f"{found.topic}[{found.partition}]@{found.offset}",
        hint="nothing from there on counts as read; alter the copy by hand and begin anew with another --state, or drop it and have "
        "Debezium take a new snapshot",
    )
