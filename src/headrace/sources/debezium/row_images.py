"""Parsed events to row images of a table (wire values become column values, in bulk), and images to change blocks.

Images have exactly the table's Arrow schema. A delete may lack columns (PostgreSQL logs only the key by default). A missing value of a
non-nullable column is the type's zero value: such an image only identifies the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema
from headrace.sources.debezium.events.event_versions import Versions
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.parsed_events import CREATE, DELETE, READ, UPDATE, Events, Rejection, Rows, sends_zero_dates
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.types.schema_widening import absent
from headrace.sources.debezium.types.values import convert_column

Mask = npt.NDArray[np.bool_]
UnchangedColumns = Mapping[str, pa.BooleanArray]

_OPS: Final = np.zeros(256, dtype=np.uint8)
for _letter, _op in ((CREATE, Op.INSERT), (UPDATE, Op.UPDATE), (DELETE, Op.DELETE), (READ, Op.SNAPSHOT)):
    _OPS[_letter] = _op
_NUMBERED: Final = 1 << 63
"""Numbers of a snapshot's rows are above all versions of the first 32 epochs."""
_PARTITION_SHIFT: Final = 40


@dataclass(frozen=True, slots=True)
class RowImages:
    schema: TableSchema
    images: pa.RecordBatch
    record: Rows
    """The record of each image."""
    op: npt.NDArray[np.uint8]
    version: Versions
    commit_ts: npt.NDArray[np.int64]
    kept: Mapping[str, Mask]
    refused: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class BeforeImages:
    keys: tuple[str, ...]
    """The columns whose change moves a row. Empty: every update needs its before image."""
    parse: Callable[[Rows], Events | None]
    """Parses the same records again, with all columns of the before image."""
    place: str


def build_row_images(
    events: Events,
    schema: TableSchema,
    options: DebeziumOptions,
    versions: tuple[Versions, Versions],
    commit_ts: npt.NDArray[np.int64],
    befores: BeforeImages | None,
) -> RowImages:
    """Build the images of events without truncations and messages. `befores`: None if no update moves a row."""
    taken, put = versions
    deleted = events.op == DELETE
    columns, kept, wrong = _columns(events.image, events, schema, options, deleted)
    op, version, record = _OPS[events.op], np.where(deleted, taken, put), events.record
    if befores is not None:
        _check_deletions(events, deleted, befores, schema)
        moved = _moved(events, befores, schema)
        if len(moved):
            again = befores.parse(record[moved])
            read = np.zeros(0, np.int64) if again is None else again.record
            there = np.isin(record[moved], read)
            wrong.update(dict.fromkeys(moved[~there].tolist(), "its before image cannot be read"))
            rows = moved[there]
            if again is not None and len(rows):
                more, _, wrong_before = _columns(again.before, again, schema, options, np.ones(len(rows), np.bool_))
                wrong.update({int(rows[row]): reason for row, reason in wrong_before.items()})
                # Each before image directly before its update.
                order = np.argsort(np.concatenate([np.arange(len(op)) * 2 + 1, rows * 2]), kind="stable")
                columns = [pa.concat_arrays([column, extra]).take(pa.array(order)) for column, extra in zip(columns, more, strict=True)]
                kept = {name: np.concatenate([mask, np.zeros(len(rows), np.bool_)])[order] for name, mask in kept.items()}
                wrong = {int(np.flatnonzero(order == row)[0]): reason for row, reason in wrong.items()}
                op = np.concatenate([op, np.full(len(rows), Op.BEFORE, np.uint8)])[order]
                version = np.concatenate([version, taken[rows]])[order]
                record, commit_ts = np.concatenate([record, record[rows]])[order], np.concatenate([commit_ts, commit_ts[rows]])[order]
    refused = tuple(Rejection(int(record[row]), reason) for row, reason in sorted(wrong.items()))
    images = pa.RecordBatch.from_arrays(columns, schema=schema.arrow_schema) if columns else pa.RecordBatch.from_pylist([])
    made = RowImages(schema, images, record, op, version, commit_ts, kept, refused)
    if refused:
        # Remove all images of an unreadable record.
        return take_images(made, np.flatnonzero(~np.isin(record, [refusal.record for refusal in refused])))
    return made


def _columns(
    image: pa.RecordBatch, events: Events, schema: TableSchema, options: DebeziumOptions, deleted: Mask
) -> tuple[list[pa.Array], dict[str, Mask], dict[int, str]]:
    """Return a table's columns, masks of unchanged values that are missing, and the unreadable rows with reasons."""
    fields = {field.name: field for field in events.fields.row}
    rows = image.num_rows
    columns: list[pa.Array] = []
    kept: dict[str, Mask] = {}
    wrong: dict[int, str] = {}
    for column in schema.columns:
        field = fields.get(column.name)
        if field is None:
            columns.append(absent(column, rows, zeroes=sends_zero_dates(events.source)))
            continue
        found = convert_column(image[column.name], field, column, events.wire, placeholder=options.placeholder, binaries=options.binaries)
        array = found.array
        if found.kept is not None:
            kept[column.name] = found.kept
        if found.bad is not None:
            for row in np.flatnonzero(found.bad).tolist():
                wrong.setdefault(row, found.reason(row))
        if not column.nullable and array.null_count:
            nulls = np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
            strange = nulls & ~deleted
            if found.kept is not None:
                strange &= ~found.kept
            for row in np.flatnonzero(strange).tolist():
                wrong.setdefault(row, f"column {column.name}: it is null or missing, and the column does not allow NULL")
            array = _filled(array, column)
        columns.append(array)
    return columns, kept, wrong


def _filled(array: pa.Array, column: Column) -> pa.Array:
    """Return the array with the type's zero value instead of NULL."""
    if column.form is ValueForm.MEMBERS:
        name = column.members[0] if column.members and not column.type.multiple else ""
        return pc.fill_null(array.cast(pa.string()), name).dictionary_encode()
    indices = np.arange(len(array))
    indices[array.is_null().to_numpy(zero_copy_only=False)] = len(array)
    return pa.concat_arrays([array, _zero(column)]).take(pa.array(indices))


def _zero(column: Column) -> pa.Array:
    made = column.arrow_type
    match column.form:
        case ValueForm.TEXT | ValueForm.MEMBERS:
            return pa.array([""], made)
        case ValueForm.JSON:
            return pa.array(["{}"], made)
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return pa.array([b""], made)
        case ValueForm.FIXED_BYTES:
            return pa.array([bytes(made.byte_width)], made)
        case ValueForm.VECTOR:
            return pa.array([[]], made)
        case ValueForm.DECIMAL:
            return pa.array([Decimal(0)], made)
        case ValueForm.DATE:
            return pa.array([0], pa.int32()).cast(made)
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.TIMESTAMP | ValueForm.TIME:
            return pa.array([0], pa.int64()).cast(made)
        case unknown:
            assert_never(unknown)


def _moved(events: Events, befores: BeforeImages, schema: TableSchema) -> Rows:
    updated = events.op == UPDATE
    without = updated & ~events.has_before
    if without.any():
        row = int(events.record[int(np.argmax(without))])
        needed = ", ".join(befores.keys) or "every column"
        raise DefiniteError(
            f"an update of {schema.name} has no before image, and the target table needs it for {needed}",
            place=f"{befores.place}, record {row} of its batch",
            hint="let the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL) and events be envelopes, "
            "or sort the target table by the source's primary key",
        )
    if not befores.keys:
        return np.flatnonzero(updated)
    moved = np.zeros(len(updated), np.bool_)
    for name in befores.keys:
        if name in events.before.schema.names:
            moved |= _differ(events.before[name], events.image[name])
    return np.flatnonzero(moved & updated)


def _differ(one: pa.Array, other: pa.Array) -> Mask:
    if pa.types.is_nested(one.type):
        return np.array([a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], dtype=np.bool_)
    differ = pc.fill_null(pc.not_equal(one, other), False)
    return np.asarray(pc.or_(differ, pc.xor(one.is_null(), other.is_null())).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _check_deletions(events: Events, deleted: Mask, befores: BeforeImages, schema: TableSchema) -> None:
    """A delete must contain the row's sort key: a guess would leave the row in the sink."""
    names = befores.keys or tuple(column.name for column in schema.columns)
    for name in names:
        required = name in befores.keys or not schema.column(name).nullable
        if name in schema.primary_key or not required or name not in events.image.schema.names:
            continue
        lacking = deleted & np.asarray(events.image[name].is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
        if lacking.any():
            raise DefiniteError(
                f"a deletion from {schema.name} does not contain the row's {name}, which is part of the target table's sort key",
                place=f"{befores.place}, record {int(events.record[int(np.argmax(lacking))])} of its batch",
                hint="let the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL), "
                "or sort the target table by the source's primary key",
            )


def build_blocks(images: Sequence[RowImages], records: Records) -> tuple[tuple[ChangeBlock, ...], tuple[UnchangedColumns, ...]]:
    """Return one block per table, and masks of values that are missing because they did not change."""
    by_table: dict[TableName, list[RowImages]] = {}
    for part in images:
        by_table.setdefault(part.schema.name, []).append(part)
    cut = [pair for parts in by_table.values() for pair in _cut(parts[0] if len(parts) == 1 else _joined(parts), records)]
    return tuple(block for block, _ in cut), tuple(kept for _, kept in cut)


def _cut(whole: RowImages, records: Records) -> list[tuple[ChangeBlock, UnchangedColumns]]:
    """Return a table's images as a block. Snapshot rows of a table without a key form a block of their own, with row numbers."""
    snapshot = whole.op == Op.SNAPSHOT
    if whole.schema.row_key or not snapshot.any():
        return [_block(whole)]
    read, changed = take_images(whole, np.flatnonzero(snapshot)), take_images(whole, np.flatnonzero(~snapshot))
    offsets = records.offset.to_numpy(zero_copy_only=False)[read.record].astype(np.uint64)
    block, kept = _block(read)
    numbered = replace(block, order=pa.array(np.uint64(_NUMBERED | records.partition << _PARTITION_SHIFT) + offsets))
    return [(numbered, kept), *([_block(changed)] if len(changed.op) else [])]


def _block(whole: RowImages) -> tuple[ChangeBlock, UnchangedColumns]:
    block = ChangeBlock(whole.schema, whole.images, pa.array(whole.op), pa.array(whole.version), pa.array(whole.commit_ts, pa.int64()))
    return block, {name: pa.array(mask) for name, mask in whole.kept.items()}


def take_images(whole: RowImages, rows: Rows) -> RowImages:
    parts = whole.images.take(pa.array(rows)), whole.record[rows], whole.op[rows], whole.version[rows], whole.commit_ts[rows]
    return RowImages(whole.schema, *parts, {name: mask[rows] for name, mask in whole.kept.items()}, whole.refused)


def _joined(parts: Sequence[RowImages]) -> RowImages:
    """Join images of several schemas of one table, in the order of the records."""
    record = np.concatenate([part.record for part in parts])
    order = np.argsort(record, kind="stable")
    images = pa.Table.from_batches([part.images for part in parts]).unify_dictionaries().take(pa.array(order)).combine_chunks()
    names = dict.fromkeys(name for part in parts for name in part.kept)
    kept = {name: np.concatenate([part.kept.get(name, np.zeros(len(part.op), np.bool_)) for part in parts])[order] for name in names}
    return RowImages(
        parts[0].schema,
        images.to_batches()[0],
        record[order],
        np.concatenate([part.op for part in parts])[order],
        np.concatenate([part.version for part in parts])[order],
        np.concatenate([part.commit_ts for part in parts])[order],
        kept,
        (),
    )
