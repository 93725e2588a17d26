"""Conversion between source columns and DuckDB types.

Invariant: DuckDB receives the source's exact value, and a column receives the expression's exact value. A kind that DuckDB would alter is
passed in another exact form, or rejected; so is a result type that no column can hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind
from headrace.model.text_values import format_ipv4, format_uuids

INTEGER_KINDS: Final = frozenset(
    {Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64},
)
_MOST_DIGITS: Final = 38
_INTEGERS: Final = {
    "TINYINT": (Kind.INT8, "tinyint"),
    "SMALLINT": (Kind.INT16, "smallint"),
    "INTEGER": (Kind.INT32, "int"),
    "BIGINT": (Kind.INT64, "bigint"),
    "UTINYINT": (Kind.UINT8, "tinyint unsigned"),
    "USMALLINT": (Kind.UINT16, "smallint unsigned"),
    "UINTEGER": (Kind.UINT32, "int unsigned"),
    "UBIGINT": (Kind.UINT64, "bigint unsigned"),
    # A number as the source's own truth values are.
    "BOOLEAN": (Kind.INT8, "tinyint(1)"),
}
_OTHERS: Final = {
    "FLOAT": (Kind.FLOAT32, 0, "float"),
    "DOUBLE": (Kind.FLOAT64, 0, "double"),
    "VARCHAR": (Kind.STRING, 0, "varchar"),
    "BLOB": (Kind.BYTES, 0, "varbinary"),
    "DATE": (Kind.DATE, 0, "date"),
    "TIMESTAMP": (Kind.DATETIME, 6, "datetime(6)"),
    "TIMESTAMP WITH TIME ZONE": (Kind.TIMESTAMP, 6, "timestamp(6)"),
    "TIME": (Kind.TIME, 6, "time(6)"),
    "JSON": (Kind.JSON, 0, "json"),
}
UTF8: Final = "utf8mb4"


def engine_type(column: Column) -> pa.DataType:
    """The Arrow type in which a column goes in; `DefiniteError` if no type of the engine's holds it."""
    match column.kind:
        case Kind.DECIMAL if column.precision > _MOST_DIGITS:
            raise _unsupported(column, f"has {column.precision} digits, and expressions reckon with {_MOST_DIGITS}")
        case Kind.INET6:
            raise _unsupported(column, "has a type that expressions do not know")
        case Kind.TIME:
            # Hours beyond a day, and below zero, are an interval.
            return pa.duration("us")
        case Kind.UUID | Kind.INET4 | Kind.ENUM | Kind.SET:
            return pa.string()
        case Kind.INT8 | Kind.INT16 | Kind.INT32 | Kind.INT64 | Kind.UINT8 | Kind.UINT16 | Kind.UINT32 | Kind.UINT64 | Kind.YEAR | Kind.BIT:
            return column.arrow_type
        case Kind.FLOAT32 | Kind.FLOAT64 | Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return column.arrow_type
        case Kind.STRING | Kind.BYTES | Kind.JSON | Kind.GEOMETRY | Kind.VECTOR:
            return column.arrow_type
        case unknown:
            assert_never(unknown)


def to_engine(column: Column) -> Callable[[Any], Any]:
    """What brings a column's values into that type."""
    match column.kind:
        case Kind.TIME:
            return lambda array: array.view(pa.duration("us"))
        case Kind.UUID:
            return format_uuids
        case Kind.INET4:
            return format_ipv4
        case Kind.ENUM | Kind.SET:
            return lambda array: array.cast(pa.string())
    return lambda array: array


def column_of(name: str, kind: str, values: pa.DataType, *, nullable: bool) -> Column:
    """Return the column for an expression's result type; raise `DefiniteError` (without a location) if there is none."""
    if kind in _INTEGERS:
        found, spelled = _INTEGERS[kind]
        return Column(name, found, nullable, source_type=spelled)
    if kind.startswith("DECIMAL("):
        spelled = f"decimal({values.precision},{values.scale})"
        return Column(name, Kind.DECIMAL, nullable, values.precision, values.scale, source_type=spelled)
    if kind in _OTHERS:
        one, digits, spelled = _OTHERS[kind]
        return Column(name, one, nullable, digits, source_type=spelled, charset=UTF8 if one is Kind.STRING else "")
    if kind == '"NULL"':
        raise DefiniteError("it is always NULL, and has no type", hint="give it one: CAST(NULL AS VARCHAR)")
    cast = "DECIMAL(38,0), or BIGINT" if kind in ("HUGEINT", "UHUGEINT") else "VARCHAR, or another type that a column can have"
    raise DefiniteError(f"its type is {kind}, which no column has", hint=f"CAST it AS {cast}")


def from_engine(column: Column, array: Any) -> Any:
    """The engine's values in the column's own type."""
    wanted = column.arrow_type
    if array.type == wanted:
        return array
    return array.cast(wanted)


def _unsupported(column: Column, why: str) -> DefiniteError:
    return DefiniteError(f"column {column.name} {why}", hint="leave it out of the expression; it passes as it is")
