"""Assembles pages of log rows into blocks of whole batches.

A batch is the rows of one stream with one `cdc$time`; its last row has `cdc$end_of_batch`. Pages cut batches anywhere, so rows after the
last end wait for the next page. A batch without an end makes its stream *broken* from there on: nothing more of it is delivered, and the
reader queries it again. Whole columns are processed at once; only broken streams are handled one by one.

A batch that the user asked to skip occurs again whenever its window is read again; its rows are recorded each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.cql.blocks import BatchPosition, fixed_bytes
from headrace.cql.log import END, OPERATION, STREAM, TIME, Operation
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.position import AUDIT, LogPosition, parse_name

ID_BYTES = 16
_TRUE = b"\x01"
_KNOWN = np.array([operation.value for operation in Operation], np.int8)


@dataclass(slots=True)
class BatchAssembler:
    """The rows of one query, page by page: those of a stream come together, in its order."""

    place: str
    """What is read, for errors."""
    broken: dict[bytes, bytes | None] = field(default_factory=dict)
    """Streams with a batch that has no end, and the `cdc$time` up to which their rows were passed on (None: none of this query)."""
    torn: dict[bytes, bytes] = field(default_factory=dict)
    """The `cdc$time` of those batches, by stream."""
    _waiting: pa.RecordBatch | None = None
    _passed: dict[bytes, bytes] = field(default_factory=dict)
    """The `cdc$time` up to which rows of a stream were passed on, where a page ended in it."""

    def feed(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Add a page and return the rows of complete batches."""
        rows = page if self._waiting is None else pa.concat_batches([self._waiting, page])
        return self._whole(rows, last=False)

    def finish(self) -> pa.RecordBatch | None:
        """Return the remaining rows after the last page."""
        return None if self._waiting is None else self._whole(self._waiting, last=True)

    def _whole(self, rows: pa.RecordBatch, *, last: bool) -> pa.RecordBatch:
        self._waiting = None
        if not rows.num_rows:
            return rows
        streams, times = self._ids(rows, STREAM), self._ids(rows, TIME)
        bounds = _bounds(streams, times)
        ended = pc.fill_null(pc.equal(rows.column(END), _TRUE), False).to_numpy(zero_copy_only=False)
        torn = bounds[1:][~ended[bounds[1:] - 1]]
        if not last and len(torn) and torn[-1] == rows.num_rows:
            # The last batch continues, or ends, on the next page.
            self._waiting = rows.slice(int(bounds[-2]))
            rows, streams, times, torn = rows.slice(0, int(bounds[-2])), streams[: bounds[-2]], times[: bounds[-2]], torn[:-1]
        if len(torn) or self.broken:
            rows, streams, times = self._without_broken(rows, streams, times, torn, bounds)
        if rows.num_rows:
            self._passed[streams[-1].tobytes()] = times[-1].tobytes()
        return rows

    def _without_broken(
        self, rows: pa.RecordBatch, streams: NDArray[np.uint8], times: NDArray[np.uint8], torn: NDArray[np.int64], bounds: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.uint8], NDArray[np.uint8]]:
        keep = np.ones(rows.num_rows, np.bool_)
        for stream in self.broken:
            keep &= (streams != np.frombuffer(stream, np.uint8)).any(axis=1)
        for end in torn:
            stream, begin = streams[end - 1].tobytes(), int(bounds[np.searchsorted(bounds, end) - 1])
            if stream not in self.broken:
                follows = begin > 0 and streams[begin - 1].tobytes() == stream
                self.broken[stream] = times[begin - 1].tobytes() if follows else self._passed.get(stream)
                self.torn[stream] = times[end - 1].tobytes()
                keep[begin:] &= (streams[begin:] != streams[end - 1]).any(axis=1)
        return rows.filter(pa.array(keep)), streams[keep], times[keep]

    def _ids(self, rows: pa.RecordBatch, column: str) -> NDArray[np.uint8]:
        try:
            return fixed_bytes(rows.column(column), ID_BYTES)
        except ValueError as error:
            hint = "the log table was written to by something else"
            raise DefiniteError(f"{column} of a log row does not have {ID_BYTES} bytes", place=self.place, hint=hint) from error


def _bounds(streams: NDArray[np.uint8], times: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the start of each batch, and the number of rows."""
    changes = (streams[1:] != streams[:-1]).any(axis=1) | (times[1:] != times[:-1]).any(axis=1)
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [len(times)]])


def check_operations(rows: pa.RecordBatch, table: TableName) -> None:
    column = rows.column(OPERATION)
    if not column.null_count:
        codes = fixed_bytes(column, 1).view(np.int8)[:, 0]
        strange = np.flatnonzero(~np.isin(codes, _KNOWN))
        if not len(strange):
            return
        at, what = int(strange[0]), f"the operation {codes[strange[0]]}, which Headrace does not know"
    else:
        at, what = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), "no operation"
    place = str(BatchPosition.of_row(str(table), rows, at))
    raise DefiniteError(
        f"a log row has {what}: nothing of its window was taken as read",
        place=place,
        hint="a newer ScyllaDB may write it: update Headrace, or report it; headrace skip leaves out this one batch, "
        "--exclude the table, to go on with the others",
        event=place,
    )


@dataclass(slots=True)
class BlockBuffer:
    """Makes few large record batches of many small ones."""

    most_rows: int
    most_bytes: int
    _parts: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows and return the batches that are large enough."""
        if not rows.num_rows:
            return
        self._parts.append(rows)
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
        if self._rows >= self.most_rows or self._bytes >= self.most_bytes:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._parts:
            found = pa.concat_batches(self._parts)
            self._parts, self._rows, self._bytes = [], 0, 0
            yield found


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
