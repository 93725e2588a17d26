"""Encodes clustering keys, and the bounds of ranges, as bytes that sort like the source.

A compiled loop handles native types. Decimals and frozen values are rare as clustering columns; Python encodes each distinct one of a block
(`order_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_vector
from headrace.cql.tables import CqlColumn
from headrace.cql.types import CqlType, unsupported_type
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.cell_kernels import NO_ERROR
from headrace.sinks.clickhouse.cells.order_kernels import FLOAT, LONG, RUN, SIGNED, TIME, UNSIGNED, UUIDS, put_order
from headrace.sinks.clickhouse.cells.types import WIDTHS

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow
_SORTS: Final = {
    "ascii": RUN,
    "bigint": SIGNED,
    "blob": RUN,
    "boolean": UNSIGNED,
    "date": UNSIGNED,
    "double": FLOAT,
    "float": FLOAT,
    "inet": RUN,
    "int": SIGNED,
    "smallint": SIGNED,
    "text": RUN,
    "time": UNSIGNED,
    "timestamp": SIGNED,
    "timeuuid": TIME,
    "tinyint": SIGNED,
    "uuid": UUIDS,
    "varint": LONG,
}
_INVERTED: Final = bytes(255 - byte for byte in range(256))


def order_column(column: CqlColumn, cells: Cells) -> Array:
    """Return a clustering column's values as sortable bytes; a missing value gives no bytes."""
    if column.type.name not in _SORTS:
        return _by_distinct(column, cells)
    out = np.empty(int(np.maximum(cells.sizes, 0).sum()) * 2 + len(cells) * 32 + 8, np.uint8)
    offsets = np.empty(len(cells) + 1, np.int32)
    width = WIDTHS.get(column.type.name, 0)
    wrong = put_order(*cells, _SORTS[column.type.name], width, column.descending, out, offsets)
    if wrong != NO_ERROR:
        raise damaged_key(column, f"a value has {int(cells.sizes[wrong])} bytes instead of {width}")
    return binary_array(out, offsets)


def order_keys(columns: Sequence[CqlColumn], read: Callable[[str], Cells]) -> tuple[list[Array], Array]:
    """Return each clustering column, and all of them joined."""
    parts = [order_column(column, read(column.name)) for column in columns]
    return parts, parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def range_keys(starts: Array, after_start: Array, ends: Array, after_end: Array) -> Array:
    """Return the key of each range: the size of the first bound, the first bound, the second bound.

    A range contains the keys from its first bound up to before its second one; a bound after all keys of its prefix ends in 255.
    """
    first, second = _bound(starts, after_start), _bound(ends, after_end)
    sizes = pc.binary_length(first).to_numpy().astype(">u4")
    prefix = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(sizes), [None, pa.py_buffer(sizes.tobytes())]).cast(pa.binary())
    return pc.binary_join_element_wise(prefix, first, second, b"")


def _bound(keys: Array, after: Array) -> Array:
    return pc.binary_join_element_wise(keys, pc.if_else(after, pa.scalar(b"\xff"), pa.scalar(b"")), b"")


def binary_array(out: np.ndarray[Any, np.dtype[np.uint8]], offsets: np.ndarray[Any, np.dtype[np.int32]]) -> Array:
    """Return an Arrow array without nulls over a loop's output."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(out[: int(offsets[-1])])])


def damaged_key(column: CqlColumn, why: str) -> DefiniteError:
    return DefiniteError(
        f"{why}: it is no {column.type}",
        place=f"column {column.name}",
        hint="if the table was altered just now, restart to read its new definition; else report this",
    )


def _by_distinct(column: CqlColumn, cells: Cells) -> Array:
    encoded = cells.binary().dictionary_encode()
    made = [_order_of_value(column, raw) for raw in encoded.dictionary.to_pylist()]
    taken = pa.array(made, pa.binary()).take(encoded.indices)
    return pc.fill_null(taken, b"")


def _order_of_value(column: CqlColumn, raw: bytes) -> bytes:
    try:
        found = order_of(column.type, raw)
    except MalformedValue as damage:
        raise damaged_key(column, damage.reason) from damage
    except (IndexError, ValueError) as error:
        raise damaged_key(column, str(error)) from error
    return found.translate(_INVERTED) if column.descending else found


def order_of(kind: CqlType, raw: bytes | None) -> bytes:
    """Return one value as sortable bytes; a missing value sorts first."""
    if raw is None:
        return b"\x01"
    if kind.name in _SORTS:
        return order_column(CqlColumn("", kind), Cells.of(pa.array([raw], pa.binary())))[0].as_py()  # type: ignore[no-any-return]
    if not raw:
        return b"\x01"
    match kind.name:
        case "decimal":
            return b"\x02" + _decimal_order(raw)
        case "tuple" | "udt":
            return b"\x02" + b"".join(order_of(arg, part) for arg, part in zip(kind.args, _fields(raw, len(kind.args)), strict=True))
        case "vector":
            parts = split_vector(Cells.of(pa.array([raw], pa.binary())), kind).parts[0].binary().to_pylist()
            return b"\x02" + b"".join(order_of(kind.args[0], part) for part in parts)
        case "map":
            parts = _elements(raw, 2)
            kinds = (kind.args * len(parts))[: len(parts)]
            return b"\x02" + b"".join(order_of(one, part) for one, part in zip(kinds, parts, strict=True)) + b"\x00"
        case "list" | "set":
            return b"\x02" + b"".join(order_of(kind.args[0], part) for part in _elements(raw, 1)) + b"\x00"
        case _:
            raise unsupported_type(kind)


def _decimal_order(raw: bytes) -> bytes:
    """Encode sign, magnitude and digits; trailing zeros do not count."""
    scale, unscaled = int.from_bytes(raw[:4], "big", signed=True), int.from_bytes(raw[4:], "big", signed=True)
    if unscaled == 0:
        return b"\x02"
    digits = str(abs(unscaled)).rstrip("0")
    exponent = len(str(abs(unscaled))) - scale + (1 << 40)
    body = exponent.to_bytes(8, "big") + digits.encode() + b"\x00"
    return b"\x03" + body if unscaled > 0 else b"\x01" + body.translate(_INVERTED)


def _fields(raw: bytes, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big", signed=True)
        found.append(None if size < 0 else raw[at + 4 : at + 4 + size])
        at += 4 + max(size, 0)
    return found + [None] * (count - len(found))


def _elements(raw: bytes, parts: int) -> list[bytes | None]:
    return _fields(raw[4:], int.from_bytes(raw[:4], "big") * parts)
