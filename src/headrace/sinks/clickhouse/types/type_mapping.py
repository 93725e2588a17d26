"""Chooses the ClickHouse type of a source column in created tables.

Invariant: the type holds every value of the column exactly. The years of Date32 and DateTime64 depend on the server's version, so they are
measured there, and the writer checks every block.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.options import (
    BitAs,
    DatetimeAs,
    DecimalAs,
    EnumAs,
    GeometryAs,
    JsonAs,
    SetAs,
    TableOptions,
    TimeAs,
    TinyintAs,
    UnsignedAs,
    YearAs,
)
from headrace.sinks.clickhouse.types.codec_registry import type_mismatch
from headrace.sinks.clickhouse.types.numeric import MOST_DIGITS, decimal_arrow
from headrace.sinks.clickhouse.types.type_names import ClickHouseType, StoredType, parse_stored_type, parse_type

SIGN, VERSION, DELETED = "_sign", "_version", "_deleted"
OCCURRENCE, ROW = "_occurrence", "_row"
"""Metadata columns of tables without a key: which of several equal rows a row is, and a hash of the row."""
_GEO: Final = {
    "point": "Point",
    "linestring": "LineString",
    "polygon": "Polygon",
    "multipoint": "MultiPoint",
    "multilinestring": "MultiLineString",
    "multipolygon": "MultiPolygon",
}
_UNSIGNED: Final = {UnsignedAs.INT64: "Int64", UnsignedAs.DECIMAL: "Decimal(20, 0)", UnsignedAs.STRING: "String"}
_SETS: Final = {SetAs.LOW_CARDINALITY: "LowCardinality(String)", SetAs.ARRAY: "Array(LowCardinality(String))", SetAs.STRING: "String"}
_MOST_FRACTION = 6
_MOST_ENUM8 = 127
_TINYINT1 = re.compile(r"tinyint\(1\)|bool(?:ean)?", re.IGNORECASE)
_NOT_NULL = re.compile(r"\s+NOT\s+NULL\s*$", re.IGNORECASE)
_NEVER_NULLABLE: Final = frozenset(
    {"Array", "Map", "Tuple", "Geometry", "LineString", "Ring", "MultiPoint", "Polygon", "MultiLineString", "MultiPolygon"}
)
_DEFAULTS = TableOptions()


def storage_type(schema: TableSchema, column: Column, options: TableOptions = _DEFAULTS) -> str:
    """Return the column's type in a created table, spelled like the server does."""
    given = dict(options.types)
    explicit = given.get(column.name) or given.get(f"kind:{column.kind.value}")
    if explicit:
        return _explicit_type(schema, column, explicit)
    kind = _wrapped(schema, column, parse_stored_type(_chosen_type(schema, column, options)))
    low = kind.plain.name == "String" and any(fnmatch.fnmatchcase(column.name, glob) for glob in options.low_cardinality)
    return StoredType(kind.plain, kind.nullable, low or kind.low_cardinality).sql_name


def enum_type(members: tuple[str, ...], numbers: Mapping[str, int] | None = None) -> str:
    """Return an Enum of the source's members and numbers, with 0 for the empty text that MySQL stores for invalid values.

    Members in `numbers` keep their number, and stay even if the source dropped them.
    """
    known = {"": 0} if numbers is None else dict(numbers)
    taken = set(known.values())
    for number, name in enumerate(members, 1):
        if name not in known:
            known[name] = number if number not in taken else max(taken) + 1
            taken.add(known[name])
    family = "Enum8" if max(taken) <= _MOST_ENUM8 else "Enum16"
    listed = sorted(known.items(), key=lambda member: member[1])
    return f"{family}({', '.join(f'{quote_text(name)} = {number}' for name, number in listed)})"


def merge_enum_types(old: str, new: str) -> str:
    """Return an Enum with the members of both types; old members keep their numbers, as ClickHouse demands. Empty if one is not an Enum."""
    before, after = parse_stored_type(old), parse_stored_type(new)
    if not (before.plain.name.startswith("Enum") and after.plain.name.startswith("Enum")):
        return ""
    members = sorted(after.plain.members.items(), key=lambda member: member[1])
    grown = parse_type(enum_type(tuple(name for name, _ in members if name), before.plain.members))
    return replace(after, plain=grown).sql_name


def _explicit_type(schema: TableSchema, column: Column, given: str) -> str:
    """Return the type that the user chose."""
    bare = _NOT_NULL.sub("", given)
    try:
        stored = parse_stored_type(bare)
        decimal = decimal_arrow(stored.plain)
        if decimal is not None:
            # Normalise aliases such as Decimal64(3).
            stored = replace(stored, plain=ClickHouseType("Decimal", (decimal.precision, decimal.scale)))
    except DefiniteError as error:
        raise _refused(schema, column, error.message, error.hint) from error
    kind = (stored if bare != given else _wrapped(schema, column, stored)).sql_name
    why = type_mismatch(column, kind)
    if why:
        raise _refused(schema, column, why, "choose another type for it in the settings (see docs/types.md)")
    return kind


def _wrapped(schema: TableSchema, column: Column, kind: StoredType) -> StoredType:
    """Make the type Nullable if the column is; key columns have no NULLs, and an Array cannot be Nullable."""
    nullable = column.nullable and column.name not in schema.row_key and kind.plain.name not in _NEVER_NULLABLE
    return StoredType(kind.plain, kind.nullable or nullable, kind.low_cardinality)


def _chosen_type(schema: TableSchema, column: Column, options: TableOptions) -> str:
    default = column.type.clickhouse
    match column.form:
        case ValueForm.INTEGER:
            unsigned64 = _UNSIGNED.get(options.uint64) if column.type.bits == 64 and not column.type.signed else None
            return "Bool" if options.tinyint1 is TinyintAs.BOOL and _is_tinyint1(column) else unsigned64 or default
        case ValueForm.YEAR:
            return "String" if options.year is YearAs.STRING else default
        case ValueForm.BITS if options.bit is BitAs.STRING:
            return "String"
        case ValueForm.BITS:
            return "Bool" if options.bit is BitAs.BOOL and column.precision == 1 else default
        case ValueForm.DECIMAL:
            if not (1 <= column.precision <= MOST_DIGITS and 0 <= column.scale <= column.precision):
                raise _refused(
                    schema, column, f"decimal({column.precision},{column.scale}) is outside decimal({MOST_DIGITS},{MOST_DIGITS})"
                )
            return "String" if options.decimal is DecimalAs.STRING else f"Decimal({column.precision}, {column.scale})"
        case ValueForm.TIMESTAMP:
            _check_fraction(schema, column)
            digits = 6 if options.datetime is DatetimeAs.MICRO else column.precision
            kind = ClickHouseType("DateTime64", (digits, options.zone if column.type.zoned else "UTC"))
            return "String" if options.datetime is DatetimeAs.STRING else kind.sql_name
        case ValueForm.TIME:
            _check_fraction(schema, column)
            times = {TimeAs.INT64: "Int64", TimeAs.STRING: "String"}
            return times.get(options.time, f"Time64({column.precision})")
        case ValueForm.MEMBERS if column.type.multiple:
            return _SETS[options.set]
        case ValueForm.MEMBERS:
            enums = {EnumAs.LOW_CARDINALITY: "LowCardinality(String)", EnumAs.STRING: "String"}
            return enums.get(options.enum) or enum_type(column.members)
        case ValueForm.GEOMETRY:
            words = _GEO if options.geometry is GeometryAs.GEO else {}
            return words.get(column.source_type.lower().partition(" ")[0], default)
        case ValueForm.JSON:
            return "JSON" if options.json is JsonAs.JSON else default
        case ValueForm.FLOAT | ValueForm.TEXT | ValueForm.BYTES | ValueForm.DATE | ValueForm.VECTOR | ValueForm.FIXED_BYTES:
            return default
        case unknown:
            assert_never(unknown)


def _is_tinyint1(column: Column) -> bool:
    return column.type.bits == 8 and column.type.signed and _TINYINT1.match(column.source_type) is not None


def _check_fraction(schema: TableSchema, column: Column) -> None:
    if not 0 <= column.precision <= _MOST_FRACTION:
        raise _refused(schema, column, f"{column.precision} fractional digits are outside 0..{_MOST_FRACTION}")


def _refused(schema: TableSchema, column: Column, why: str, hint: str = "") -> DefiniteError:
    return DefiniteError(
        f"column {column.name} cannot be stored in ClickHouse: {why}",
        place=f"table {schema.name}, column {column.name} {column.source_type}".rstrip(),
        hint=hint or "change the column's type, or leave the table out with --exclude",
    )
