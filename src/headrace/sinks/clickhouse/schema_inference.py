"""Infers a source schema from an existing target table, for changes that carry no types.

Invariant: every inferred column can be stored in the target column that it was inferred from. Where a type is ambiguous (a `String` may
hold bytes, a `UInt16` a year), the plainest kind is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.column_types import COLUMN_TYPES, ValueForm
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.clickhouse.tables.engine_parser import EngineParseError, parse_engine, single_column, split_key
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable, find_with_local_tables
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import target_name
from headrace.sinks.clickhouse.types.numeric import decimal_arrow
from headrace.sinks.clickhouse.types.type_mapping import DELETED, OCCURRENCE, ROW
from headrace.sinks.clickhouse.types.type_names import ClickHouseType, parse_stored_type

_DEFAULTS: Final = {described.clickhouse: kind for kind, described in reversed(COLUMN_TYPES.items()) if described.clickhouse}
"""The kind of each default type: the first one, if several kinds share it."""
_PLAIN: Final = {
    **_DEFAULTS,
    "Bool": _DEFAULTS["Int8"],
    "FixedString": _DEFAULTS["String"],
    "Date": _DEFAULTS["Date32"],
    "JSON": Kind.JSON,
    "Enum8": Kind.ENUM,
    "Enum16": Kind.ENUM,
    # Wider than any source's integers.
    **dict.fromkeys(("Int128", "Int256"), _DEFAULTS["Int64"]),
    **dict.fromkeys(("UInt128", "UInt256"), _DEFAULTS["UInt64"]),
    **dict.fromkeys(("Point", "Ring", "LineString", "MultiLineString", "Polygon", "MultiPolygon", "MultiPoint"), Kind.GEOMETRY),
}
_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT"})


def infer_schemas(scope: TargetScope, names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
    """Return the inferred schemas of those tables whose targets exist."""
    places = {name: target_name(name, scope.target, scope.options) for name in names}
    found, local_tables = find_with_local_tables(scope.target, places.values(), "looking for tables")
    return {
        name: infer_schema(name, local_tables.get(place, found[place]), scope.options.of(name))
        for name, place in places.items()
        if place in found
    }


def infer_schema(name: TableName, found: ExistingTable, options: TableOptions) -> TableSchema:
    """Infer the schema of one table, without metadata columns and computed columns."""
    ours = _own_columns(found, options)
    sources = {target: source for source, target in options.rename}
    columns = [column for column in found.columns if column.name not in ours and column.default_kind in ("", "DEFAULT")]
    key = [plain for plain in map(single_column, split_key(found.sort_key)) if plain is not None and plain not in ours]
    return TableSchema(
        name,
        tuple(_column(name, column, sources.get(column.name, column.name)) for column in columns),
        tuple(sources.get(column, column) for column in key if any(column == other.name for other in columns)),
    )


def _own_columns(found: ExistingTable, options: TableOptions) -> frozenset[str]:
    named = (options.version_column, options.sign_column, options.delete_column, options.tombstone_column, options.content_column)
    own = {*named, options.operation_column, options.time_column, DELETED, OCCURRENCE, ROW}
    with contextlib.suppress(EngineParseError):  # `plan_existing_table` reports it
        own.update(parse_engine(found.engine).names or ())
    return frozenset(own)


def _column(table: TableName, found: ExistingColumn, name: str) -> Column:
    stored = parse_stored_type(found.type)
    made = _kind(name, stored.plain)
    if made is None:
        raise DefiniteError(
            f"column {found.name} of the target of {table} is {found.type}: this does not show what its values are in the source",
            place=f"table {table}, column {name}",
            hint="let events carry their schemas, or name the connector's topic of schema changes (schema_topic)",
        )
    nullable = stored.nullable or made.form is ValueForm.VECTOR
    return replace(made, nullable=nullable, source_type=found.type, comment=found.comment)


def _kind(name: str, plain: ClickHouseType) -> Column | None:
    """Return a column of the kind that a type stores; None if it is unknown."""
    decimal = decimal_arrow(plain)
    if decimal is not None:
        return Column(name, Kind.DECIMAL, precision=decimal.precision, scale=decimal.scale)
    kind = _PLAIN.get(plain.name)
    if kind is not None and COLUMN_TYPES[kind].form is ValueForm.MEMBERS:
        return Column(name, kind, members=tuple(member for member in plain.members if member))
    if kind is not None:
        return Column(name, kind)
    if plain.name in ("DateTime", "DateTime64"):
        zone = plain.text(1 if plain.name == "DateTime64" else 0)
        digits = min(6, plain.number(0, 3)) if plain.name == "DateTime64" else 0
        # A wall-clock time is stored only in UTC columns, an instant in any zone.
        return Column(name, Kind.DATETIME if zone in _UTC else Kind.TIMESTAMP, precision=digits)
    if plain.name in ("Time", "Time64"):
        return Column(name, Kind.TIME, precision=min(6, plain.number(0, 3)) if plain.name == "Time64" else 0)
    if plain.name == "Array":
        return _list(name, plain.inner())
    return None


def _list(name: str, inner: ClickHouseType | None) -> Column | None:
    if inner is not None and inner.name in ("Float32", "Float64"):
        return Column(name, Kind.VECTOR)
    if inner is not None and parse_stored_type(inner.sql_name).plain.name == "String":
        return Column(name, Kind.SET)
    return None
