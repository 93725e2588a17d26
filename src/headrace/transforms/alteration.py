"""The effect of an `ALTER TABLE` on the sink's table when transforms apply.

Invariant: a value that stays in the sink equals the value that the transforms would compute from the source's row now. Where that is not
certain, the table is read again. Where the options have lost their meaning (a masked column was renamed, a column that a filter needs was
dropped), it is a definite error: a guess could reveal a hidden value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, BackfillValue, Effect, Unchanged, UnknownValues
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.transforms.options import Mask, MaskKind
from headrace.transforms.transform_plan import OutputColumn, TransformPlan, error_location

_CONSTANT: Final = frozenset({MaskKind.EMPTY, MaskKind.TEXT})


def transform_alteration(alteration: Alteration, before: TransformPlan, after: TransformPlan) -> Alteration:
    """Return the alteration of the sink's table."""
    altered_columns = {altered_column.column.name: altered_column for altered_column in alteration.altered_columns}
    _check_renamed(alteration, before, after)
    made = tuple(_altered_column(alteration, altered_columns, output, before) for output in after.outputs)
    return replace(alteration, before=before.schema, after=after.schema, altered_columns=made)


def reread_reason(alteration: Alteration, before: TransformPlan, after: TransformPlan) -> str:
    """Return why other rows may pass the filter than before; empty if the same rows pass."""
    altered_columns = {altered_column.column.name: altered_column for altered_column in alteration.altered_columns}
    for name in after.filter_inputs:
        if not _is_unchanged(alteration, altered_columns[name], name):
            return f"column {name}, which decides what passes the filter, was altered"
    return "" if before.filter == after.filter else "another filter holds for it"


def _check_renamed(alteration: Alteration, before: TransformPlan, after: TransformPlan) -> None:
    """Raise unless a renamed column keeps its transforms."""
    was, now = _by_source(before), _by_source(after)
    carried_before, carried = ({column.name for column in plan.source.columns} for plan in (before, after))
    for altered_column in alteration.altered_columns:
        name, origin = altered_column.column.name, altered_column.origin
        if origin is None or origin == name or origin not in carried_before or name not in carried:
            continue
        one, other = was.get(origin), now.get(name)
        if (one.how if one is not None else None) != (other.how if other is not None else None):
            raise DefiniteError(
                f"column {origin} of {alteration.before.name} is called {name} now, and the two names have different transforms",
                place=error_location(alteration.before.name, f"column {name}"),
                hint=f"name {name} in the transforms as {origin} was",
            )


def _by_source(plan: TransformPlan) -> dict[str, OutputColumn]:
    return {output.source: output for output in plan.outputs if output.source}


def _altered_column(
    alteration: Alteration, altered_columns: dict[str, AlteredColumn], output: OutputColumn, before: TransformPlan
) -> AlteredColumn:
    if output.expression:
        return _altered_computed_column(alteration, altered_columns, output, before)
    altered_column = altered_columns[output.source]
    if altered_column.origin is None:
        return AlteredColumn(
            output.column, None, altered_column.effect if output.is_plain else _masked_fill_value(output, altered_column.effect)
        )
    was = _by_source(before).get(altered_column.origin)
    if was is None:
        return AlteredColumn(output.column, None, UnknownValues("its values were not carried before"))
    effect = altered_column.effect if output.is_plain else _masked_effect(alteration, altered_column, output)
    return AlteredColumn(output.column, was.column.name, effect)


def _altered_computed_column(
    alteration: Alteration, altered_columns: dict[str, AlteredColumn], output: OutputColumn, before: TransformPlan
) -> AlteredColumn:
    was = next((one for one in before.outputs if one.column.name == output.column.name), None)
    if was is None:
        return AlteredColumn(output.column, None, UnknownValues("it was not computed before"))
    steady = all(_is_unchanged(alteration, altered_columns[name], name) for name in output.inputs)
    same = was.how == output.how and _stored_type(was.column) == _stored_type(output.column)
    return AlteredColumn(
        output.column, was.column.name, Unchanged() if steady and same else UnknownValues("it is computed from columns that were altered")
    )


def _masked_fill_value(output: OutputColumn, effect: Effect) -> Effect:
    """Return the effect of a new masked or hashed column: NULL stays NULL; only the source knows other values."""
    filled_with_null = isinstance(effect, BackfillValue) and effect.value is None
    hidden = isinstance(output.masking, Mask) and output.masking.kind is MaskKind.NULL
    return BackfillValue(None) if filled_with_null or hidden else UnknownValues("it is masked or hashed, and new")


def _masked_effect(alteration: Alteration, altered_column: AlteredColumn, output: OutputColumn) -> Effect:
    assert altered_column.origin is not None
    mask = output.masking if isinstance(output.masking, Mask) else None
    if mask is not None and mask.kind is MaskKind.NULL:
        return Unchanged()
    same_nulls = isinstance(altered_column.effect, Unchanged)
    if same_nulls and (
        (mask is not None and mask.kind in _CONSTANT) or _is_alike(alteration.before.column(altered_column.origin), altered_column.column)
    ):
        return Unchanged()
    return UnknownValues("it is masked or hashed, and its values were altered")


def _is_unchanged(alteration: Alteration, altered_column: AlteredColumn, name: str) -> bool:
    """Return whether a column and its values are unchanged for every expression over it."""
    return (
        altered_column.origin == name
        and isinstance(altered_column.effect, Unchanged)
        and _is_alike(alteration.before.column(name), altered_column.column)
    )


def _is_alike(one: Column, other: Column) -> bool:
    """Whether a value is spelled alike in both columns."""
    if one.form is ValueForm.INTEGER and other.form is ValueForm.INTEGER:
        return True
    return (one.kind, one.scale) == (other.kind, other.scale) and (one.form is ValueForm.DECIMAL or one.precision == other.precision)


def _stored_type(column: Column) -> tuple[object, ...]:
    return column.kind, column.nullable, column.precision, column.scale, column.members
