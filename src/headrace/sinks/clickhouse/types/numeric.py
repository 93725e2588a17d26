"""Codecs of integers, years and bits, decimals, and floats.

Invariant: see `codec`. A number may be stored in any numeric type that holds some of its values exactly; a value that does not fit is
rejected, never rounded or wrapped.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sinks.clickhouse.types.codec import Check, ColumnCodec, Recode, cast_to, check_range, compose
from headrace.sinks.clickhouse.types.type_names import ClickHouseType, StoredType

_NARROW: Final = {
    name: pa.type_for_alias(name.lower()) for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}
_WIDE: Final = ("Int128", "Int256", "UInt128", "UInt256")
_FLOATS: Final = {"Float32": pa.float32(), "Float64": pa.float64()}
_EXACT_TO: Final = {"Float32": 24, "Float64": 53}
_DECIMALS: Final = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
MOST_DIGITS: Final = 76


def integer_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For INT and its variants, YEAR, BIT."""
    name, back = stored.plain.name, column.arrow_type
    # The server fails at a value that does not fit.
    integer = f"{'' if column.type.signed else 'U'}Int{column.type.bits}"
    canonical = f"accurateCast({{}}, '{_wrapped(stored, integer)}')"
    if name in _NARROW:
        wire = _NARROW[name]
        caution = "" if _holds(column, name) else f"numbers that {name} cannot hold"
        return ColumnCodec(wire, None if wire.equals(back) else cast_to(wire), caution=caution)
    if name in _WIDE:
        # The server widens the value; it would silently wrap a negative number.
        negative = name.startswith("U") and column.type.signed
        checks = (check_range(back, 0, (1 << (column.type.bits - 1)) - 1, f"is below zero, which {name} cannot hold"),) if negative else ()
        caution = "numbers below zero" if negative else ""
        return ColumnCodec(back, checks=checks, read=canonical, canonical=canonical, comparable=True, caution=caution)
    if name == "Bool":
        checks = (check_range(back, 0, 1, "is neither 0 nor 1, which is all that Bool holds"),)
        as_number = "toUInt8({})"
        caution = "" if column.form is ValueForm.BITS and column.precision == 1 else "numbers other than 0 and 1"
        return ColumnCodec(
            pa.bool_(), cast_to(pa.bool_()), checks=checks, read=as_number, canonical=as_number, comparable=False, caution=caution
        )
    if name in _FLOATS:
        caution = "" if column.type.bits <= _EXACT_TO[name] else f"numbers beyond 2 to the {_EXACT_TO[name]}"
        return ColumnCodec(_FLOATS[name], cast_to(_FLOATS[name]), cast_to(back), canonical=canonical, comparable=False, caution=caution)
    decimal = decimal_arrow(stored.plain)
    if decimal is not None:
        digits = len(str(1 << column.type.bits))
        caution = "" if decimal.precision - decimal.scale >= digits else f"numbers that {stored.plain.sql_name} cannot hold"
        return ColumnCodec(
            decimal,
            compose(cast_to(pa.decimal128(20, 0)), cast_to(decimal)),
            compose(cast_to(decimal), cast_to(back)),
            canonical=canonical,
            comparable=False,
            caution=caution,
        )
    return None


def decimal_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For DECIMAL: in decimals, and in integers if the scale is 0."""
    name, mine = stored.plain.name, column.arrow_type
    decimal = decimal_arrow(stored.plain)
    if decimal is not None:
        whole = decimal.precision - decimal.scale
        fits = decimal.scale >= column.scale and whole >= column.precision - column.scale
        caution = "" if fits else f"numbers that {stored.plain.sql_name} cannot hold"
        return ColumnCodec(decimal, None if decimal.equals(mine) else cast_to(decimal), caution=caution)
    if name in _NARROW:
        largest = (1 << (int(name.lstrip("UInt")) - (not name.startswith("U")))) - 1
        fits = column.scale == 0 and not name.startswith("U") and 10**column.precision - 1 <= largest
        wire = _NARROW[name]
        widest = pa.uint64() if name.startswith("U") else pa.int64()
        back = compose(cast_to(wire), cast_to(widest), cast_to(pa.decimal128(20, 0)), cast_to(mine))
        canonical = f"CAST({{}} AS {_wrapped(stored, f'Decimal({column.precision}, {column.scale})')})"
        caution = "" if fits else f"numbers that {name} cannot hold"
        return ColumnCodec(wire, cast_to(wire), back, canonical=canonical, comparable=True, caution=caution)
    return None


def float_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For FLOAT and DOUBLE, bit for bit."""
    name = stored.plain.name
    if name not in _FLOATS:
        return None
    wire = _FLOATS[name]
    if wire.equals(column.arrow_type):
        return ColumnCodec(wire)
    if column.type.bits == 32:
        return ColumnCodec(wire, cast_to(wire), cast_to(pa.float32()), canonical="toFloat32({})")
    checks = (Check("is not a number that Float32 holds exactly", _not_single),)
    return ColumnCodec(
        wire, _narrow_float, cast_to(pa.float64()), checks=checks, canonical="toFloat64({})", caution="numbers that Float32 rounds"
    )


def decimal_arrow(plain: ClickHouseType) -> Any | None:
    """Return the Arrow type of a Decimal type; None for other types."""
    if plain.name == "Decimal":
        precision, scale = plain.number(0, 10), plain.number(1, 0)
    elif plain.name in _DECIMALS:
        precision, scale = _DECIMALS[plain.name], plain.number(0, 0)
    else:
        return None
    if not 1 <= precision <= MOST_DIGITS or not 0 <= scale <= precision:
        return None
    return pa.decimal256(precision, scale) if precision > 38 else pa.decimal128(precision, scale)


def _holds(column: Column, name: str) -> bool:
    bits, signed = column.type.bits, column.type.signed
    if column.form is ValueForm.BITS and column.precision:
        bits = column.precision
    width, unsigned = int(name.lstrip("UInt")), name.startswith("U")
    return width >= bits and not signed if unsigned else width > bits or (width == bits and signed)


def _wrapped(stored: StoredType, name: str) -> str:
    return f"Nullable({name})" if stored.nullable else name


_narrow_float: Recode = lambda array: pc.cast(array, pa.float32(), safe=False)  # noqa: E731


def _not_single(array: Any) -> Any | None:
    back = _narrow_float(array).cast(pa.float64())
    bad = pc.not_equal(array.view(pa.int64()), back.view(pa.int64()))
    return bad if pc.any(bad).as_py() else None
