"""Applies a transform plan to change blocks: which images the sink receives, with which operation and columns.

Invariant: after every block the sink holds exactly the rows of the source for which the filter is true, transformed. So what a filter
does to an update depends on both of its images: one that leaves the filter is a deletion, one that enters it an insertion, one that was
never inside is nothing. Nothing here depends on anything but the block: a replay gives the same images with the same versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableName, TableSchema
from headrace.transforms.evaluation import PlanEvaluator
from headrace.transforms.options import Salts, Transforms
from headrace.transforms.transform_plan import TransformPlan, plan_transform

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BlockTransformer:
    """Transforms blocks before they are written. Picklable."""

    transforms: Transforms
    salts: Salts = field(default_factory=Salts)
    moving: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    """The sink's columns whose change moves a row (`TableRequirements.key_columns`). Empty: every before image is needed."""
    whole: bool = True
    """Whether an update comes with its before image whenever a column changed that the filter is about, and deletions with whole rows.
    Otherwise rows that may be in the sink are deleted there, which is harmless if they are not."""

    def plan(self, schema: TableSchema) -> TransformPlan:
        """The transform of one table."""
        return plan_transform(self.transforms.of(schema.name), schema)

    def __call__(self, block: ChangeBlock) -> ChangeBlock:
        """Return the transformed block; empty if no image passes."""
        return self.transform(block)[0]

    def transform(self, block: ChangeBlock) -> tuple[ChangeBlock, Rows | None]:
        """Return the transformed block, and the indexes of its images; None: all."""
        plan = self.plan(block.schema)
        if plan.is_plain:
            return block, None
        evaluation, op = PlanEvaluator(plan, self.salts), np.asarray(block.op)
        kept = np.ones(block.rows, dtype=bool)
        if plan.filter:
            kept, op = filtered(op, evaluation.passing(block), whole=self.whole)
        moving = self.moving.get(block.schema.name, ())
        sources = {output.column.name: output.source for output in plan.outputs if output.is_plain}
        # Skip copying images where the source's own values show which rows move.
        early = all(name in sources for name in moving)
        if moving and early:
            kept &= _moving_images(block, kept, op, [sources[name] for name in moving])
        rows: Rows | None = None
        if not kept.all():
            rows = np.flatnonzero(kept)
            block, op = block.taken(rows), op[rows]
        made = replace(block, schema=plan.schema, op=pa.array(op, pa.uint8()), images=evaluation.images(block))
        if not moving or early:
            return made, rows
        needed = _moving_images(made, np.ones(made.rows, dtype=bool), op, moving)
        if needed.all():
            return made, rows
        return made.taken(needed), np.flatnonzero(needed) if rows is None else rows[needed]

    def transform_rows(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        plan = self.plan(schema)
        if plan.is_plain:
            return rows
        evaluation = PlanEvaluator(plan, self.salts)
        batches = []
        for batch in rows.combine_chunks().to_batches():
            count = batch.num_rows
            images = pa.RecordBatch.from_arrays(batch.columns, schema=schema.arrow_schema)
            none = pa.repeat(pa.scalar(0, pa.uint64()), count)
            block = ChangeBlock(schema, images, pa.repeat(pa.scalar(int(Op.SNAPSHOT), pa.uint8()), count), none, none.cast(pa.int64()))
            if plan.filter:
                block = block.taken(evaluation.passing(block))
            batches.append(evaluation.images(block))
        return pa.Table.from_batches(batches, schema=plan.schema.arrow_schema)


def _moving_images(block: ChangeBlock, kept: Mask, op: npt.NDArray[np.uint8], moving: Sequence[str]) -> Mask:
    """Return which images are needed: before images only of updates that move their row."""
    needed = np.ones(block.rows, dtype=bool)
    before = np.flatnonzero(kept & (op == Op.BEFORE))
    if len(before):
        moved = np.zeros(len(before), dtype=bool)
        for name in moving:
            moved |= _differ(block.images.column(name), before)
        needed[before[~moved]] = False
    return needed


def filtered(op: npt.NDArray[np.uint8], passing: Mask, *, whole: bool) -> tuple[Mask, npt.NDArray[np.uint8]]:
    """Return which images of a block the sink receives, and their operations, from which of them pass the filter."""
    kept, made = passing.copy(), op.copy()
    before = np.flatnonzero(op == Op.BEFORE)
    after = before + 1
    if len(before) and (after[-1] >= len(op) or (op[after] != Op.UPDATE).any()):
        raise DefiniteError("an update's before image has no update after it", hint="this is a defect of Headrace; please report it")
    was, now = passing[before], passing[after]
    if not whole:
        # The before image may be incomplete: delete the row wherever it can have been.
        was = np.ones(len(before), dtype=bool)
        kept[before] = True
        alone = op == Op.UPDATE
        alone[after] = False
        gone = alone & ~passing
        made[gone] = Op.DELETE
        kept |= gone | (op == Op.DELETE)
    made[before[was & ~now]] = Op.DELETE
    made[after[~was & now]] = Op.INSERT
    return kept, made


def _differ(column: Any, before: Rows) -> Mask:
    """Return for each before image whether the update changes the column."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    bits = _BITS.get(column.type)
    if bits is not None:
        column = column.view(bits)
    one, other = column.take(pa.array(before)), column.take(pa.array(before + 1))
    if pa.types.is_nested(column.type):
        return np.ones(len(before), dtype=bool)
    unequal = pc.fill_null(pc.not_equal(one, other), False)
    differ = pc.or_(unequal, pc.xor(one.is_null(), other.is_null()))
    return np.asarray(differ.to_numpy(zero_copy_only=False), dtype=bool)


_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64(), pa.time64("us"): pa.int64()}


def kept_masks(masks: Mapping[str, pa.BooleanArray], names: Mapping[str, str], rows: Rows | None) -> dict[str, pa.BooleanArray]:
    """Return masks of images' values by column, with the new column names and for the remaining images."""
    places = None if rows is None else pa.array(rows)
    return {names[name]: mask if places is None else mask.take(places) for name, mask in masks.items() if name in names}
