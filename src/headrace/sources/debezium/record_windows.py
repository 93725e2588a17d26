"""Cuts the records of an offset range into windows whose bounds depend on the records alone.

Brokers return records in pieces of any size, and a block of a target that counts rows must hold the same rows at each replay. Invariant: a
window ends after the record with which it has `WINDOW_ROWS` records or `WINDOW_BYTES` bytes of keys and values, or at the end of its range.
A batch that is open while Headrace is replaced is cut by the new version: these numbers must not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sources.debezium.events.records import Records

WINDOW_ROWS: Final = 32_768
WINDOW_BYTES: Final = 32 << 20


def cut_windows(pieces: Iterable[Records]) -> Iterator[Records]:
    """Yield the records of one range in windows."""
    held: Records | None = None
    for piece in pieces:
        held = piece if held is None else _joined(held, piece)
        while (end := _end_of_window(held)) is not None:
            yield _sliced(held, 0, end)
            held = _sliced(held, end, held.rows)
    if held is not None and held.rows:
        yield held


def _end_of_window(records: Records) -> int | None:
    """Return how many records the first window has; None if it may have more than these."""
    sizes = [pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False) for column in (records.key, records.value)]
    total = np.cumsum(sizes[0].astype(np.int64) + sizes[1])
    full = int(np.searchsorted(total, WINDOW_BYTES)) + 1
    end = min(full, WINDOW_ROWS)
    return end if end <= records.rows else None


def _joined(one: Records, other: Records) -> Records:
    kinds = [each.headers.type for each in (one, other) if each.headers is not None]
    parts = [each.headers if each.headers is not None else pa.nulls(each.rows, kind) for kind in kinds[:1] for each in (one, other)]
    return Records(
        one.topic,
        one.partition,
        pa.concat_arrays([one.offset, other.offset]),
        pa.concat_arrays([one.key, other.key]),
        pa.concat_arrays([one.value, other.value]),
        pa.concat_arrays([one.timestamp, other.timestamp]),
        pa.concat_arrays(parts) if parts else None,
    )


def _sliced(records: Records, start: int, end: int) -> Records:
    rows = end - start
    return Records(
        records.topic,
        records.partition,
        records.offset.slice(start, rows),
        records.key.slice(start, rows),
        records.value.slice(start, rows),
        records.timestamp.slice(start, rows),
        None if records.headers is None else records.headers.slice(start, rows),
    )
