"""Values in schema changes as ClickHouse SQL: constants of new columns, shortened text, and conversions between types."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import pyarrow as pa

from headrace.model.alter_effects import Truncated
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.scalar_values import literal
from headrace.sinks.clickhouse.types.literals import constant_sql
from headrace.sinks.clickhouse.types.numeric import INTEGER_TYPES
from headrace.sinks.clickhouse.types.type_mapping import storage_type
from headrace.sinks.clickhouse.types.type_names import parse_stored_type

_BY_NUMBER: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_MOMENTS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_SPELLED: Final = _MOMENTS | {Kind.DATE, Kind.BIT, Kind.YEAR, Kind.FLOAT32, Kind.FLOAT64, Kind.UUID, Kind.INET4}
_FORMED: Final = frozenset(
    {"Array", "JSON", "FixedString", "Point", "Ring", "LineString", "MultiPoint", "Polygon", "MultiLineString", "MultiPolygon"}
)
_PLAIN: Final = frozenset({*INTEGER_TYPES, Kind.STRING, Kind.ENUM, Kind.SET, Kind.YEAR, Kind.BIT})
"""Kinds whose constants have the same meaning in every type."""
_NUMBER: Final = re.compile(r"(U?)(Int|Float)(\d+)")
_PRECISE: Final = re.compile(r"(Decimal|DateTime64|Time64)\((\d+)(?:, (\d+))?")
_MEMBER: Final = re.compile(r"'((?:[^'\\]|\\.)*)' = (-?\d+)")


def constant(schema: TableSchema, column: Column, stored: str, value: object) -> str | None:
    """Return a value as a constant of the stored type; empty where the type's default shows it; None where it cannot be expressed."""
    if value is None:
        return "" if is_nullable(stored) or (column.kind is Kind.VECTOR and stored.startswith("Array(")) else None
    if stored != storage_type(schema, column) or column.kind is Kind.TIME:
        return constant_sql(column, stored, value)
    if column.kind in _PLAIN:
        return literal(column, value)
    if column.kind is Kind.DECIMAL:
        return f"CAST('{Decimal(str(value)):f}', {quote_text(stored)})"
    if column.kind in _BY_NUMBER:
        integer = pa.int32() if column.kind is Kind.DATE else pa.int64()
        value = pa.array([value], integer).view(column.arrow_type)[0]
    return f"CAST({literal(column, value)}, {quote_text(stored)})"


def shortened(text: str, cut: Truncated) -> str:
    """Return an expression that shortens text as the source did."""
    whole = text if cut.length is None else f"substringUTF8({text}, 1, {cut.length})"
    return f"trimRight({whole}, ' ')" if cut.stripped else whole


def is_nullable(stored: str) -> bool:
    return stored.startswith(("Nullable(", "LowCardinality(Nullable("))


def converts_in_place(old: str, new: str) -> bool:
    """Whether ALTER converts a column without failing at values of replaced images."""
    bare_old, bare_new = _bare(old), _bare(new)
    if bare_old.startswith("Enum") and bare_new.startswith("Enum"):
        return dict(_MEMBER.findall(bare_old)).items() <= dict(_MEMBER.findall(bare_new)).items()
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
        return column.kind in _SPELLED or (column.kind is Kind.DECIMAL and column.scale > 0)
    return plain in _FORMED or (plain == "Int64" and column.kind in _MOMENTS)


def holds_all(old: str, new: str) -> bool:
    """Whether a type can store every value of another type."""
    if is_nullable(old) and not is_nullable(new):
        return False
    bare_old, bare_new = _bare(old), _bare(new)
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


def _bare(stored: str) -> str:
    for wrapper in ("LowCardinality(", "Nullable("):
        if stored.startswith(wrapper):
            stored = stored[len(wrapper) : -1]
    return stored
