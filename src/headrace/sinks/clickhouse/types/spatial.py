"""Codecs of spatial values: Point, LineString, Polygon and their Multi variants.

Invariant: see `codec`. Every coordinate is stored bit for bit; the spatial reference (SRID) is lost, because these types have no field for
it. An Array cannot be NULL: a NULL line or polygon is stored as the empty one, which the source cannot contain.

Well-known binary is parsed for all rows of a column at once: step n parses the n-th ring, line or point of every row that has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import Column
from headrace.sinks.clickhouse.types.codec import ColumnCodec, Recode, cast_to
from headrace.sinks.clickhouse.types.text import bytes_codec
from headrace.sinks.clickhouse.types.type_names import StoredType

Indices = npt.NDArray[np.int64]
_HEADER_BYTES, _POINT_BYTES = 5, 16
_REFERENCE_BYTES = 4
_NO_REFERENCE: Final = bytes(_REFERENCE_BYTES)
_POINT: Final = pa.struct([pa.field("1", pa.float64(), nullable=False), pa.field("2", pa.float64(), nullable=False)])


def _list_of(inner: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", inner, nullable=False))


_LINE: Final = _list_of(_POINT)
_LINES: Final = _list_of(_LINE)


@dataclass(slots=True)
class _Walk:
    """The parse position of each row in its bytes."""

    data: npt.NDArray[np.uint8]
    at: Indices
    end: Indices

    def number(self, rows: Indices) -> Indices:
        """Read the next 32-bit number of each of the rows."""
        self.need(rows, 4)
        places = self.at[rows]
        found = sum(self.data[places + byte].astype(np.int64) << (8 * byte) for byte in range(4))
        self.at[rows] += 4
        return np.asarray(found, dtype=np.int64)

    def header(self, rows: Indices, code: int) -> None:
        """Skip the byte order and the shape code, which must be `code`."""
        self.need(rows, _HEADER_BYTES)
        if (self.data[self.at[rows]] != 1).any():
            raise pa.ArrowInvalid("a shape whose bytes are not little-endian")
        self.at[rows] += 1
        if (self.number(rows) != code).any():
            raise pa.ArrowInvalid("a shape of another kind")

    def points(self, rows: Indices, counts: Indices) -> Indices:
        """Return where the next points of each row start, and skip them."""
        starts = self.at[rows].copy()
        self.at[rows] += counts * _POINT_BYTES
        if (self.at[rows] > self.end[rows]).any():
            raise pa.ArrowInvalid("a shape that ends too early")
        return starts

    def need(self, rows: Indices, size: int) -> None:
        if (self.at[rows] + size > self.end[rows]).any():
            raise pa.ArrowInvalid("a shape that ends too early")

    def coordinates(self, starts: Indices, counts: Indices) -> Any:
        """Return the points of consecutive runs."""
        total = int(counts.sum())
        places = np.repeat(starts - (np.cumsum(counts) - counts) * _POINT_BYTES, counts) + np.arange(total) * _POINT_BYTES
        both = self.data[places[:, None] + np.arange(_POINT_BYTES)].view("<f8").reshape(-1, 2)
        return pa.StructArray.from_arrays([pa.array(both[:, 0].copy()), pa.array(both[:, 1].copy())], fields=list(_POINT))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of points in order: their owner, start and number of points."""

    owners: Indices
    starts: Indices
    counts: Indices


Parts = Callable[[_Walk, Indices], _Runs]


def geometry_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For spatial columns: in one of ClickHouse's spatial types, or as bytes."""
    shape = _SHAPES.get(stored.plain.name)
    if shape is None:
        return bytes_codec(column, stored)
    wire, recode = shape
    if wire is _POINT:
        read = "concat(unhex('00000000'), wkb({}))"
    else:
        plain = "CAST({} AS LineString)" if stored.plain.name == "Ring" else "{}"
        read = f"if(empty({{}}), NULL, concat(unhex('00000000'), wkb({plain})))"
    return ColumnCodec(
        wire,
        recode,
        cast_to(pa.binary()),
        null_as_value=column.nullable and wire is not _POINT,
        read=read,
        canonical=None,
        comparable=False,
        caution="shapes of another kind, or without points",
        loses="the spatial reference (SRID)",
        kept=_without_reference,
    )


def _without_reference(array: Any) -> Any:
    return pc.binary_replace_slice(array, 0, _REFERENCE_BYTES, _NO_REFERENCE)


def _walk(array: Any) -> tuple[_Walk, Indices]:
    """Return the parse positions of a column, after the spatial reference, and the rows that are not NULL."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=array.offset + len(array) + 1)[array.offset :].astype(np.int64)
    buffer = array.buffers()[2]
    data = np.frombuffer(buffer, dtype=np.uint8) if buffer is not None and buffer.size else np.zeros(0, dtype=np.uint8)
    walk = _Walk(data, offsets[:-1] + _REFERENCE_BYTES, offsets[1:])
    return walk, np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))


def _ended(walk: _Walk, rows: Indices) -> None:
    if (walk.at[rows] != walk.end[rows]).any():
        raise pa.ArrowInvalid("a shape with bytes after its end")


def _to_points(array: Any) -> Any:
    walk, rows = _walk(array)
    walk.header(rows, 1)
    ones = np.ones(len(rows), dtype=np.int64)
    found = walk.coordinates(walk.points(rows, ones), ones)
    _ended(walk, rows)
    if len(rows) == len(array):
        return found
    places = np.zeros(len(array), dtype=np.int64)
    places[rows] = np.arange(len(rows))
    # NULL rows get an arbitrary point; the mask marks them as NULL.
    taken = found.take(pa.array(places)) if len(rows) else pa.array([{"1": 0.0, "2": 0.0}] * len(array), _POINT)
    missing = pa.array(np.isin(np.arange(len(array)), rows, invert=True))
    return pa.StructArray.from_arrays([taken.field(0), taken.field(1)], fields=list(_POINT), mask=missing)


def _to_line(array: Any) -> Any:
    walk, rows = _walk(array)
    walk.header(rows, 2)
    runs = _line(walk, rows)
    _ended(walk, rows)
    return _lists([_offsets(_per_counts(rows, runs.counts, len(array)))], walk.coordinates(runs.starts, runs.counts), _LINE)


def _to_parts(array: Any, code: int, part: Parts, *, of_points: bool = False) -> Any:
    """Parse shapes of several parts: points, lines or rings."""
    walk, rows = _walk(array)
    walk.header(rows, code)
    runs = _repeated(walk, rows, part)
    _ended(walk, rows)
    levels = [_offsets(np.bincount(runs.owners, minlength=len(array)))] + ([] if of_points else [_offsets(runs.counts)])
    return _lists(levels, walk.coordinates(runs.starts, runs.counts), _LINE if of_points else _LINES)


def _to_multipolygon(array: Any) -> Any:
    walk, rows = _walk(array)
    walk.header(rows, 6)
    polygons = _counted(walk, rows)
    found: list[tuple[Indices, Indices, _Runs]] = []
    for place in range(int(polygons.max(initial=0))):
        having = rows[polygons > place]
        walk.header(having, 3)
        found.append((having, np.full(len(having), place), _repeated(walk, having, _line)))
    _ended(walk, rows)
    # Rings are ordered by row, polygon, ring; a polygon is identified by its number among all.
    firsts = _offsets(_per_counts(rows, polygons, len(array)))
    owners = np.concatenate([firsts[runs.owners] + place[0] for _, place, runs in found if len(place)] or [np.zeros(0, dtype=np.int64)])
    order = np.argsort(owners, kind="stable")
    starts, counts = (
        np.concatenate([getattr(runs, name) for _, place, runs in found if len(place)] or [np.zeros(0, dtype=np.int64)])[order]
        for name in ("starts", "counts")
    )
    rings = _offsets(np.bincount(owners, minlength=int(firsts[-1])))
    return _lists([firsts, rings, _offsets(counts)], walk.coordinates(starts, counts), _list_of(_LINES))


def _line(walk: _Walk, rows: Indices) -> _Runs:
    """Parse a count of points, and the points."""
    counts = _counted(walk, rows)
    return _Runs(rows, walk.points(rows, counts), counts)


def _headed_line(walk: _Walk, rows: Indices) -> _Runs:
    walk.header(rows, 2)
    return _line(walk, rows)


def _one_point(walk: _Walk, rows: Indices) -> _Runs:
    walk.header(rows, 1)
    ones = np.ones(len(rows), dtype=np.int64)
    return _Runs(rows, walk.points(rows, ones), ones)


def _repeated(walk: _Walk, rows: Indices, part: Parts) -> _Runs:
    """Parse a count of parts, and the parts; ordered by row, then by index."""
    counts = _counted(walk, rows)
    found = [part(walk, rows[counts > place]) for place in range(int(counts.max(initial=0)))]
    none = np.zeros(0, dtype=np.int64)
    owners, starts, sizes = (np.concatenate([getattr(runs, name) for runs in found] or [none]) for name in ("owners", "starts", "counts"))
    order = np.argsort(owners, kind="stable")
    return _Runs(owners[order], starts[order], sizes[order])


def _counted(walk: _Walk, rows: Indices) -> Indices:
    counts = walk.number(rows)
    if (counts == 0).any():
        raise pa.ArrowInvalid("a shape without points")
    # A count larger than the remaining bytes means a damaged value.
    if (counts > walk.end[rows] - walk.at[rows]).any():
        raise pa.ArrowInvalid("a shape that ends too early")
    return counts


def _per_counts(rows: Indices, counts: Indices, length: int) -> Indices:
    each = np.zeros(length, dtype=np.int64)
    each[rows] = counts
    return each


def _offsets(counts: Indices) -> Indices:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _lists(levels: list[Indices], values: Any, wanted: Any) -> Any:
    """Return nested lists of points from the offsets of each level, outermost first."""
    types = [wanted]
    while len(types) < len(levels):
        types.append(types[-1].value_type)
    for offsets, kind in zip(reversed(levels), reversed(types), strict=True):
        values = pa.ListArray.from_arrays(pa.array(offsets).cast(pa.int32()), values, type=kind)
    return values


_SHAPES: Final[dict[str, tuple[pa.DataType, Recode]]] = {
    "Point": (_POINT, _to_points),
    "LineString": (_LINE, _to_line),
    "Ring": (_LINE, _to_line),
    "MultiPoint": (_LINE, functools.partial(_to_parts, code=4, part=_one_point, of_points=True)),
    "Polygon": (_LINES, functools.partial(_to_parts, code=3, part=_line)),
    "MultiLineString": (_LINES, functools.partial(_to_parts, code=5, part=_headed_line)),
    "MultiPolygon": (_list_of(_LINES), _to_multipolygon),
}
