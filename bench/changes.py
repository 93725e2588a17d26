"""Generates change blocks for the sink's writer, to measure the sink alone at sizes for which generating a server's log takes too long.

The table of orders grows while it changes. Of every block, 60 % of the images insert new keys, 30 % update and 10 % delete rows drawn from
all live rows, old and new. Updates and deletes are therefore in other parts than the rows they change, which makes reads with FINAL
expensive. The blocks are a pure function of the number of rows and the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema

INSERTS, UPDATES, DELETES = 30_000, 15_000, 5_000
IMAGES = INSERTS + UPDATES + DELETES
"""Row images of a block."""
STATUSES = ("new", "paid", "packed", "shipped", "returned")
CUSTOMERS = 200_000
FIRST_SECOND, SECONDS = 1_577_836_800, 5 * 365 * 86_400

SCHEMA = TableSchema(
    TableName("bench", "orders"),
    (
        Column("id", Kind.UINT64, nullable=False),
        Column("customer_id", Kind.UINT32, nullable=False),
        Column("status", Kind.ENUM, nullable=False, members=STATUSES),
        Column("amount", Kind.DECIMAL, nullable=False, precision=12, scale=2),
        Column("quantity", Kind.INT16, nullable=False),
        Column("created_at", Kind.DATETIME, nullable=False, precision=6),
        Column("note", Kind.STRING),
    ),
    ("id",),
)

Numbers = npt.NDArray[np.int64]


class Growth:
    """A growing table; tracks which keys are live."""

    def __init__(self, rows: int, seed: int = 20_26) -> None:
        """`rows`: the number of rows after the last block."""
        self.rows = rows
        self._draw = np.random.Generator(np.random.PCG64(seed))
        self._live = np.zeros(self.blocks * INSERTS + 1, dtype=np.bool_)
        self._next_id = 1
        self._version = 1

    @property
    def blocks(self) -> int:
        return -(-self.rows // (INSERTS - DELETES))

    @property
    def changes(self) -> int:
        return self.blocks * IMAGES

    @property
    def keys(self) -> Numbers:
        """The keys of the live rows."""
        return np.flatnonzero(self._live)

    def run(self) -> Iterator[ChangeBlock]:
        for _ in range(self.blocks):
            yield self._block()

    def _block(self) -> ChangeBlock:
        new = np.arange(self._next_id, self._next_id + INSERTS)
        self._next_id += INSERTS
        self._live[new] = True
        changed = self._some(UPDATES)
        gone = np.sort(self._draw.permutation(np.unique(self._some(DELETES * 2)))[:DELETES])
        self._live[gone] = False
        ids = np.concatenate((new, changed, gone))
        ops = np.repeat(np.array([Op.INSERT, Op.UPDATE, Op.DELETE], dtype=np.uint8), (INSERTS, UPDATES, DELETES))
        versions = np.arange(self._version, self._version + IMAGES, dtype=np.uint64)
        self._version += IMAGES
        moments = pa.array(np.zeros(IMAGES, dtype=np.int64))
        return ChangeBlock(SCHEMA, self._images(ids), pa.array(ops), pa.array(versions), moments)

    def _some(self, count: int) -> Numbers:
        """Keys of live rows; a key may occur twice."""
        drawn = self._draw.integers(1, self._next_id, count * 2)
        return drawn[self._live[drawn]][:count]

    def _images(self, ids: Numbers) -> pa.RecordBatch:
        draw, count = self._draw, len(ids)
        statuses = pa.DictionaryArray.from_arrays(pa.array(draw.integers(0, len(STATUSES), count, dtype=np.int32)), list(STATUSES))
        created = FIRST_SECOND * 1_000_000 + (ids * 7_919_000_003) % (SECONDS * 1_000_000)
        columns: list[Any] = [
            pa.array(ids.astype(np.uint64)),
            pa.array((ids * 2_654_435_761 % CUSTOMERS).astype(np.uint32)),
            statuses,
            _hundredths(draw.integers(0, 900_000, count)),
            pa.array(draw.integers(0, 100, count, dtype=np.int16)),
            pa.array(created).cast(pa.timestamp("us")),
            _notes(draw.integers(0, 5_000, count)),
        ]
        return pa.record_batch(columns, schema=SCHEMA.arrow_schema)


def _hundredths(numbers: Numbers) -> pa.Array[Any]:
    """Convert numbers that are not negative to decimals with two digits after the point."""
    words = np.zeros((len(numbers), 2), dtype=np.int64)
    words[:, 0] = numbers
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(numbers), [None, pa.py_buffer(words)])


_TEXTS = pa.array([None if n % 5 < 3 else f"leave at door {n % 1000}, ring {n % 7} times" for n in range(5_000)])


def _notes(numbers: Numbers) -> pa.Array[Any]:
    return _TEXTS.take(pa.array(numbers))
