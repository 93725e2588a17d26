"""Columns that ClickHouse takes and gives in another Arrow type than the one in which they travel.

Invariant: each pair of functions here is exact in both directions. Addresses of IPv4 are numbers there; a UUID comes back as Arrow's
extension type; an Array cannot be NULL, so a vector that is NULL is stored as the empty array, which no vector is, and read back as NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import Column, Kind

Recode = Callable[[Any], Any]


def wire_type(column: Column) -> pa.DataType:
    """The Arrow type in which ClickHouse takes the column."""
    return pa.uint32() if column.kind is Kind.INET4 else column.arrow_type


def to_wire(column: Column) -> Recode | None:
    """What makes an array of `wire_type` from one of the column's own type; None if nothing is to be done."""
    match column.kind:
        case Kind.ENUM | Kind.SET:
            return _distinct_dictionary
        case Kind.INET4:
            return _numbers
        case Kind.VECTOR:
            return _without_nulls
    return None


def from_wire(column: Column, values: Any) -> Any:
    """ClickHouse's answer for one of the kinds here, in the column's own type."""
    match column.kind:
        case Kind.INET4:
            return pa.chunked_array([_addresses(chunk.cast(pa.uint32())) for chunk in values.chunks], column.arrow_type)
        case Kind.UUID:
            chunks = [chunk.storage if isinstance(chunk.type, pa.BaseExtensionType) else chunk for chunk in values.chunks]
            return pa.chunked_array(chunks, column.arrow_type)
        case Kind.VECTOR:
            found = values.cast(column.arrow_type)
            return pa.chunked_array([_with_nulls(chunk) for chunk in found.chunks], column.arrow_type) if column.nullable else found
    return values.cast(column.arrow_type)


def _distinct_dictionary(array: Any) -> Any:
    """The same strings over a dictionary without NULLs and repetitions, which the server refuses."""
    dictionary = array.dictionary
    if dictionary.null_count == 0 and len(pc.unique(dictionary)) == len(dictionary):
        return array
    return array.cast(array.type.value_type).dictionary_encode()


def _numbers(array: Any) -> Any:
    """Addresses of four bytes, most significant first, as numbers."""
    data = np.frombuffer(array.buffers()[1], dtype=">u4", count=len(array), offset=4 * array.offset)
    return pa.array(data.astype(np.uint32), mask=_nulls(array))


def _addresses(array: Any) -> Any:
    data = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(">u4")
    plain = pa.Array.from_buffers(pa.binary(4), len(array), [None, pa.py_buffer(data.tobytes())])
    return pc.if_else(pc.is_valid(array), plain, pa.scalar(None, pa.binary(4)))


def _without_nulls(array: Any) -> Any:
    """The empty list for NULL; a NULL has no values of its own, so its range is empty already."""
    return pa.ListArray.from_arrays(array.offsets, array.values, type=array.type)


def _with_nulls(array: Any) -> Any:
    empty = np.asarray(pc.equal(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), dtype=bool)
    return pa.ListArray.from_arrays(array.offsets, array.values, type=array.type, mask=pa.array(empty)) if empty.any() else array


def _nulls(array: Any) -> Any:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=bool) if array.null_count else None
