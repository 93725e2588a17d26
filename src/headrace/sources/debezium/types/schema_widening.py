"""Widens a table's schema so that it holds new events and still holds the old ones.

Events of several schemas come in any order: older ones from another partition, or repeated after a crash. So a table only grows: columns
are added, types get wider, NULL becomes allowed, and columns that events no longer have stay. Widening by the same events in any order
gives the same columns. A change that would alter values is rejected.

Where more is known of a column than events say (its type in the source, from the schema history topic or the target table), events that
fit such a column change nothing: a TINYINT UNSIGNED arrives as `int16` and stays TINYINT UNSIGNED.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, assert_never

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, BackfillValue, Effect, Unchanged, UnknownValues
from headrace.model.column_types import COLUMN_TYPES, FRACTIONAL_FORMS, ValueForm
from headrace.model.schema import Column, Kind, TableSchema
from headrace.model.schema_change import FIRST, AddColumn, ModifyColumn, TableChange, alter
from headrace.sources.debezium.types.column_mapping import MOST_DIGITS
from headrace.sources.mysql.schema.alter_effects import backfill_value

_INTEGER_EVENTS: Final[dict[Kind, tuple[Kind, ...]]] = {
    Kind.INT8: (Kind.INT16,),
    Kind.UINT8: (Kind.INT8, Kind.INT16),
    Kind.UINT16: (Kind.INT32,),
    # A MEDIUMINT UNSIGNED is an INT32 on the way.
    Kind.UINT32: (Kind.INT32, Kind.INT64),
    Kind.UINT64: (Kind.INT64,),
}
"""Other integers as which an integer may arrive."""


@dataclass(frozen=True, slots=True)
class WidenedSchema:
    schema: TableSchema
    """As it must be: it holds the old rows and the new."""
    changes: tuple[TableChange, ...] = ()
    alteration: Alteration | None = None
    """The alteration for the sink; None if nothing changes."""
    notes: tuple[str, ...] = ()
    """Log messages: what events do not say, and what is done instead."""


def can_hold(known: TableSchema, sent: TableSchema, *, zeroes: bool = False) -> bool:
    try:
        return widen_schema(known, sent, zeroes=zeroes).alteration is None
    except DefiniteError:
        return False


def widen_schema(known: TableSchema, sent: TableSchema, *, zeroes: bool = False) -> WidenedSchema:
    """What the table must become for events that describe it so; a definite error where that would alter values or keys.

    `zeroes`: whether the source is one that puts zero values into a required column that is added without a default (`sends_zero_dates`).
    """
    _check_key(known, sent)
    changes: list[TableChange] = []
    notes: list[str] = []
    effects: dict[str, Effect] = {}
    there = {column.name: column for column in known.columns}
    before = FIRST
    for column in sent.columns:
        old = there.get(column.name)
        if old is None:
            added, effects[column.name] = _added(column, notes, zeroes)
            changes.append(AddColumn(known.name, added, before))
        else:
            grown = _grown(known, old, column)
            if grown != old:
                changes.append(ModifyColumn(known.name, old, grown))
        before = column.name
    names = {column.name for column in sent.columns}
    changes += [change for column in known.columns if column.name not in names for change in _missing(known, column, notes, zeroes)]
    schema = known
    for change in changes:
        schema = alter(change, schema)
    if not changes:
        return WidenedSchema(known)
    altered_columns = tuple(
        AlteredColumn(column, column.name if column.name in there else None, effects.get(column.name, Unchanged()))
        for column in schema.columns
    )
    return WidenedSchema(schema, tuple(changes), Alteration(known, schema, altered_columns), tuple(notes))


def absent(column: Column, rows: int, *, zeroes: bool = False) -> pa.Array[pa.Scalar[pa.DataType]]:
    """The values of a column that events do not have: what its rows held when it was added, for that is what events from before are."""
    filled = backfill_value(column, zeroes=zeroes)
    if column.nullable and (not isinstance(filled, BackfillValue) or filled.value is None):
        return pa.nulls(rows, column.arrow_type)
    if not isinstance(filled, BackfillValue):
        raise DefiniteError(
            f"events have no column {column.name}, which has no NULLs and no default",
            place=f"column {column.name}",
            hint="let the column take NULLs in the target, or give it a default in the source",
        )
    plain = column.arrow_type.value_type if pa.types.is_dictionary(column.arrow_type) else column.arrow_type
    if column.form in FRACTIONAL_FORMS:
        made = pa.array([filled.value] * rows, pa.int64()).view(plain)
    elif column.form is ValueForm.DATE:
        made = pa.array([filled.value] * rows, pa.int32()).view(plain)
    else:
        made = pa.repeat(pa.scalar(filled.value, plain), rows)
    return made.dictionary_encode() if pa.types.is_dictionary(column.arrow_type) else made


def _check_key(known: TableSchema, sent: TableSchema) -> None:
    if set(known.row_key) == set(sent.primary_key):
        return
    raise DefiniteError(
        f"the key of {known.name} was ({_listed(known.row_key)}), that of its events is now ({_listed(sent.primary_key)})",
        place=str(known.name),
        hint="existing rows are distinguished by the old key: replicate the topic into a new table, or restore the key"
        " (primary key of the source, message.key.columns of the connector)",
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _added(column: Column, notes: list[str], zeroes: bool) -> tuple[Column, Effect]:
    effect = backfill_value(column, zeroes=zeroes)
    if not isinstance(effect, UnknownValues):
        return column, effect
    notes.append(f"column {column.name} is new: what older rows hold in it is in no event ({effect.why}); they hold NULL until they change")
    return replace(column, nullable=True), BackfillValue(None)


def _missing(known: TableSchema, column: Column, notes: list[str], zeroes: bool) -> list[TableChange]:
    """A column that events do not have stays; where nothing can be put into it, it must take NULLs."""
    if column.name in known.row_key:
        raise _incompatible(known, column.name, "is part of the key and is not in the events", "")
    if column.nullable or isinstance(backfill_value(column, zeroes=zeroes), BackfillValue):
        return []
    notes.append(f"column {column.name} is no longer in the events: new rows hold NULL in it")
    return [ModifyColumn(known.name, column, replace(column, nullable=True))]


def _grown(known: TableSchema, old: Column, new: Column) -> Column:
    """The old column, with what it needs to hold the new one's values too."""
    nullable = (old.nullable or new.nullable) and old.name not in known.row_key
    wide = _widened(old, new)
    if wide is None:
        raise _incompatible(
            known,
            old.name,
            f"was {_described(old)} and is {_described(new)} in the events now",
            "values would have to be converted: let the target's column take the new type, or replicate the topic into a new table",
        )
    return replace(wide, nullable=nullable)


def _widened(old: Column, new: Column) -> Column | None:
    """The narrowest column for both; None if there is none that alters no values."""
    # Whether events pass on the source's own type.
    is_more_precise = not _from_events(new) and new.form is not ValueForm.DECIMAL
    if not _from_events(old) and _may_arrive_as(old, new) and not is_more_precise:
        return old
    if old.form is ValueForm.INTEGER and new.form is ValueForm.INTEGER:
        return _wider_integer(old, new)
    if old.kind is new.kind:
        return _wider_same(old, new)
    if old.form is ValueForm.FLOAT and new.form is ValueForm.FLOAT:
        return old if old.type.bits > new.type.bits else _retyped(old, new)
    if _is_named_text(old) and new.form is ValueForm.TEXT:
        return _retyped(old, new)
    if old.form is ValueForm.TEXT and _is_named_text(new):
        return old
    if old.form is ValueForm.DECIMAL and new.form is ValueForm.INTEGER:
        return _wider_decimal(old, _as_decimal(new, old.kind))
    if old.form is ValueForm.INTEGER and new.form is ValueForm.DECIMAL:
        return _wider_decimal(replace(_as_decimal(old, new.kind), source_type=new.source_type), new)
    return None


def _may_arrive_as(known: Column, event: Column) -> bool:
    """Whether a column of known type may arrive in another kind, by the connector's settings. Each value is checked on arrival."""
    match known.form:
        case ValueForm.INTEGER:
            digits = event.form is ValueForm.DECIMAL and known.kind is Kind.UINT64
            return digits or event.kind in _INTEGER_EVENTS.get(known.kind, ())
        case ValueForm.YEAR:
            return event.kind is Kind.INT32
        case ValueForm.BITS:
            return event.kind is Kind.INT8 or event.form is ValueForm.BYTES
        case ValueForm.DECIMAL:
            return event.form is ValueForm.TEXT or (event.form is ValueForm.FLOAT and event.type.bits == 64)
        case ValueForm.TIMESTAMP:
            return event.form is ValueForm.TIMESTAMP and (known.type.zoned or not event.type.zoned)
        case ValueForm.TIME:
            return event.form is ValueForm.TIME
        case ValueForm.MEMBERS:
            return event.kind is known.kind or event.form is ValueForm.TEXT
        case ValueForm.JSON | ValueForm.FIXED_BYTES:
            return event.form is ValueForm.TEXT
        case ValueForm.TEXT:
            return _is_named_text(event) or event.form in (ValueForm.DECIMAL, ValueForm.BYTES)
        case ValueForm.BYTES:
            return event.form in (ValueForm.TEXT, ValueForm.FIXED_BYTES, ValueForm.BITS)
        case ValueForm.FLOAT | ValueForm.DATE | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return False
        case unknown:
            assert_never(unknown)


def _is_named_text(column: Column) -> bool:
    """Whether events hold the column as text whose schema has a name."""
    return bool(column.type.semantic) and column.form in (ValueForm.MEMBERS, ValueForm.JSON, ValueForm.FIXED_BYTES)


def _as_decimal(column: Column, decimal: Kind) -> Column:
    return replace(column, kind=decimal, precision=len(str(column.type.value_range[1])), scale=0)


def _wider_integer(old: Column, new: Column) -> Column | None:
    (least, most), (new_least, new_most) = old.type.value_range, new.type.value_range
    if least <= new_least and new_most <= most:
        return old
    if new_least <= least and most <= new_most:
        return _retyped(old, new)
    least, most = min(least, new_least), max(most, new_most)
    integers = ((kind, described.value_range) for kind, described in COLUMN_TYPES.items() if described.form is ValueForm.INTEGER)
    kind = next((kind for kind, (low, high) in integers if low <= least and most <= high), None)
    return None if kind is None else replace(_retyped(old, new), kind=kind)


def _wider_same(old: Column, new: Column) -> Column | None:
    match old.form:
        case ValueForm.DECIMAL:
            return _wider_decimal(old, new)
        case ValueForm.TIMESTAMP | ValueForm.TIME | ValueForm.BITS:
            return old if new.precision <= old.precision else _retyped(old, new)
        case ValueForm.MEMBERS:
            extra = tuple(member for member in new.members if member not in old.members)
            return replace(_retyped(old, new), members=old.members + extra) if extra else old
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.FLOAT | ValueForm.DATE | ValueForm.TEXT | ValueForm.JSON | ValueForm.BYTES:
            return old
        case ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return old
        case unknown:
            assert_never(unknown)


def _wider_decimal(old: Column, new: Column) -> Column | None:
    scale = max(old.scale, new.scale)
    precision = max(old.precision - old.scale, new.precision - new.scale) + scale
    if precision > MOST_DIGITS:
        return None
    return old if (precision, scale) == (old.precision, old.scale) else replace(_retyped(old, new), precision=precision, scale=scale)


def _retyped(old: Column, new: Column) -> Column:
    return replace(
        old,
        kind=new.kind,
        precision=new.precision,
        scale=new.scale,
        members=new.members,
        source_type=new.source_type or old.source_type,
        charset=new.charset,
    )


_EVENT_WORDS: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes", "array", "map", "struct")


def _from_events(column: Column) -> bool:
    word = column.source_type.partition(" ")[0]
    return word in _EVENT_WORDS or column.source_type.startswith(("decimal(?", "bits("))


def _described(column: Column) -> str:
    return f"{column.kind.value} ({column.source_type})" if column.source_type else column.kind.value


def _incompatible(known: TableSchema, column: str, why: str, hint: str) -> DefiniteError:
    return DefiniteError(f"column {column} of {known.name} {why}", place=f"table {known.name}, column {column}", hint=hint)
