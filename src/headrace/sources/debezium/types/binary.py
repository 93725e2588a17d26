"""Decodes bytes sent as text, numbers sent as bytes, geometries and vectors, a column at a time.

Invariant: the result equals Python's `base64`, `bytes.fromhex` and `int.from_bytes` for every row. A row that they would reject is marked
as bad and is NULL; others are unaffected. A geometry has the model's form: the spatial reference in four bytes, then well-known binary
without a reference. PostGIS embeds one; it is removed, and used if the struct has none.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import Column
from headrace.sources.debezium.kernels.values import PAD, decode_base64, extend_numbers

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Mask = npt.NDArray[np.bool_]

_NONE: Final = 255
_STANDARD: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NARROW: Final = 15
"""Bytes of a whole number that surely fits 38 digits; one more may not."""
WIDE: Final = 32
_WKB_HEAD: Final = 9
"""Byte order, type in four bytes, and a reference in four bytes if the type has the flag."""
_REFERENCED: Final = 0x20
_POINT: Final = np.frombuffer(b"\x01\x01\x00\x00\x00", np.uint8)


class ParsedColumn(NamedTuple):
    """Values, and which rows have none because theirs cannot be read (None: no row)."""

    array: Array
    bad: Mask | None = None


class Spans(NamedTuple):
    """Where the values of an array lie: one after the other, without gaps; NULLs are empty."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    valid: Mask | None


def spans(array: Array) -> Spans:
    valid = None
    if array.null_count:
        valid = valid_rows(array)
        array = pc.fill_null(array, pa.scalar("", array.type) if pa.types.is_string(array.type) else pa.scalar(b"", array.type))
    width: Any = np.int64 if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type) else np.int32
    _, places, data = array.buffers()
    if not len(array):
        return Spans(np.empty(0, np.uint8), np.zeros(1, np.int64), valid)
    offsets = np.frombuffer(places, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return Spans(raw[offsets[0] : offsets[-1]], offsets - offsets[0], valid)


def valid_rows(array: Array) -> Mask:
    return np.asarray(pc.is_valid(array).to_numpy(zero_copy_only=False), dtype=np.bool_)


def struct_parts(array: Array) -> dict[str, Array]:
    """The fields of structs by name, NULL where the struct is: what lies under a NULL means nothing."""
    return {array.type.field(place).name: part for place, part in enumerate(array.flatten())}


def with_nulls_at(array: Array, rows: Mask) -> Array:
    return pc.if_else(pa.array(rows), pa.scalar(None, array.type), array)


def _lookup(alphabet: str, pad: str = "") -> npt.NDArray[np.uint8]:
    table = np.full(256, _NONE, np.uint8)
    for value, letter in enumerate(alphabet):
        table[ord(letter)] = value
    if pad:
        table[ord(pad)] = PAD
    return table


_BASE64: Final = _lookup(_STANDARD, "=")
_BASE64[ord("-")], _BASE64[ord("_")] = 62, 63  # the alphabet for addresses
_HEX: Final = _lookup("0123456789abcdef")
for _value, _letter in enumerate("ABCDEF", 10):
    _HEX[ord(_letter)] = _value


def from_base64(texts: Array) -> ParsedColumn:
    """Bytes of base64 in either alphabet, padded as Java pads it."""
    found = spans(texts)
    out = np.empty(len(found.data) // 4 * 3 + 3, np.uint8)
    offsets, bad = np.empty(len(texts) + 1, np.int32), np.zeros(len(texts), np.bool_)
    wrong = decode_base64(found.data, found.offsets, _BASE64, out, offsets, bad.view(np.uint8))
    if not wrong:
        return ParsedColumn(_binary(out[: offsets[-1]], offsets, found.valid))
    valid = ~bad if found.valid is None else found.valid & ~bad
    return ParsedColumn(_binary(out[: offsets[-1]], offsets, valid), bad)


def from_hex(texts: Array) -> ParsedColumn:
    found = spans(texts)
    sizes = np.diff(found.offsets)
    odd = (sizes & 1) != 0
    if odd.any():
        return _decode_one_by_one(from_hex, texts, odd)
    codes = _HEX[found.data].reshape(-1, 2)
    wrong = (codes == _NONE).any(axis=1)
    if wrong.any():
        return _decode_one_by_one(from_hex, texts, _rows_of(np.flatnonzero(wrong) << 1, found.offsets))
    return ParsedColumn(_binary((codes[:, 0] << 4 | codes[:, 1]).astype(np.uint8), found.offsets >> 1, found.valid))


def _decode_one_by_one(parse: Any, texts: Array, bad: Mask) -> ParsedColumn:
    """The other rows, parsed without those that are known to be bad."""
    rest: ParsedColumn = parse(with_nulls_at(texts, bad))
    return ParsedColumn(rest.array, bad if rest.bad is None else bad | rest.bad)


def _rows_of(places: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Mask:
    rows = np.zeros(len(offsets) - 1, np.bool_)
    rows[np.searchsorted(offsets, places, side="right") - 1] = True
    return rows


def _binary(data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any], valid: Mask | None) -> Array:
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    places = pa.py_buffer(offsets.astype(np.int32, copy=False))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [bits, places, pa.py_buffer(np.ascontiguousarray(data))])


def fixed(raw: Array, width: int) -> ParsedColumn:
    found = spans(raw)
    sizes = np.diff(found.offsets)
    there = np.ones(len(raw), np.bool_) if found.valid is None else found.valid
    bad = there & (sizes != width)
    right = there & ~bad
    spread = np.zeros((len(raw), width), np.uint8)
    at = found.offsets[:-1][right]
    spread[right] = found.data[at[:, None] + np.arange(width)] if len(at) else 0
    return ParsedColumn(_masked(pa.binary(width), spread, right), bad if bad.any() else None)


def _masked(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask) -> Array:
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(valid), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def whole_numbers(raw: Array) -> ParsedColumn:
    """Two's complement, most significant byte first, of any length, as decimals of scale 0; more than 76 digits are bad."""
    found = spans(raw)
    sizes = np.diff(found.offsets)
    there = np.ones(len(raw), np.bool_) if found.valid is None else found.valid
    bad = there & ((sizes == 0) | (sizes > WIDE))
    valid = there & ~bad
    most = int(sizes[valid].max(initial=0))
    width = 16 if most <= NARROW else WIDE
    values = np.empty(len(raw) * width, np.uint8)
    extend_numbers(found.data, found.offsets, width, valid.view(np.uint8), values)
    if width == 16:
        return ParsedColumn(_masked(pa.decimal128(38, 0), values, valid), bad if bad.any() else None)
    array = _masked(pa.decimal256(76, 0), values, valid)
    return _within(array, bad) if most == WIDE else ParsedColumn(array, bad if bad.any() else None)


def _within(array: Array, bad: Mask) -> ParsedColumn:
    """32 bytes hold a little more than 76 digits."""
    most = pa.scalar(10**76 - 1, pa.decimal256(76, 0))
    least = pa.scalar(-(10**76) + 1, pa.decimal256(76, 0))
    inside = pc.fill_null(pc.and_(pc.less_equal(array, most), pc.greater_equal(array, least)), True)
    outside = ~np.asarray(inside.to_numpy(zero_copy_only=False), dtype=np.bool_)
    bad = bad | outside
    return ParsedColumn(with_nulls_at(array, outside) if outside.any() else array, bad if bad.any() else None)


def bits(raw: Array) -> ParsedColumn:
    """Bits, least significant byte first, as unsigned numbers; more than 64 that are set are bad."""
    found = spans(raw)
    sizes = np.diff(found.offsets)
    there = np.ones(len(raw), np.bool_) if found.valid is None else found.valid
    starts = found.offsets[:-1]
    values = np.zeros((len(raw), 8), np.uint8)
    for place in range(min(8, int(sizes.max(initial=0)))):
        has = sizes > place
        values[has, place] = found.data[starts[has] + place]
    bad = np.zeros(len(raw), np.bool_)
    for row in np.flatnonzero(sizes > 8):
        bad[row] = bool(found.data[starts[row] + 8 : starts[row] + sizes[row]].any())
    return ParsedColumn(_masked(pa.uint64(), values, there & ~bad), bad if bad.any() else None)


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
    rows = np.empty((len(x), 21), np.uint8)
    rows[:, :5] = _POINT
    for place, numbers in ((5, x), (13, y)):
        filled = pc.fill_null(numbers.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).astype("<f8")
        rows[:, place : place + 8] = filled.view(np.uint8).reshape(-1, 8)
    made = pa.Array.from_buffers(pa.binary(21), len(x), [None, pa.py_buffer(rows)]).cast(pa.binary())
    return pc.if_else(pc.and_(pc.is_valid(x), pc.is_valid(y)), made, pa.scalar(None, pa.binary()))


def _without_reference(shapes: Array) -> tuple[Array, Array]:
    found = spans(shapes)
    starts, sizes = found.offsets[:-1], np.diff(found.offsets)
    long = sizes >= _WKB_HEAD
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
    places = starts[inside][:, None] + np.arange(5, _WKB_HEAD)
    raw = data[places]
    numbers = np.zeros(len(shapes), np.int32)
    forward, backward = raw.copy().view("<i4").reshape(-1), raw.copy().view(">i4").reshape(-1)
    numbers[inside] = np.where(little[inside], forward, backward)
    keep = np.ones(len(data), np.bool_)
    keep[places.reshape(-1)] = False
    offsets = found.offsets - np.concatenate(([0], np.cumsum(inside * 4)))
    return _binary(data[keep], offsets, found.valid), pa.array(numbers, mask=~inside)


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
