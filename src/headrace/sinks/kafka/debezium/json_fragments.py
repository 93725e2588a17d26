"""Converts columns to JSON fragments, as Debezium's connectors write them with their default settings.

Invariant: a column's `Shown` gives one piece for each value, NULL for NULL; what its `field` (the column's schema in Kafka Connect's words)
says is what the pieces are. Whole columns only: no Python runs per value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import fixed_bytes, fixed_bytes_printer, format_timestamps
from headrace.sinks.kafka.debezium.json_kernels import base64, base64_size, quote, quoted_size

MARIADB: Final = "mariadb"
NULL: Final = "null"

_MILLISECOND_DIGITS: Final = 3
_SRID_BYTES: Final = 4
_LAST_BYTE: Final = 2**31 - 1
_POINT_BYTES: Final = 21
_WKB_ORDER_AND_TYPE: Final = 5

Field = dict[str, Any]
Render = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Shown:
    field: Field
    """Its schema, without the name, the default, and whether it may be NULL."""
    render: Render
    """Converts an array of the column's type to text."""


def shown(column: Column, connector: str) -> Shown:
    """The column as Debezium's connector for MySQL or MariaDB shows it."""
    name = column.source_type.lower()
    match column.form:
        case ValueForm.INTEGER:
            # Above 9223372036854775807 it wraps round, as with `bigint.unsigned.handling.mode=long`.
            wraps = column.type.bits == 64 and not column.type.signed
            medium = column.type.bits == 32 and name.startswith("mediumint")
            render: Render = (lambda array: _text(array.view(pa.int64()))) if wraps else _text
            return Shown({"type": "int32" if medium else column.type.connect}, render)
        case ValueForm.FLOAT:
            return Shown({"type": "float" if column.type.bits == 32 else "double"}, floats)
        case ValueForm.DECIMAL:
            sizes = {"scale": str(column.scale), "connect.decimal.precision": str(column.precision)}
            return Shown(_named("bytes", "org.apache.kafka.connect.data.Decimal", sizes), _decimals)
        case ValueForm.DATE:
            return Shown(_named("int32", "io.debezium.time.Date"), lambda array: _text(array.view(pa.int32())))
        case ValueForm.TIMESTAMP if column.type.zoned:
            return Shown(_named("string", column.type.semantic), lambda array: _instants(array, column.precision))
        case ValueForm.TIMESTAMP if column.precision <= _MILLISECOND_DIGITS:
            return Shown(_named("int64", "io.debezium.time.Timestamp"), lambda array: _text(pc.divide(array.view(pa.int64()), 1000)))
        case ValueForm.TIMESTAMP:
            return Shown(_named("int64", "io.debezium.time.MicroTimestamp"), lambda array: _text(array.view(pa.int64())))
        case ValueForm.TIME:
            return Shown(_named("int64", "io.debezium.time.MicroTime"), lambda array: _text(array.view(pa.int64())))
        case ValueForm.YEAR:
            return Shown(_named("int32", column.type.semantic), _text)
        case ValueForm.BITS if column.precision == 1:
            return Shown({"type": "boolean"}, lambda array: pc.if_else(pc.equal(array, pa.scalar(0, pa.uint64())), "false", "true"))
        case ValueForm.BITS:
            bits = _named("bytes", "io.debezium.data.Bits", {"length": str(column.precision or 64)})
            return Shown(bits, lambda array: _bits(array, column.precision or 64))
        case ValueForm.BYTES:
            return Shown({"type": "bytes"}, in_base64)
        case ValueForm.MEMBERS:
            return Shown(_named("string", column.type.semantic, {"allowed": ",".join(column.members)}), _members)
        case ValueForm.JSON if connector != MARIADB:
            return Shown(_named("string", column.type.semantic), quoted)
        case ValueForm.TEXT | ValueForm.JSON:
            return Shown({"type": "string"}, quoted)
        case ValueForm.GEOMETRY:
            return _geometry(name)
        case ValueForm.VECTOR:
            items = {"items": {"type": "float", "optional": False}}
            return Shown({"type": "array", **items, "name": column.type.semantic, "version": 1}, float_lists)
        case ValueForm.FIXED_BYTES:
            text = fixed_bytes_printer(column)
            field = _named("string", column.type.semantic) if column.type.semantic else {"type": "string"}
            return Shown(field, lambda array: quoted(text(array)))
        case unknown:
            assert_never(unknown)


def field_of(column: Column, connector: str) -> Field:
    how = shown(column, connector)
    default = _default(column, how)
    given = {} if default is None else {"default": default}
    # Kafka Connect's own order, so that the text is the same as well.
    head = {"type": how.field["type"]}
    inner: Field = {name: how.field[name] for name in ("items", "fields") if name in how.field}
    rest = {name: value for name, value in how.field.items() if name not in (*head, *inner)}
    return {**head, **inner, "optional": column.nullable, **rest, **given, "field": column.name}


def join(*parts: Any) -> Any:
    """Join texts and columns of texts, row by row."""
    return pc.binary_join_element_wise(*parts, "")


def or_null(texts: Any) -> Any:
    return pc.fill_null(texts, NULL) if texts.null_count else texts


def quoted(array: Any) -> Any:
    offsets, data = _parts(array)
    return _filled(array, offsets, data, quoted_size(offsets, data), quote)


def in_base64(array: Any) -> Any:
    """Encode bytes as JSON strings of base64."""
    offsets, data = _parts(array)
    return _filled(array, offsets, data, base64_size(offsets), base64)


def _filled(array: Any, offsets: Any, data: Any, size: int, fill: Callable[..., None]) -> Any:
    if size > np.iinfo(np.int32).max:
        raise pa.ArrowCapacityError("more text than an array holds")
    out, ends = np.empty(size, dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int64)
    fill(offsets, data, ends[1:], out)
    validity = None if not array.null_count else pc.is_valid(array).buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(array), [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)])


def _parts(array: Any) -> tuple[Any, Any]:
    plain = array if pa.types.is_binary(array.type) or pa.types.is_string(array.type) else array.cast(pa.binary())
    _, starts, data = plain.buffers()
    if starts is None or not len(plain):
        return np.zeros(len(plain) + 1, dtype=np.int32), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(starts, dtype=np.int32, count=len(plain) + 1 + plain.offset)[plain.offset :]
    return offsets, np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(0, dtype=np.uint8)


def _text(array: Any) -> Any:
    return array.cast(pa.string())


def floats(array: Any) -> Any:
    """Return the shortest digits that give the same bits, always with a point: readers without a schema need it to detect floats."""
    digits = _text(array)
    return pc.if_else(pc.match_substring_regex(digits, "[.e]"), digits, join(digits, ".0"))


def _instants(array: Any, digits: int) -> Any:
    clock = pc.replace_substring(format_timestamps(array, digits), " ", "T", max_replacements=1)
    return join('"', clock, 'Z"')


def _members(array: Any) -> Any:
    return quoted(array.dictionary).take(array.indices) if pa.types.is_dictionary(array.type) else quoted(array)


def float_lists(array: Any) -> Any:
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    inner = pa.ListArray.from_arrays(pa.array(offsets), floats(array.values))
    return _with_nulls_of(array, join("[", pc.binary_join(inner, ","), "]"))


def _bits(array: Any, bits: int) -> Any:
    """Encode bits as bytes, least significant first."""
    width = (bits + 7) // 8
    numbers = pc.fill_null(array, pa.scalar(0, pa.uint64())).to_numpy(zero_copy_only=False).astype("<u8")
    rows = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, 8)[:, :width])
    return _with_nulls_of(array, in_base64(fixed_bytes(rows).cast(pa.binary())))


def _decimals(array: Any) -> Any:
    """Encode the unscaled number in two's complement, most significant byte first, in the minimum number of bytes."""
    if not len(array):
        return pa.array([], pa.string())
    width = array.type.byte_width
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8, count=width * len(array), offset=width * array.offset)
    rows = raw.reshape(-1, width)[:, ::-1]
    rows = np.where(np.asarray(array.is_valid())[:, None], rows, np.uint8(0)) if array.null_count else rows
    sign = np.where(rows[:, :1] >= 128, np.uint8(255), np.uint8(0))
    needless = (rows[:, :-1] == sign) & ((rows[:, 1:] ^ sign) < 128)
    leading = np.cumprod(needless, axis=1, dtype=np.uint8).sum(axis=1)
    kept = np.arange(width)[None, :] >= leading[:, None]
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(width - leading.astype(np.int64), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows[kept]))]
    return _with_nulls_of(array, in_base64(pa.Array.from_buffers(pa.binary(), len(rows), buffers)))


def _geometry(name: str) -> Shown:
    point = name.startswith("point")
    wkb = {"type": "bytes", "optional": point, "field": "wkb"}
    fields: list[Field] = [wkb, {"type": "int32", "optional": True, "field": "srid"}]
    if point:
        fields = [{"type": "double", "optional": False, "field": axis} for axis in "xy"] + fields
    semantic = "io.debezium.data.geometry.Point" if point else "io.debezium.data.geometry.Geometry"
    doc = "Geometry (POINT)" if point else "Geometry"
    return Shown({"type": "struct", "fields": fields, "name": semantic, "version": 1, "doc": doc}, _points if point else _shapes)


def _shapes(array: Any) -> Any:
    """Split values into spatial reference (0: none) and well-known binary."""
    srid, wkb = _geometry_parts(array)
    return _with_nulls_of(array, join('{"wkb":', in_base64(wkb), ',"srid":', srid, "}"))


def _points(array: Any) -> Any:
    srid, wkb = _geometry_parts(array)
    filled = pc.if_else(array.is_valid(), wkb, pa.scalar(bytes(_POINT_BYTES)))
    rows = np.frombuffer(filled.cast(pa.binary(_POINT_BYTES)).buffers()[1], dtype=np.uint8, count=_POINT_BYTES * len(array))
    axes = np.ascontiguousarray(rows.reshape(-1, _POINT_BYTES)[:, _WKB_ORDER_AND_TYPE:]).view("<f8")
    x, y = (floats(pa.array(np.ascontiguousarray(axes[:, place]))) for place in (0, 1))
    return _with_nulls_of(array, join('{"x":', x, ',"y":', y, ',"wkb":', in_base64(wkb), ',"srid":', srid, "}"))


def _geometry_parts(array: Any) -> tuple[Any, Any]:
    filled = pc.fill_null(array, bytes(_SRID_BYTES)) if array.null_count else array
    numbers = np.frombuffer(
        pc.binary_slice(filled, 0, _SRID_BYTES).cast(pa.binary(_SRID_BYTES)).buffers()[1], dtype="<u4", count=len(array)
    )
    srid = pc.if_else(pa.array(numbers == 0), NULL, _text(pa.array(numbers)))
    # Without an end, Arrow computes a negative size for an even number of rows.
    return srid, pc.binary_slice(filled, _SRID_BYTES, _LAST_BYTE)


def _default(column: Column, how: Shown) -> Any:
    """Return the column's default in the form of its values; None if it has none, or a computed one."""
    if column.default is None or column.generated:
        return None
    text = column.default
    try:
        return json.loads(how.render(pa.array([text]).cast(column.arrow_type))[0].as_py())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None


def _named(kind: str, semantic: str, parameters: dict[str, str] | None = None) -> Field:
    return {"type": kind, "name": semantic, "version": 1, **({"parameters": parameters} if parameters else {})}


def _with_nulls_of(array: Any, made: Any) -> Any:
    return pc.if_else(array.is_valid(), made, pa.scalar(None, made.type)) if array.null_count else made
