"""Tombstones whose deletion event Kafka has removed: in a compacted topic only the tombstone is left, so it deletes by its key.

A connector writes a tombstone directly after its deletion event. If records are missing directly before a tombstone, the deletion event may
be one of them. Deleting once more is harmless: the version is between the row's changes before and after.
- **MySQL, MariaDB**: a partition is in log order, so the position is directly before the next change, or else directly after the last one.
- **PostgreSQL**: a partition is in commit order. The highest LSN before the tombstone is below the commit of the deletion, and so below all
  later changes of the row.
- **others**: the tombstone's offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sources.debezium.events.event_versions import Epochs, LogTail, TableVersioning, VersionRule
from headrace.sources.debezium.events.parsed_events import READ, SOURCE, Events, Rows
from headrace.sources.debezium.events.records import Records

_USED: Final = ("file", "pos", "row", "lsn")
_EPOCH_SHIFT: Final = np.uint64(58)
_LSN_MASK: Final = (np.uint64(1) << _EPOCH_SHIFT) - np.uint64(1)


def find_lone(records: Records, gone: Rows) -> Rows:
    """Return the tombstones directly before which records are missing, unless the last record before them has the same key."""
    offset = records.offset.to_numpy(zero_copy_only=False)
    before = np.maximum(gone - 1, 0)
    since = np.where(gone > 0, offset[before] + 1, offset[0] if records.start is None else records.start)
    missing = since < offset[gone]
    gone, before = gone[missing], before[missing]
    keys, earlier = records.key.take(pa.array(gone)), records.key.take(pa.array(before))
    same = pc.fill_null(pc.equal(keys, earlier), False).to_numpy(zero_copy_only=False) & (gone > 0)
    return np.asarray(gone[keys.is_valid().to_numpy(zero_copy_only=False) & ~same], dtype=np.int64)


def placed_tombstones(events: Events, others: Sequence[Events], order: TableVersioning, tail: LogTail | None, epochs: Epochs) -> Events:
    """Return lone tombstones with the positions that their versions need, and set their epochs; other events as they are.

    `others`: the events with a position, of all records; `tail`: the state of the log before them.
    """
    if events.keys_only is None or order.tombstones or order.rule is VersionRule.OFFSET:
        return events
    tail = tail or LogTail()
    rows = np.concatenate([np.zeros(0, np.int64), *(one.record for one in others)])
    read = np.concatenate([np.zeros(0, np.bool_), *(one.op == READ for one in others)])
    sorting = np.argsort(rows, kind="stable")
    rows, read = rows[sorting], read[sorting]
    used = pa.schema([SOURCE.field(name) for name in _USED])
    source = pa.Table.from_batches([one.source.select(_USED) for one in others], schema=used).take(pa.array(sorting)).combine_chunks()
    before, known = np.searchsorted(rows, events.record), np.concatenate([epochs[rows], [np.uint64(tail.epoch)]])
    if order.rule is VersionRule.LSN:
        reached = (known[:-1] << _EPOCH_SHIFT) + np.where(read, 0, _numbers(source["lsn"])).astype(np.uint64)
        first = (np.uint64(tail.epoch) << _EPOCH_SHIFT) + np.uint64(tail.lsn)
        highest = np.maximum.accumulate(np.concatenate([[first], reached]))[before]
        epochs[events.record] = highest >> _EPOCH_SHIFT
        return _with_source(events, {"lsn": pa.array((highest & _LSN_MASK).astype(np.int64) + 1)})
    changes = np.append(np.flatnonzero(~read), len(rows))
    after = changes[np.searchsorted(changes, before)]
    is_last = after == len(rows)
    # The last place is that of the tail, which comes before the first event.
    chosen = np.where(is_last, before - 1, after) % len(known)
    epochs[events.record] = known[chosen]
    files = pa.concat_arrays([*source["file"].chunks, pa.array([f"{tail.base}.{tail.number:06d}"])])
    pos, row = np.append(_numbers(source["pos"]), tail.position), np.append(_numbers(source["row"]), tail.row)
    # The versions of an event's images are below the position of the next event.
    lines = np.where(is_last, 2 * row[chosen] + 2, 0)
    return _with_source(
        events, {"file": files.take(pa.array(chosen)), "pos": pa.array(np.maximum(pos[chosen] - ~is_last, 0)), "row": pa.array(lines)}
    )


def _with_source(events: Events, columns: dict[str, pa.Array]) -> Events:
    arrays = [columns[name] if name in columns else events.source[name] for name in SOURCE.names]
    return replace(events, source=pa.RecordBatch.from_arrays(arrays, schema=SOURCE))


def _numbers(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(array, 0).to_numpy(), dtype=np.int64)
