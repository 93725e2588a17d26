"""From what a column holds to the ClickHouse type that holds it.

Invariant: the storage type holds every value of the `Kind` exactly. Where the server decides what it holds (the years of Date32 and
DateTime64 have grown with its versions) the limits are asked from it, and the writer compares every block with them.
"""

from __future__ import annotations

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableSchema

SIGN, VERSION, DELETED = "_sign", "_version", "_deleted"
OCCURRENCE, ROW = "_occurrence", "_row"
"""Of tables without a key: which of equal rows a row is, and a hash of the row."""
_PLAIN = {
    Kind.INT8: "Int8",
    Kind.INT16: "Int16",
    Kind.INT32: "Int32",
    Kind.INT64: "Int64",
    Kind.UINT8: "UInt8",
    Kind.UINT16: "UInt16",
    Kind.UINT32: "UInt32",
    Kind.UINT64: "UInt64",
    Kind.FLOAT32: "Float32",
    Kind.FLOAT64: "Float64",
    Kind.STRING: "String",
    Kind.BYTES: "String",
    Kind.DATE: "Date32",
    Kind.YEAR: "UInt16",
    Kind.BIT: "UInt64",
    Kind.JSON: "String",
    Kind.GEOMETRY: "String",
    Kind.VECTOR: "Array(Float32)",
    Kind.UUID: "UUID",
    Kind.INET4: "IPv4",
    Kind.INET6: "IPv6",
}
_NAMED = (Kind.ENUM, Kind.SET)
_MOST_DIGITS, _MOST_SCALE, _MOST_FRACTION = 65, 30, 6


def storage_type(schema: TableSchema, column: Column) -> str:
    """The column's type in the target table, spelled as the server spells it."""
    nullable = is_stored_nullable(schema, column)
    if column.kind in _NAMED:
        return "LowCardinality(Nullable(String))" if nullable else "LowCardinality(String)"
    plain = _plain_type(schema, column)
    return f"Nullable({plain})" if nullable else plain


def is_stored_nullable(schema: TableSchema, column: Column) -> bool:
    """A sort key has no NULLs, in the source as in the target; an Array cannot be Nullable (see `carriers`)."""
    return column.nullable and column.kind is not Kind.VECTOR and column.name not in schema.row_key


def _plain_type(schema: TableSchema, column: Column) -> str:
    match column.kind:
        case Kind.DECIMAL:
            _check_decimal(schema, column)
            return f"Decimal({column.precision}, {column.scale})"
        case Kind.DATETIME | Kind.TIMESTAMP:
            _check_fraction(schema, column)
            return f"DateTime64({column.precision}, 'UTC')"
        case Kind.TIME:
            _check_fraction(schema, column)
            return f"Time64({column.precision})"
    return _PLAIN[column.kind]


def _check_decimal(schema: TableSchema, column: Column) -> None:
    if not (1 <= column.precision <= _MOST_DIGITS and 0 <= column.scale <= min(column.precision, _MOST_SCALE)):
        raise _refused(schema, column, f"decimal({column.precision},{column.scale}) is outside decimal({_MOST_DIGITS},{_MOST_SCALE})")


def _check_fraction(schema: TableSchema, column: Column) -> None:
    if not 0 <= column.precision <= _MOST_FRACTION:
        raise _refused(schema, column, f"{column.precision} fractional digits are outside 0..{_MOST_FRACTION}")


def _refused(schema: TableSchema, column: Column, why: str) -> DefiniteError:
    return DefiniteError(
        f"column {column.name} cannot be stored in ClickHouse: {why}",
        place=f"table {schema.name}, column {column.name} {column.source_type}".rstrip(),
        hint="change the column's type, or leave the table out with --exclude",
    )
