"""Values in schema changes as ClickHouse SQL: constants of new columns, shortened text, and conversions between types."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, assert_never

from headrace.model.alter_effects import Truncated
from headrace.model.column_types import FRACTIONAL_FORMS, ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.types.scalar_values import constant_sql, from_ticks, literal
from headrace.sinks.clickhouse.types.type_mapping import storage_type
from headrace.sinks.clickhouse.types.type_names import is_nullable, parse_stored_type

_SPELLED: Final = FRACTIONAL_FORMS | {ValueForm.DATE, ValueForm.BITS, ValueForm.YEAR, ValueForm.FLOAT, ValueForm.FIXED_BYTES}
_FORMED: Final = frozenset(
    {"Array", "JSON", "FixedString", "Point", "Ring", "LineString", "MultiPoint", "Polygon", "MultiLineString", "MultiPolygon"}
)
_NUMBER: Final = re.compile(r"(U?)(Int|Float)(\d+)")
_PRECISE: Final = re.compile(r"(Decimal|DateTime64|Time64)\((\d+)(?:, (\d+))?")


def constant(schema: TableSchema, column: Column, stored: str, value: object) -> str | None:
    """Return a value as a constant of the stored type; empty where the type's default shows it; None where it cannot be expressed."""
    if value is None:
        return "" if is_nullable(stored) or (column.form is ValueForm.VECTOR and stored.startswith("Array(")) else None
    if stored != storage_type(schema, column) or column.form is ValueForm.TIME:
        return constant_sql(column, stored, value)
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.TEXT | ValueForm.MEMBERS:
            # Constants have the same meaning in every type.
            return literal(column, value)
        case ValueForm.DECIMAL:
            return f"CAST('{Decimal(str(value)):f}', {quote_text(stored)})"
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            return f"CAST({literal(column, from_ticks(column, [value])[0])}, {quote_text(stored)})"
        case ValueForm.FLOAT | ValueForm.JSON | ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return f"CAST({literal(column, value)}, {quote_text(stored)})"
        case unknown:
            assert_never(unknown)


def shortened(text: str, cut: Truncated) -> str:
    """Return an expression that shortens text as the source did."""
    whole = text if cut.length is None else f"substringUTF8({text}, 1, {cut.length})"
    return f"trimRight({whole}, ' ')" if cut.stripped else whole


def converts_in_place(old: str, new: str) -> bool:
    """Whether ALTER converts a column without failing at values of replaced images."""
    before, after = parse_stored_type(old).plain, parse_stored_type(new).plain
    if before.name.startswith("Enum") and after.name.startswith("Enum"):
        return before.members.items() <= after.members.items()
    return True


def converts_alike(before: Column, old: str, after: Column, new: str) -> bool:
    """Whether ClickHouse converts a stored value to what Headrace would store of the converted value.

    It does for numbers, dates and plain text. Values stored as text in the source's format, in arrays, shapes or documents, or as
    microseconds depend on the source's type.
    """
    same = (before.kind, before.precision, before.scale) == (after.kind, after.precision, after.scale)
    if same and parse_stored_type(old).plain == parse_stored_type(new).plain:
        return True
    return not (_is_spelled(before, old) or _is_spelled(after, new))


def _is_spelled(column: Column, stored: str) -> bool:
    plain = parse_stored_type(stored).plain.name
    if plain == "String":
        return column.form in _SPELLED or (column.form is ValueForm.DECIMAL and column.scale > 0)
    return plain in _FORMED or (plain == "Int64" and column.form in FRACTIONAL_FORMS)


def holds_all(old: str, new: str) -> bool:
    """Whether a type can store every value of another type."""
    if is_nullable(old) and not is_nullable(new):
        return False
    bare_old, bare_new = parse_stored_type(old).plain.sql_name, parse_stored_type(new).plain.sql_name
    numbers = _NUMBER.fullmatch(bare_old), _NUMBER.fullmatch(bare_new)
    if numbers[0] and numbers[1]:
        (sign, kind, bits), (new_sign, new_kind, new_bits) = numbers[0].groups(), numbers[1].groups()
        room = int(new_bits) - (1 if sign and not new_sign else 0)
        return kind == new_kind and not (new_sign and not sign) and room >= int(bits)
    precise = _PRECISE.match(bare_old), _PRECISE.match(bare_new)
    if precise[0] and precise[1]:
        (word, first, second), (new_word, new_first, new_second) = precise[0].groups(), precise[1].groups()
        scale, new_scale = int(second or 0), int(new_second or 0)
        return word == new_word and new_scale >= scale and int(new_first) - new_scale >= int(first) - scale
    return bare_new in (bare_old, "String")
