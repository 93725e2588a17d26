"""Decoded Arrow arrays in the shape of ClickHouse's types: only scalars are null, and only where the type allows it.

A missing collection becomes an empty one, a missing tuple or user type one with missing fields. An element that is CQL's *empty* value
where the type has no NULL is reported as damage, not stored as zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, from_cells
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.types import field_name

Array = Any  # pa.Array[Any], which pyarrow's stubs cannot narrow


def typed_array(kind: CqlType, cells: Cells, *, nullable: bool = True) -> Array:
    """Return serialised values in the shape of `value_type`, or of `nullable_type`. Raises `MalformedValue`."""
    return _to_clickhouse_nulls(kind, from_cells(kind, cells), nullable=nullable)


def _to_clickhouse_nulls(kind: CqlType, array: Array, *, nullable: bool) -> Array:
    match kind.name:
        case "list" | "set" | "vector":
            values = _to_clickhouse_nulls(kind.args[0], array.values, nullable=False)
            made = pa.list_(pa.field("item", values.type, nullable=False))
            return pa.Array.from_buffers(made, len(array), [None, array.buffers()[1]], children=[values])
        case "map":
            keys, items = (
                _to_clickhouse_nulls(kind.args[0], array.keys, nullable=False),
                _to_clickhouse_nulls(kind.args[1], array.items, nullable=False),
            )
            return map_array(np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1], keys, items)
        case "tuple" | "udt":
            parts = [_to_clickhouse_nulls(arg, array.field(place), nullable=True) for place, arg in enumerate(kind.args)]
            return struct_array(parts, [field_name(place) for place in range(len(parts))] if kind.name == "udt" else None)
        case "duration":
            return struct_array([array.field(place) for place in range(3)], [field.name for field in array.type])
        case _:
            if array.null_count and not nullable:
                raise MalformedValue(
                    int(np.flatnonzero(np.asarray(array.is_null()))[0]), "it holds an empty value, for which ClickHouse has none"
                )
            return array


def struct_array(parts: list[Array], names: list[str] | None = None) -> Array:
    """Return a struct array without nulls."""
    named = names or [str(place + 1) for place in range(len(parts))]
    kind = pa.struct([pa.field(name, part.type) for name, part in zip(named, parts, strict=True)])
    return pa.Array.from_buffers(kind, len(parts[0]), [None], children=parts)


def map_array(rows: np.ndarray[Any, np.dtype[np.int32]], keys: Array, values: Array) -> Array:
    """Return a map array without nulls; row i has the entries rows[i] to rows[i + 1]."""
    kind: Any = pa.map_(keys.type, values.type)
    entries = pa.Array.from_buffers(pa.struct([kind.key_field, kind.item_field]), len(keys), [None], children=[keys, values])
    return pa.Array.from_buffers(kind, len(rows) - 1, [None, pa.py_buffer(rows)], children=[entries])
