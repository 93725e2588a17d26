"""Single row changes, for programs that process them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa

from headrace.kafka.mypipe.reader import ReadBlock
from headrace.kafka.mypipe.values import to_map
from headrace.model.change_block import Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column

Row = Mapping[str, Any]


class What(StrEnum):
    """What happened to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RowChange:
    """One message's change of one row."""

    what: What
    database: str
    table: str
    old: Row | None
    """The row before an update or a delete. A column that the message does not contain is absent; a NULL is None."""
    new: Row | None
    """The row after an insertion or an update."""
    transaction: str | None
    """The transaction, as the message names it."""
    position: int | None
    """The position of the change in the source's log; equal when the message is sent again. None if the message has none."""
    snapshot_row: int | None
    """The row's number in a snapshot; None for changes."""
    committed: datetime | None
    """Commit time; if the message has none, the time at which the message was made."""
    topic: str
    partition: int
    offset: int
    key: bytes | None

    @property
    def row(self) -> Row:
        """The newest known version of the row."""
        found = self.new if self.new is not None else self.old
        return {} if found is None else found

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


_OPS: Final = {int(op): op for op in Op}
WHAT_BY_OP: Final = {Op.INSERT: What.INSERT, Op.SNAPSHOT: What.INSERT, Op.UPDATE: What.UPDATE, Op.DELETE: What.DELETE}


@dataclass(frozen=True, slots=True)
class RowImage:
    """Return one image of a block as Python values."""

    op: Op
    row: Row
    before: Row | None
    transaction: str | None
    commit_us: int
    position: int | None
    snapshot_row: int | None


def iterate_row_images(read: ReadBlock) -> Iterator[tuple[int, RowImage]]:
    """Yield a block's changes with their message numbers; an update's before image is part of its change."""
    block = read.block
    rows = _rows(read)
    names = block.transaction.to_pylist() if block.transaction is not None else [None] * block.rows
    before: Row | None = None
    positions = [found if has else None for found, has in zip(read.position.tolist(), read.has_position.tolist(), strict=True)]
    numbers = [None if number < 0 else number for number in read.row_number.tolist()]
    columns = (
        map(_OPS.__getitem__, block.op.to_pylist()),
        rows,
        names,
        block.commit_ts.to_pylist(),
        positions,
        numbers,
        read.message.tolist(),
    )
    for op, row, transaction, commit_us, position, number, message in zip(*columns, strict=True):
        if op is Op.BEFORE:
            before = row
            continue
        yield message, RowImage(op, row, before, transaction, commit_us, position, number)
        before = None


def _rows(read: ReadBlock) -> list[dict[str, Any]]:
    images = read.block.images
    columns = [_plain(column, array) for column, array in zip(read.block.schema.columns, images.columns, strict=True)]
    names = images.schema.names
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] if columns else [{} for _ in range(len(images))]
    for name, missing in read.absent.items():
        for at in np.flatnonzero(missing):
            del rows[at][name]
    return rows


def _plain(column: Column, array: pa.Array) -> list[Any]:
    """A column's values as Python has them; what Python has no type for is text, as the source shows it."""
    match column.form:
        case ValueForm.TIME:
            # Times of MySQL go below zero and past a day: spans, not times of a day.
            return list(array.view(pa.int64()).cast(pa.duration("us")).to_pylist())
        case ValueForm.FIXED_BYTES:
            return list(to_map(column, array, "strings").to_pylist())
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            try:
                return list(array.to_pylist())
            except (OverflowError, ValueError):
                # Python's calendar begins with the year 1, MySQL's with 0.
                texts = to_map(column, array, "strings").to_pylist()
                return [_in_calendar(value, text) for value, text in zip(array, texts, strict=True)]
        case (
            ValueForm.INTEGER
            | ValueForm.YEAR
            | ValueForm.BITS
            | ValueForm.FLOAT
            | ValueForm.DECIMAL
            | ValueForm.TEXT
            | ValueForm.JSON
            | ValueForm.MEMBERS
        ):
            return list(array.to_pylist())
        case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return list(array.to_pylist())
        case unknown:
            assert_never(unknown)


def _in_calendar(value: pa.Scalar, text: str | None) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return text
