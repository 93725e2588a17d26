"""Selects the codec of a source column and a ClickHouse type.

A pair is accepted if the type can store values of the kind exactly. A value that it cannot hold halts the pipe, with row and column, before
any part of its block is written. A pair that would change values is rejected here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, assert_never

import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sinks.clickhouse.server.server_limits import ANY_SERVER, ServerLimits
from headrace.sinks.clickhouse.types.codec import Check, ColumnCodec
from headrace.sinks.clickhouse.types.numeric import decimal_codec, float_codec, integer_codec
from headrace.sinks.clickhouse.types.spatial import geometry_codec
from headrace.sinks.clickhouse.types.temporal import date_codec, time_codec, timestamp_codec
from headrace.sinks.clickhouse.types.text import (
    bytes_codec,
    canonical_text_codec,
    enum_or_set_codec,
    fixed_bytes_codec,
    text_codec,
    vector_codec,
)
from headrace.sinks.clickhouse.types.type_names import StoredType, parse_stored_type


def codec_for(column: Column, stored: str, limits: ServerLimits) -> ColumnCodec:
    """Return the codec of a column for the type `stored`; raise `DefiniteError` if there is none."""
    kept = parse_stored_type(stored)
    found = _own_codec(column, kept, limits) or canonical_text_codec(column, kept)
    if found is None or isinstance(found, str):
        why = f": {found}" if found else ""
        raise DefiniteError(
            f"{column.source_type or column.kind.value} does not fit a column of type {stored}{why}",
            place=f"column {column.name}",
            hint="see docs/types.md for the types that hold it",
        )
    return _with_nulls(column, kept, found)


def _own_codec(column: Column, stored: StoredType, limits: ServerLimits) -> ColumnCodec | str | None:
    """Return the codec of the column's form; a text tells why the type is rejected, None that the form has no codec for it."""
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return integer_codec(column, stored)
        case ValueForm.FLOAT:
            return float_codec(column, stored)
        case ValueForm.DECIMAL:
            return decimal_codec(column, stored)
        case ValueForm.TEXT | ValueForm.JSON:
            return text_codec(column, stored)
        case ValueForm.MEMBERS:
            return enum_or_set_codec(column, stored)
        case ValueForm.BYTES:
            return bytes_codec(column, stored)
        case ValueForm.FIXED_BYTES:
            return fixed_bytes_codec(column, stored)
        case ValueForm.GEOMETRY:
            return geometry_codec(column, stored)
        case ValueForm.VECTOR:
            return vector_codec(column, stored)
        case ValueForm.DATE:
            return date_codec(stored, limits)
        case ValueForm.TIMESTAMP:
            return timestamp_codec(column, stored, limits)
        case ValueForm.TIME:
            return time_codec(column, stored, limits)
        case unknown:
            assert_never(unknown)


def type_mismatch(column: Column, stored: str) -> str:
    """Return why the column cannot be stored in the type `stored`; empty if it can."""
    try:
        codec_for(column, stored, ANY_SERVER)
    except DefiniteError as error:
        return error.message
    return ""


def _with_nulls(column: Column, stored: StoredType, found: ColumnCodec) -> ColumnCodec:
    if stored.nullable or found.null_as_value:
        return replace(found, nullable=stored.nullable)
    caution = found.caution
    if column.nullable and "NULL" not in caution:
        caution = f"NULL, and {caution}" if caution else "NULL"
    return replace(found, checks=(_NO_NULL, *found.checks), caution=caution)


def _nulls(array: Any) -> Any | None:
    dictionary = getattr(array, "dictionary", None)
    # A dictionary array may have a NULL in its dictionary.
    if not array.null_count and (dictionary is None or not dictionary.null_count):
        return None
    bad = pc.is_null(array if dictionary is None else array.cast(array.type.value_type))
    return bad if pc.any(bad).as_py() else None


_NO_NULL: Final = Check("is NULL, but the column has no NULLs", _nulls)
