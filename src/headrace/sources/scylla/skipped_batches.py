"""Batches of the log that the user asked to skip, and a record of their rows.

A batch is the rows of one stream with one `cdc$time`; it occurs again whenever its window is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.log import STREAM, TIME
from headrace.cql.log_positions import BatchPosition
from headrace.model.schema import TableName
from headrace.sources.scylla.position import AUDIT, LogPosition, parse_name

MOST_BYTES: Final = 16 << 10
"""Reported bytes per skipped batch."""


def is_passed(place: str, reached: LogPosition) -> bool:
    """Whether a log that was read up to a position, including rereads, is past a batch's position."""
    at = BatchPosition.parse(place)
    if at is None:
        return False
    name = parse_name(at.table)
    reads = [place for (table, read_number), place in reached.rereads.items() if table == name and read_number != AUDIT]
    reads += [reached.places[name]] if name in reached.places else []
    return bool(reads) and all(place.time >= at.micros for place in reads)


@dataclass(slots=True)
class BatchSkipper:
    """The batches that one task skips, and those that it found."""

    places: Iterable[str] = ()
    _by_table: dict[str, list[BatchPosition]] = field(default_factory=dict)
    _found: dict[BatchPosition, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place in filter(None, map(BatchPosition.parse, self.places)):
            self._by_table.setdefault(place.table, []).append(place)

    def without(self, rows: pa.RecordBatch, table: TableName) -> pa.RecordBatch:
        """Return log rows without the skipped ones."""
        for place in self._by_table.get(str(table), ()):
            requested = pc.and_(pc.equal(rows.column(STREAM), place.stream), pc.equal(rows.column(TIME), place.time))
            met = np.asarray(pc.fill_null(requested, False).to_numpy(zero_copy_only=False))
            if met.any():
                self._found.setdefault(place, []).extend(_row(row) for row in rows.filter(pa.array(met)).to_pylist())
                rows = rows.filter(pa.array(~met))
        return rows

    def report(self) -> list[dict[str, str]]:
        """Return each skipped batch with its rows."""
        return [
            {"place": str(place), "table": place.table, "rows": str(len(rows)), "content": "\n".join(rows)[:MOST_BYTES]}
            for place, rows in self._found.items()
        ]


def _row(row: dict[str, bytes | None]) -> str:
    """Format a row's values as the server serialised them."""
    return ", ".join(f"{name} = 0x{value.hex()}" for name, value in row.items() if value is not None)
