"""The effect of an `ALTER TABLE` on the sink's table when transforms apply.

Invariant: a value that stays in the sink equals the value that the transforms would compute from the source's row now. Where that is not
certain, the table is read again. Where the options have lost their meaning (a masked column was renamed, a column that a filter needs was
dropped), it is a definite error: a guess could reveal a hidden value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, Effect, Fate, Filled, Kept, Untold
from headrace.model.schema import Column, Kind
from headrace.transforms.column_types import INTEGER_KINDS
from headrace.transforms.options import Mask, MaskKind
from headrace.transforms.transform_plan import OutputColumn, TransformPlan, error_location

_CONSTANT: Final = frozenset({MaskKind.EMPTY, MaskKind.TEXT})


def transform_alteration(told: Alteration, before: TransformPlan, after: TransformPlan) -> Alteration:
    """The alteration of what the sink holds."""
    fates = {fate.column.name: fate for fate in told.fates}
    _check_renamed(told, before, after)
    made = tuple(_fate(told, fates, output, before) for output in after.outputs)
    return replace(told, before=before.schema, after=after.schema, fates=made)


def reread_reason(told: Alteration, before: TransformPlan, after: TransformPlan) -> str:
    """Why other rows may pass the filter than before; empty if the same do."""
    fates = {fate.column.name: fate for fate in told.fates}
    for name in after.filter_inputs:
        if not _is_unchanged(told, fates[name], name):
            return f"column {name}, which decides what passes the filter, was altered"
    return "" if before.filter == after.filter else "another filter holds for it"


def _check_renamed(told: Alteration, before: TransformPlan, after: TransformPlan) -> None:
    """A column under another name must be treated as it was under the old one."""
    was, now = _by_source(before), _by_source(after)
    carried_before, carried = ({column.name for column in shape.source.columns} for shape in (before, after))
    for fate in told.fates:
        name, origin = fate.column.name, fate.origin
        if origin is None or origin == name or origin not in carried_before or name not in carried:
            continue
        one, other = was.get(origin), now.get(name)
        if (one.how if one is not None else None) != (other.how if other is not None else None):
            raise DefiniteError(
                f"column {origin} of {told.before.name} is called {name} now, and the transforms treat the two names differently",
                place=error_location(told.before.name, f"column {name}"),
                hint=f"name {name} in the transforms as {origin} was",
            )


def _by_source(shape: TransformPlan) -> dict[str, OutputColumn]:
    return {output.source: output for output in shape.outputs if output.source}


def _fate(told: Alteration, fates: dict[str, Fate], output: OutputColumn, before: TransformPlan) -> Fate:
    if output.expression:
        return _computed_fate(told, fates, output, before)
    fate = fates[output.source]
    if fate.origin is None:
        return Fate(output.column, None, fate.effect if output.is_plain else _masked_fill_value(output, fate.effect))
    was = _by_source(before).get(fate.origin)
    if was is None:
        return Fate(output.column, None, Untold("its values were not carried before"))
    effect = fate.effect if output.is_plain else _masked_effect(told, fate, output)
    return Fate(output.column, was.column.name, effect)


def _computed_fate(told: Alteration, fates: dict[str, Fate], output: OutputColumn, before: TransformPlan) -> Fate:
    was = next((one for one in before.outputs if one.column.name == output.column.name), None)
    if was is None:
        return Fate(output.column, None, Untold("it was not computed before"))
    steady = all(_is_unchanged(told, fates[name], name) for name in output.inputs)
    same = was.how == output.how and _stored_type(was.column) == _stored_type(output.column)
    return Fate(output.column, was.column.name, Kept() if steady and same else Untold("it is computed from columns that were altered"))


def _masked_fill_value(output: OutputColumn, effect: Effect) -> Effect:
    """What a new column that is masked or hashed holds: NULL stays NULL, of other values only the source knows."""
    filled_with_null = isinstance(effect, Filled) and effect.value is None
    hidden = isinstance(output.treatment, Mask) and output.treatment.kind is MaskKind.NULL
    return Filled(None) if filled_with_null or hidden else Untold("it is masked or hashed, and new")


def _masked_effect(told: Alteration, fate: Fate, output: OutputColumn) -> Effect:
    assert fate.origin is not None
    mask = output.treatment if isinstance(output.treatment, Mask) else None
    if mask is not None and mask.kind is MaskKind.NULL:
        return Kept()
    same_nulls = isinstance(fate.effect, Kept)
    if same_nulls and ((mask is not None and mask.kind in _CONSTANT) or _is_alike(told.before.column(fate.origin), fate.column)):
        return Kept()
    return Untold("it is masked or hashed, and its values were altered")


def _is_unchanged(told: Alteration, fate: Fate, name: str) -> bool:
    """Whether a column is the same as before, with the same values, for every expression over it."""
    return fate.origin == name and isinstance(fate.effect, Kept) and _is_alike(told.before.column(name), fate.column)


def _is_alike(one: Column, other: Column) -> bool:
    """Whether a value is spelled alike in both columns."""
    if one.kind in INTEGER_KINDS and other.kind in INTEGER_KINDS:
        return True
    return (one.kind, one.scale) == (other.kind, other.scale) and (one.kind is Kind.DECIMAL or one.precision == other.precision)


def _stored_type(column: Column) -> tuple[object, ...]:
    return column.kind, column.nullable, column.precision, column.scale, column.members
