"""Decodes serialized CQL values into typed Arrow arrays, a column at a time: every type of CQL, nested to any depth.

Values have the native protocol's serialization (version 4). Composite types are split into columns of parts (`Cells`), never row by row in
Python, and nothing is copied before a part has its final type. Null is null. CQL's *empty* value (no bytes), which only texts and blobs
distinguish from null, is null for all other types, as in the drivers. Invalid bytes raise `DefiniteError` with column and row. No value is
rounded or clipped:

`varint` and `decimal` are text, because they are unbounded (`str(int)`, `str(Decimal)`: a decimal keeps its scale); `inet` is text, which
keeps IPv4 and IPv6 distinct; a `duration` is a struct of `months`, `days`, `nanoseconds`; uuids are sixteen bytes. A tuple is a struct
with fields `1`, `2` ... as in ClickHouse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.cql.decode.scalar_kernels import copy_uuids, find_not_ascii, pack_runs, read_durations, read_words
from headrace.cql.decode.split_kernels import EXTRA, FINE, count_elements, split_elements, split_fields, split_vectors
from headrace.cql.decode.text_kernels import write_decimals, write_inets, write_varints
from headrace.cql.types import CqlType, unsupported_type
from headrace.errors import DefiniteError

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
Numbers = npt.NDArray[np.int64]

DURATION: Final = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])
_NATIVE: Final[dict[str, pa.DataType]] = {
    "ascii": pa.string(),
    "bigint": pa.int64(),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "counter": pa.int64(),
    "date": pa.date32(),
    "decimal": pa.string(),
    "double": pa.float64(),
    "duration": DURATION,
    "float": pa.float32(),
    "inet": pa.string(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "text": pa.string(),
    "time": pa.time64("ns"),
    "timestamp": pa.timestamp("ms", "UTC"),
    "timeuuid": pa.binary(16),
    "tinyint": pa.int8(),
    "uuid": pa.binary(16),
    "varint": pa.string(),
}
_WIDTHS: Final = {name: -(-kind.bit_width // 8) for name, kind in _NATIVE.items() if pa.types.is_primitive(kind)}
"""Bytes of a value of each type that is one number."""
_VECTOR_WIDTHS: Final = {"bigint": 8, "boolean": 1, "double": 8, "float": 4, "int": 4, "timestamp": 8, "timeuuid": 16, "uuid": 16}
"""Types whose vector elements have no size prefix."""
_DATE_MIDDLE: Final = np.uint32(1 << 31)
_DAY_NS: Final = 86_400_000_000_000
_INET_ROOM: Final = 46
_SHOWN: Final = 24


class MalformedValue(Exception):
    """A value that cannot be decoded: its row in the current cells, and the reason. Callers that split values map it to the outer row."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


class Cells(NamedTuple):
    """Serialised values somewhere in a run of bytes, not copied: the value of row i is data[starts[i] : starts[i] + sizes[i]].

    A size of -1 is null. `starts` and `sizes` are contiguous int64 arrays.
    """

    data: npt.NDArray[np.uint8]
    starts: Numbers
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, column: Array) -> Cells:
        """Wrap a `binary` Arrow column, which the caller keeps alive."""
        rows = len(column)
        _, places, content = column.buffers()
        if not rows:
            return cls(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
        offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + rows + 1].astype(np.int64)
        sizes = np.diff(offsets)
        if column.null_count:
            sizes[np.asarray(column.is_null().to_numpy(zero_copy_only=False))] = -1
        data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.empty(0, np.uint8)
        return cls(data, offsets[:-1].copy(), sizes)

    def binary(self, kind: pa.DataType | None = None) -> Array:
        """Copy the values to an Arrow array."""
        rows = len(self)
        out = np.empty(int(np.maximum(self.sizes, 0).sum()), np.uint8)
        offsets, valid = np.empty(rows + 1, np.int32), np.empty(rows, np.uint8)
        pack_runs(self.data, self.starts, self.sizes, out, offsets, valid)
        return pa.Array.from_buffers(kind or pa.binary(), rows, [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(out)])

    def take(self, rows: npt.NDArray[Any]) -> Cells:
        """Return selected rows, by number or by a mask."""
        return Cells(self.data, np.ascontiguousarray(self.starts[rows]), np.ascontiguousarray(self.sizes[rows]))


class Elements(NamedTuple):
    """The elements of collections: those of row i are the rows offsets[i] to offsets[i + 1] of each part (null collections have none)."""

    offsets: Numbers
    parts: tuple[Cells, ...]
    """A list's or set's elements; a map's keys, and its values."""


def split_collections(cells: Cells, parts: int = 1) -> Elements:
    """Split serialised lists or sets (`parts` = 1) or maps (`parts` = 2). Raises `MalformedValue`."""
    offsets = np.empty(len(cells) + 1, np.int64)
    _check(count_elements(*cells, parts, offsets), "its number of elements is not possible")
    starts, sizes = np.empty(int(offsets[-1]) * parts, np.int64), np.empty(int(offsets[-1]) * parts, np.int64)
    _check(split_elements(*cells, parts, offsets, starts, sizes), "an element's length is not possible")
    if parts == 1:
        return Elements(offsets, (Cells(cells.data, starts, sizes),))
    return Elements(offsets, tuple(Cells(cells.data, starts[part::parts].copy(), sizes[part::parts].copy()) for part in range(parts)))


def split_tuples(cells: Cells, fields: int) -> tuple[Cells, ...]:
    """Split serialised tuples or user types into a column per field; missing fields are null. Raises `MalformedValue`."""
    rows = len(cells)
    starts, sizes = np.empty(rows * fields, np.int64), np.empty(rows * fields, np.int64)
    found = split_fields(*cells, fields, starts, sizes)
    _check(found, "a field's length is not possible", "it has more fields than its type")
    spans = [slice(field * rows, (field + 1) * rows) for field in range(fields)]
    return tuple(Cells(cells.data, starts[span], sizes[span]) for span in spans)


def split_vector(cells: Cells, kind: CqlType) -> Elements:
    """Split serialised vectors of type `kind`. Raises `MalformedValue`."""
    width = _vector_width(kind.args[0])
    rows = int(np.count_nonzero(cells.sizes > 0))
    if width is None:
        offsets = np.empty(len(cells) + 1, np.int64)
        starts, sizes = np.empty(rows * kind.size, np.int64), np.empty(rows * kind.size, np.int64)
        _check(split_vectors(*cells, kind.size, offsets, starts, sizes), "an element's length is not possible")
        return Elements(offsets, (Cells(cells.data, starts, sizes),))
    wrong = np.flatnonzero((cells.sizes > 0) & (cells.sizes != width * kind.size))
    _check(int(wrong[0]) if len(wrong) else FINE, f"it has not {kind.size} elements")
    offsets = np.concatenate([[0], np.cumsum(np.where(cells.sizes > 0, kind.size, 0))]).astype(np.int64)
    starts = (cells.starts[cells.sizes > 0][:, None] + np.arange(kind.size, dtype=np.int64) * width).ravel()
    return Elements(offsets, (Cells(cells.data, starts, np.full(len(starts), width, np.int64)),))


def arrow_type(kind: CqlType) -> pa.DataType:
    """Return the Arrow type for all values of a CQL type."""
    if kind.name in _NATIVE:
        return _NATIVE[kind.name]
    inner = [arrow_type(arg) for arg in kind.args]
    match kind.name:
        case "list" | "set" | "vector":
            return pa.list_(inner[0])
        case "map":
            return pa.map_(inner[0], inner[1])
        case "tuple" | "udt":
            return pa.struct([pa.field(name, part) for name, part in zip(_field_names(kind), inner, strict=True)])
        case _:
            raise unsupported_type(kind)


def to_arrow(kind: CqlType, column: Array, name: str = "") -> Array:
    """Decode a `binary` column to an array of `arrow_type(kind)`; `name` is the column's, for errors."""
    cells = Cells.of(column)
    try:
        return from_cells(kind, cells)
    except MalformedValue as damage:
        raw = column[damage.row].as_py() or b""
        shown = raw[:_SHOWN].hex() + ("..." if len(raw) > _SHOWN else "")
        message = f"a value is no {kind}: {damage.reason}; its {len(raw)} bytes are 0x{shown}"
        hint = "if the table or its type was altered just now, restart to read its new definition; else report this"
        raise DefiniteError(message, place=f"column {name or '?'}, row {damage.row}", hint=hint) from None


def from_cells(kind: CqlType, cells: Cells) -> Array:
    """Decode parts of values, as the splitting functions return them, to an array of `arrow_type(kind)`. Raises `MalformedValue`."""
    match kind.name:
        case "list" | "set" | "vector":
            elements = split_vector(cells, kind) if kind.name == "vector" else split_collections(cells)
            values = _inside(elements.offsets, lambda: _present(kind, "an element", elements.parts[0]))
            return _nested(arrow_type(kind), cells, elements.offsets, values)
        case "map":
            return _maps(kind, cells)
        case "tuple" | "udt":
            return _structs(kind, cells)
        case "duration":
            return _durations(cells)
        case "text" | "ascii":
            return _texts(kind, cells)
        case "blob":
            return cells.binary()
        case "uuid" | "timeuuid":
            out, valid = np.empty(len(cells) * 16, np.uint8), np.empty(len(cells), np.uint8)
            _check(copy_uuids(*cells, out, valid), "it has not 16 bytes")
            return pa.Array.from_buffers(pa.binary(16), len(cells), [_bitmap(valid), pa.py_buffer(out)])
        case "varint" | "decimal":
            return _long_numbers(kind, cells)
        case "inet":
            return _addresses(cells)
        case name if name in _WIDTHS:
            return _numbers(kind, cells)
        case _:
            raise unsupported_type(kind)


def _numbers(kind: CqlType, cells: Cells) -> Array:
    rows, width = len(cells), _WIDTHS[kind.name]
    out, valid = np.empty(rows * width, np.uint8), np.empty(rows, np.uint8)
    _check(read_words(*cells, width, out, valid), f"it has not {width} byte{'s' if width > 1 else ''}")
    match kind.name:
        case "boolean":
            return pa.Array.from_buffers(pa.bool_(), rows, [_bitmap(valid), _bitmap(out, always=True)])
        case "date":
            out = (out.view(np.uint32) ^ _DATE_MIDDLE).view(np.uint8)
        case "time":
            wrong = np.flatnonzero((out.view(np.uint64) >= _DAY_NS) & (valid != 0))
            _check(int(wrong[0]) if len(wrong) else FINE, "it is not within a day")
    return pa.Array.from_buffers(_NATIVE[kind.name], rows, [_bitmap(valid), pa.py_buffer(out)])


def _texts(kind: CqlType, cells: Cells) -> Array:
    found: Any = cells.binary(pa.string())
    if kind.name == "ascii":
        _check(find_not_ascii(*cells), "it is not ASCII")
        return found
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raise MalformedValue(_first_bad_text(found), "it is not UTF-8") from None
    return found


def _first_bad_text(texts: Array) -> int:
    """Find the bad row by bisection; only called for damaged columns."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            texts.slice(low, middle - low).cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


def _long_numbers(kind: CqlType, cells: Cells) -> Array:
    rows = len(cells)
    longest, total = int(cells.sizes.max(initial=0)), int(np.maximum(cells.sizes, 0).sum())
    # A byte is less than five halves of a digit; then a sign, a point with zeros, an exponent.
    out = np.empty(total * 5 // 2 + rows * 24, np.uint8)
    room, scratch = np.empty(longest // 4 + 2, np.int64), np.empty(longest * 5 // 2 + 32, np.uint8)
    offsets, valid = np.empty(rows + 1, np.int32), np.empty(rows, np.uint8)
    write = write_varints if kind.name == "varint" else write_decimals
    _check(write(*cells, room, scratch, out, offsets, valid), "it has no digits")
    return _text_array(out, offsets, valid)


def _addresses(cells: Cells) -> Array:
    rows = len(cells)
    out, offsets, valid = np.empty(rows * _INET_ROOM, np.uint8), np.empty(rows + 1, np.int32), np.empty(rows, np.uint8)
    _check(write_inets(*cells, out, offsets, valid), "it has neither 4 nor 16 bytes")
    return _text_array(out, offsets, valid)


def _text_array(out: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32], valid: npt.NDArray[np.uint8]) -> Array:
    content = out[: int(offsets[-1])].copy()
    return pa.Array.from_buffers(pa.string(), len(valid), [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(content)])


def _durations(cells: Cells) -> Array:
    rows = len(cells)
    out, valid = np.empty(rows * 3, np.int64), np.empty(rows, np.uint8)
    _check(read_durations(*cells, out, valid), "it is not months, days and nanoseconds of one sign")
    months, days, nanos = (np.ascontiguousarray(out[part::3]) for part in range(3))
    parts = [pa.array(months.astype(np.int32)), pa.array(days.astype(np.int32)), pa.array(nanos)]
    return pa.Array.from_buffers(DURATION, rows, [_bitmap(valid)], children=parts)


def _maps(kind: CqlType, cells: Cells) -> Array:
    elements = split_collections(cells, 2)
    keys, values = elements.parts
    made: Any = arrow_type(kind)
    parts = [
        _inside(elements.offsets, lambda: _present(CqlType("set", (kind.args[0],)), "a key", keys)),
        _inside(elements.offsets, lambda: from_cells(kind.args[1], values)),
    ]
    entries = pa.Array.from_buffers(pa.struct([made.key_field, made.item_field]), len(keys), [None], children=parts)
    return _nested(made, cells, elements.offsets, entries)


def _structs(kind: CqlType, cells: Cells) -> Array:
    parts = split_tuples(cells, len(kind.args))
    arrays = [from_cells(arg, part) for arg, part in zip(kind.args, parts, strict=True)]
    valid = (cells.sizes > 0).astype(np.uint8)
    return pa.Array.from_buffers(arrow_type(kind), len(cells), [_bitmap(valid)], children=arrays)


def _present(kind: CqlType, word: str, cells: Cells) -> Array:
    """Check the elements of a collection: those of a set and the keys of a map are never null."""
    if kind.name == "set":
        missing = np.flatnonzero(cells.sizes < 0)
        _check(int(missing[0]) if len(missing) else FINE, f"{word} is null")
    found = from_cells(kind.args[0], cells)
    if word == "a key" and found.null_count:
        raise MalformedValue(int(np.flatnonzero(np.asarray(found.is_null()))[0]), "a key is empty, which Arrow's maps do not hold")
    return found


def _nested(kind: pa.DataType, cells: Cells, offsets: Numbers, values: Array) -> Array:
    valid = (cells.sizes > 0).astype(np.uint8)
    places = pa.py_buffer(offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(cells), [_bitmap(valid), places], children=[values])


def _inside(offsets: Numbers, read: Callable[[], Array]) -> Array:
    """Return the result of `read`; map damage in an element to its row."""
    try:
        return read()
    except MalformedValue as damage:
        raise MalformedValue(int(np.searchsorted(offsets, damage.row, side="right")) - 1, f"within it, {damage.reason}") from None


def _vector_width(kind: CqlType) -> int | None:
    if kind.name == "vector":
        inner = _vector_width(kind.args[0])
        return None if inner is None else inner * kind.size
    return _VECTOR_WIDTHS.get(kind.name)


def _field_names(kind: CqlType) -> tuple[str, ...]:
    return kind.fields if kind.name == "udt" else tuple(str(place + 1) for place in range(len(kind.args)))


def _check(found: int, reason: str, extra: str = "bytes are left over after its end") -> None:
    if found <= EXTRA:
        raise MalformedValue(EXTRA - found, extra)
    if found != FINE:
        raise MalformedValue(found, reason)


def _bitmap(valid: npt.NDArray[np.uint8], *, always: bool = False) -> pa.Buffer | None:
    """Return the validity bitmap; None if all rows are valid, unless `always`."""
    return None if valid.all() and not always else pa.py_buffer(np.packbits(valid, bitorder="little"))
