"""Changes, in the only form in which they travel: a columnar block of row images of one table.

A block holds *images*, in the order of the log. An insert, a delete and a snapshot read are one image each. An update is its after
image; its before image precedes it only where the sink needs it, that is where the update moved the row to another key (or always,
when the reader was asked for every before image). So "delete the old key, insert the new one" is not a special case anywhere: it is
what a block says. Versions rise strictly within a source's log, so a replayed block is equal to the first and merging it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import TableSchema


class Op(IntEnum):
    """What an image is. `BEFORE` and `DELETE` take the image away; the others put it there."""

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
    """The table's columns, of exactly `schema.arrow_schema`."""
    op: pa.UInt8Array
    version: pa.UInt64Array
    commit_ts: pa.Int64Array
    """When the source committed the change, microseconds since 1970 (for a snapshot: when it was read)."""
    transaction: pa.DictionaryArray | None = None
    """The transaction of each image, as the source names it (its GTID, else the place where it begins), if the reader was asked for it."""
    order: pa.UInt64Array | None = None
    """The place of each image within its transaction: unique and rising, with gaps. In a snapshot: the row's number, unique in it."""
    query: pa.DictionaryArray | None = None
    """The statement that made the change, where the source logged it and the reader was asked for it."""

    def taken(self, rows: Any) -> ChangeBlock:
        """Those images of the block, by their places or by booleans."""
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
        )

    @property
    def rows(self) -> int:
        return int(self.images.num_rows)

    @property
    def changes(self) -> int:
        """How many changes the images make up: a before image belongs to the update after it."""
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
        """When the newest change was committed; 0 if there is none."""
        return int(pc.max(self.commit_ts).as_py() or 0)
