"""Geometries and vectors of events: structs of well-known binary and a spatial reference, and lists of numbers.

Invariant: a geometry has the model's form: the spatial reference in four bytes, then well-known binary without a reference. PostGIS embeds
one; it is removed, and used if the struct has none.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import Column
from headrace.sources.debezium.types.binary import Array, Mask, ParsedColumn, from_base64, spans, struct_parts, valid_rows, with_nulls_at

_HEAD: Final = 9
"""Byte order, type in four bytes, and a reference in four bytes if the type has the flag."""
_REFERENCED: Final = 0x20
_POINT: Final = np.frombuffer(b"\x01\x01\x00\x00\x00", np.uint8)


def geometries(array: Array) -> ParsedColumn:
    """Structs of `wkb` and `srid` (points: also of `x` and `y`)."""
    gone = ~valid_rows(array)
    parts = struct_parts(array)
    shapes, bad = parts["wkb"], None
    if pa.types.is_string(shapes.type):
        shapes, bad = from_base64(shapes)
    shapes = shapes.cast(pa.binary())
    if "x" in parts and shapes.null_count > int(gone.sum()):
        shapes = pc.coalesce(shapes, _points(parts["x"], parts["y"]))
    sent = parts["srid"].cast(pa.int32()) if "srid" in parts else pa.nulls(len(array), pa.int32())
    shapes, inside = _without_reference(shapes)
    references = pc.fill_null(pc.coalesce(sent, inside), 0)
    heads = pa.Array.from_buffers(pa.binary(4), len(array), [None, pa.py_buffer(references.to_numpy().astype("<i4"))]).cast(pa.binary())
    whole = pc.binary_join_element_wise(heads, shapes, pa.scalar(b"", pa.binary()))
    if gone.any():
        whole = with_nulls_at(whole, gone)
    empty = pc.fill_null(pc.less(pc.binary_length(shapes), 5), True).to_numpy(zero_copy_only=False) & ~gone
    wrong = np.asarray(empty, dtype=np.bool_) if bad is None else np.asarray(empty | bad, dtype=np.bool_)
    return ParsedColumn(with_nulls_at(whole, wrong), wrong) if wrong.any() else ParsedColumn(whole)


def _points(x: Array, y: Array) -> Array:
    """Well-known binary of points."""
    rows = np.empty((len(x), 21), np.uint8)
    rows[:, :5] = _POINT
    for place, numbers in ((5, x), (13, y)):
        filled = pc.fill_null(numbers.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).astype("<f8")
        rows[:, place : place + 8] = filled.view(np.uint8).reshape(-1, 8)
    made = pa.Array.from_buffers(pa.binary(21), len(x), [None, pa.py_buffer(rows)]).cast(pa.binary())
    return pc.if_else(pc.and_(pc.is_valid(x), pc.is_valid(y)), made, pa.scalar(None, pa.binary()))


def _without_reference(shapes: Array) -> tuple[Array, Array]:
    """Shapes without the spatial references inside of them, and those."""
    found = spans(shapes)
    starts, sizes = found.offsets[:-1], np.diff(found.offsets)
    long = sizes >= _HEAD
    # The highest byte of the type lies last if the least significant one comes first.
    little = np.zeros(len(shapes), np.bool_)
    little[long] = found.data[starts[long]] == 1
    flag = starts + np.where(little, 4, 1)
    inside = np.zeros(len(shapes), np.bool_)
    inside[long] = (found.data[flag[long]] & _REFERENCED) != 0
    if not inside.any():
        return shapes, pa.nulls(len(shapes), pa.int32())
    data = found.data.copy()
    data[flag[inside]] &= 0xFF ^ _REFERENCED
    places = starts[inside][:, None] + np.arange(5, _HEAD)
    raw = data[places]
    numbers = np.zeros(len(shapes), np.int32)
    forward, backward = raw.copy().view("<i4").reshape(-1), raw.copy().view(">i4").reshape(-1)
    numbers[inside] = np.where(little[inside], forward, backward)
    keep = np.ones(len(data), np.bool_)
    keep[places.reshape(-1)] = False
    offsets = found.offsets - np.concatenate(([0], np.cumsum(inside * 4)))
    return _rebuilt(shapes, data[keep], offsets, found.valid), pa.array(numbers, mask=~inside)


def _rebuilt(shapes: Array, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], valid: Mask | None) -> Array:
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers: list[Any] = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(shapes), buffers)


def vectors(array: Array, column: Column) -> ParsedColumn:
    """Lists of numbers as lists of four-byte floats; a list with a NULL in it is bad. Doubles were floats in the source (pgvector)."""
    bad = np.zeros(len(array), np.bool_)
    if array.flatten().null_count:
        parents = pc.list_parent_indices(array).to_numpy()
        bad[parents[~valid_rows(array.flatten())]] = True
        array = with_nulls_at(array, bad)
    # Compact the buffers, so that lists and numbers can be recombined.
    whole = pa.concat_arrays([array.take(pa.array(np.arange(len(array))))])
    numbers = whole.values.slice(whole.offsets[0].as_py(), whole.offsets[-1].as_py() - whole.offsets[0].as_py()).cast(
        pa.float32(), safe=False
    )
    offsets = pc.subtract(whole.offsets, whole.offsets[0])
    nulls = None if not whole.null_count else pa.array(~valid_rows(whole))
    made = pa.ListArray.from_arrays(offsets, numbers, type=column.arrow_type, mask=nulls)
    return ParsedColumn(made, bad if bad.any() else None)
