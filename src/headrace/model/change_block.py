"""The only form in which changes travel: a columnar block of row images of one table.

A block holds *row images* in log order. An insert, a delete and a snapshot read are one image each. An update is its after image. Its
before image precedes it only where the sink needs it: where the update changed the key, or always if the reader requests every before
image. So "delete the old key, insert the new one" needs no special case. Versions rise strictly within a source's log, so a replayed block
equals the first one, and merging it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import TableSchema


class Op(IntEnum):
    """The kind of a row image. `BEFORE` and `DELETE` remove the row; the others add it."""

    SNAPSHOT = 0
    INSERT = 1
    UPDATE = 2
    DELETE = 3
    BEFORE = 4


@dataclass(frozen=True, slots=True)
class ChangeBlock:
    """N row images of one table under one schema version."""

    schema: TableSchema
    images: pa.RecordBatch
    """The table's columns, exactly of `schema.arrow_schema`."""
    op: pa.UInt8Array
    version: pa.UInt64Array
    commit_ts: pa.Int64Array
    """When the source committed the change, in microseconds since 1970 (snapshot: when the row was read)."""
    transaction: pa.DictionaryArray | None = None
    """The transaction of each image, if requested: its GTID, otherwise the position where it begins."""
    order: pa.UInt64Array | None = None
    """The order of each image within its transaction: unique and rising, with gaps. In a snapshot: a unique row number."""
    query: pa.DictionaryArray | None = None
    """The SQL statement that made the change, if the source logged it and the reader requested it."""
    unchecked: pa.BooleanArray | None = None
    """Whether the change was made with `foreign_key_checks = 0`, if requested."""
    name: str = ""
    """The name of the block, if its bounds are not the versions of its images: a replay gives the same images the same name."""

    def taken(self, rows: Any) -> ChangeBlock:
        """Return the images at these indexes, or where the mask is true."""
        chosen = np.asarray(rows)
        places = pa.array(np.flatnonzero(chosen) if chosen.dtype == bool else chosen)

        def pick(array: Any) -> Any:
            return None if array is None else array.take(places)

        return replace(
            self,
            images=self.images.take(places),
            op=pick(self.op),
            version=pick(self.version),
            commit_ts=pick(self.commit_ts),
            transaction=pick(self.transaction),
            order=pick(self.order),
            query=pick(self.query),
            unchecked=pick(self.unchecked),
        )

    def pieces(self, most_bytes: int, row_bytes: int) -> Iterator[slice]:
        """Yield ranges of images of about `most_bytes`, with `row_bytes` added per image; an update stays with its before image."""
        ops = self.op.to_numpy()
        most = max(2, most_bytes // (self.images.nbytes // self.rows + row_bytes))
        start = 0
        while start < self.rows:
            end = min(start + most, self.rows)
            if end < self.rows and ops[end - 1] == Op.BEFORE:
                end -= 1
            yield slice(start, end)
            start = end

    @property
    def rows(self) -> int:
        return int(self.images.num_rows)

    @property
    def changes(self) -> int:
        """Return the number of changes: a before image belongs to the update after it."""
        before = pc.sum(pc.equal(self.op, pa.scalar(Op.BEFORE, pa.uint8()))).as_py() or 0
        return self.rows - int(before)

    @property
    def subject(self) -> str:
        return str(self.schema.name)

    @property
    def nbytes(self) -> int:
        return int(self.images.nbytes)

    @property
    def newest(self) -> int:
        """Return the newest commit time; 0 for an empty block."""
        return int(pc.max(self.commit_ts).as_py() or 0)
