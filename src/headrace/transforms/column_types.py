"""Conversion between source columns and DuckDB types.

Invariant: DuckDB receives the source's exact value, and a column receives the expression's exact value. A kind that DuckDB would alter is
passed in another exact form, or rejected; so is a result type that no column can hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, assert_never

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.column_types import COLUMN_TYPES, FRACTIONAL_FORMS, ValueForm
from headrace.model.schema import Column, Kind
from headrace.model.text_values import fixed_bytes_printer

_MOST_DIGITS: Final = 38
_KINDS: Final = {described.duckdb: kind for kind, described in COLUMN_TYPES.items() if described.duckdb}
_MICROSECOND_DIGITS: Final = 6
UTF8: Final = "utf8mb4"


def engine_form(column: Column) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return the Arrow type of a column for DuckDB, and what brings its values into it; `DefiniteError` if no type of DuckDB holds it."""
    match column.form:
        case ValueForm.DECIMAL if column.precision > _MOST_DIGITS:
            raise _unsupported(column, f"has {column.precision} digits, and expressions reckon with {_MOST_DIGITS}")
        case ValueForm.FIXED_BYTES if not column.type.printed_alike:
            raise _unsupported(column, "has a type that expressions do not know")
        case ValueForm.TIME:
            # Hours beyond a day, and below zero, are an interval.
            return pa.duration("us"), lambda array: array.view(pa.duration("us"))
        case ValueForm.FIXED_BYTES:
            return pa.string(), fixed_bytes_printer(column)
        case ValueForm.MEMBERS:
            return pa.string(), lambda array: array.cast(pa.string())
        case (
            ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.DATE | ValueForm.TIMESTAMP
        ):
            return column.arrow_type, lambda array: array
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return column.arrow_type, lambda array: array
        case unknown:
            assert_never(unknown)


def column_of(name: str, kind: str, values: pa.DataType, *, nullable: bool) -> Column:
    """Return the column for an expression's result type; raise `DefiniteError` (without a location) if there is none."""
    if kind in _KINDS:
        made = Column(name, _KINDS[kind], nullable, source_type=COLUMN_TYPES[_KINDS[kind]].sql)
        precision = _MICROSECOND_DIGITS if made.form in FRACTIONAL_FORMS else 0
        return replace(made, precision=precision, charset=UTF8 if made.form is ValueForm.TEXT else "")
    if kind == "BOOLEAN":
        # A number, as the source's own truth values are.
        return Column(name, Kind.INT8, nullable, source_type="tinyint(1)")
    if kind.startswith("DECIMAL("):
        spelled = f"decimal({values.precision},{values.scale})"
        return Column(name, Kind.DECIMAL, nullable, values.precision, values.scale, source_type=spelled)
    if kind == '"NULL"':
        raise DefiniteError("it is always NULL, and has no type", hint="give it one: CAST(NULL AS VARCHAR)")
    cast = "DECIMAL(38,0), or BIGINT" if kind in ("HUGEINT", "UHUGEINT") else "VARCHAR, or another type that a column can have"
    raise DefiniteError(f"its type is {kind}, which no column has", hint=f"CAST it AS {cast}")


def from_engine(column: Column, array: Any) -> Any:
    """The engine's values in the column's own type."""
    return array if array.type == column.arrow_type else array.cast(column.arrow_type)


def _unsupported(column: Column, why: str) -> DefiniteError:
    return DefiniteError(f"column {column.name} {why}", hint="leave it out of the expression; it passes as it is")
