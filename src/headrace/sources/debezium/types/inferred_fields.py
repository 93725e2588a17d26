"""Fields of events without a schema: from the known table, or inferred from values.

Invariant: the fields expected of a column are those that Debezium's connector sends for it in the configured modes, so `values` converts
them exactly. A field without a description is what its JSON shows: integer, float, boolean, string or document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final, assert_never

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.parsed_events import ConnectField, RowFields
from headrace.sources.debezium.types.column_mapping import (
    AS_IT_LOOKS,
    DECIMAL,
    ESCAPED,
    GUESSED,
    PRECISION,
    SOURCE_LENGTH,
    VARIABLE,
    escaped_option,
    is_guessed,
    numeric_digits,
    table_schema,
)
from headrace.sources.debezium.types.values import default_text

_DECIMALS: Final = ("precise", "string", "double")
_TIMES: Final = ("adaptive_time_microseconds", "adaptive", "connect", "isostring", "microseconds", "nanoseconds")
_BINARIES: Final = ("bytes", "base64", "base64-url-safe", "hex")
MILLIS_DIGITS: Final = 3
"""Fractional digits up to which the adaptive modes send milliseconds."""

_MODE_NAMES: Final = {
    "connect": "org.apache.kafka.connect.data.{}",
    "isostring": "io.debezium.time.Iso{}",
    "microseconds": "io.debezium.time.Micro{}",
    "nanoseconds": "io.debezium.time.Nano{}",
}
_GUESSED: Final = {GUESSED: "yes"}
DEFAULTED: Final = "headrace.defaulted"
"""Marks a field of a column that has a default: rows from before it was added hold that, and their events do not hold the field."""
_WKB: Final = (ConnectField("wkb", "bytes", optional=False), ConnectField("srid", "int32"))
_POINT: Final = (
    ConnectField("x", "float64", optional=False),
    ConnectField("y", "float64", optional=False),
    ConnectField("wkb", "bytes"),
    ConnectField("srid", "int32"),
)


_AS_THEY_CAME: Final = {
    "map": "map",
    "boolean": "boolean",
    "struct VariableScaleDecimal": "variable",
    "struct Point": "point",
    "struct Geometry": "geometry",
}
"""Shapes by what `field_type` calls them."""
_NUMBERS: Final = frozenset({"int64", "float64"})
_MOMENTS: Final = ("Timestamp", ".Date", ".Time", ".MicroTime", ".NanoTime")
_WHOLE: Final = frozenset({"int8", "int16", "int32", "int64"})
SEEN: Final = "headrace.seen"
"""Marks a field of a known column whose values have an unexpected form; it does not change the column."""
_schemas: dict[int, tuple[RowFields, TableName, TableSchema]] = {}
"""Cache by the identity of the fields: a parser reuses the fields of a schema."""
_MAX_SCHEMAS: Final = 256


def expected_fields(schema: TableSchema, options: DebeziumOptions) -> RowFields:
    """What Debezium sends for rows of a table that is known, without saying so."""
    numeric_digits(options.numeric)
    for setting, given, known in (
        ("decimals", options.decimals, _DECIMALS),
        ("times", options.times, _TIMES),
        ("binaries", options.binaries, _BINARIES),
    ):
        if given not in known:
            raise DefiniteError(f"{setting} cannot be {given!r}", place=setting, hint=f"choose the connector's own: {', '.join(known)}")
    return RowFields(tuple(expected_field(column, options) for column in schema.columns), schema.row_key)


def expected_field(column: Column, options: DebeziumOptions) -> ConnectField:
    came = column.source_type.removesuffix(AS_IT_LOOKS)
    if came in _AS_THEY_CAME:
        # Only the form of past events is known; future events have the same.
        return replace(_field_of_json_type(column.name, _AS_THEY_CAME[came]), optional=column.nullable)
    word, semantic, parameters = _form(column, options)
    if is_guessed(column):
        parameters = {**parameters, **_GUESSED}
    if column.default is not None:
        parameters = {**parameters, DEFAULTED: "1"}
    inside: tuple[ConnectField, ...] = ()
    if column.form is ValueForm.GEOMETRY:
        inside = _POINT if semantic.endswith("Point") else _WKB
    items = ConnectField("item", "float32", optional=False) if column.form is ValueForm.VECTOR else None
    return ConnectField(column.name, word, semantic, parameters, column.nullable, fields=inside, items=items)


def _form(column: Column, options: DebeziumOptions) -> tuple[str, str, Mapping[str, str]]:
    connect, semantic = column.type.connect, column.type.semantic
    match column.form:
        case ValueForm.DECIMAL:
            if options.decimals != "precise":
                return ("string" if options.decimals == "string" else "float64"), "", {}
            return "bytes", DECIMAL, {"scale": str(column.scale), PRECISION: str(column.precision)}
        case ValueForm.BYTES:
            return ("bytes" if options.binaries == "bytes" else "string"), "", {}
        case ValueForm.BITS:
            if column.precision == 1:
                return "boolean", "", {}
            return "bytes", "io.debezium.data.Bits", {"length": str(column.precision)}
        case ValueForm.MEMBERS:
            return connect, semantic, {"allowed": ",".join(map(escaped_option, column.members)), ESCAPED: "1"}
        case ValueForm.GEOMETRY:
            point = column.source_type.lower().startswith("point")
            return connect, f"io.debezium.data.geometry.{'Point' if point else 'Geometry'}", {}
        case ValueForm.TIMESTAMP if column.type.zoned:
            return connect, semantic, {SOURCE_LENGTH: str(column.precision)}
        case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME:
            return (*_temporal_form(column, options.times), {})
        case ValueForm.INTEGER if column.type.bits == 32 and column.source_type.lower().startswith("mediumint"):
            return "int32", "", {}
        case ValueForm.INTEGER | ValueForm.FLOAT | ValueForm.YEAR | ValueForm.VECTOR:
            return connect, semantic, {}
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.FIXED_BYTES:
            return connect, semantic, {}
        case unknown:
            assert_never(unknown)


def _temporal_form(column: Column, mode: str) -> tuple[str, str]:
    """Dates and times without a zone, by `time.precision.mode`."""
    plain = {ValueForm.DATE: "Date", ValueForm.TIMESTAMP: "Timestamp", ValueForm.TIME: "Time"}[column.form]
    if mode == "isostring":
        return "string", _MODE_NAMES[mode].format(plain)
    if column.form is ValueForm.DATE:
        return "int32", "org.apache.kafka.connect.data.Date" if mode == "connect" else "io.debezium.time.Date"
    micro = column.precision > MILLIS_DIGITS or (mode == "adaptive_time_microseconds" and column.form is ValueForm.TIME)
    name = _MODE_NAMES.get(mode, _MODE_NAMES["microseconds"] if micro else "io.debezium.time.{}").format(plain)
    return ("int32" if name.endswith(".Time") else "int64"), name


def as_seen(fields: RowFields, shapes: Mapping[str, AbstractSet[str]]) -> RowFields:
    """Return the expected fields, adjusted where values are strings instead of numbers, or the reverse.

    `shapes`: the JSON types found in each field: boolean, int64, float64, string. So modes need not be configured where JSON shows them,
    and the target table suffices although it does not record whether a time was sent with a zone.
    """
    row = tuple(_seen(field, shapes.get(field.name, frozenset())) for field in fields.row)
    return fields if all(new is old for new, old in zip(row, fields.row, strict=True)) else replace(fields, row=row)


def _seen(field: ConnectField, shapes: AbstractSet[str]) -> ConnectField:
    if not shapes or field.type in ("bytes", "struct", "array", "map"):
        return field
    found = _seen_as(field, shapes)
    return field if found is None else replace(field, type=found[0], semantic=found[1], parameters={**field.parameters, SEEN: "1"})


def _seen_as(field: ConnectField, shapes: AbstractSet[str]) -> tuple[str, str] | None:
    """Return the type and schema name of a field with an unexpected form; None if the form is as expected."""
    number, text = shapes <= _NUMBERS, shapes == {"string"}
    plain = not field.semantic
    if shapes == {"boolean"} and field.type in _WHOLE and plain:
        return "boolean", ""
    if field.type == "boolean" and shapes == {"int64"}:
        return "int64", ""
    if plain and field.type == "string" and number:
        return ("float64" if "float64" in shapes else "int64"), ""
    if plain and text and (field.type == "float64" or field.type in _WHOLE):
        return "string", ""
    if text and field.type != "string" and field.semantic.endswith(_MOMENTS):
        plainest = field.semantic.rpartition(".")[2].removeprefix("Micro").removeprefix("Nano")
        return "string", f"io.debezium.time.Iso{plainest}"
    if shapes == {"int64"} and field.type == "string" and field.semantic.endswith(_MOMENTS):
        millis = int(field.parameters.get(SOURCE_LENGTH, "6")) <= MILLIS_DIGITS
        return "int64", "io.debezium.time.Timestamp" if millis else "io.debezium.time.MicroTimestamp"
    return None


def infer_fields(rows: Iterable[Mapping[str, Any]]) -> tuple[ConnectField, ...]:
    """Infer fields from the values of rows without a description. A field that is always null is left undecided."""
    seen: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                seen.setdefault(name, []).append(value)
    return tuple(_inferred(name, values) for name, values in seen.items())


def _inferred(name: str, values: Sequence[Any]) -> ConnectField:
    kinds = {_json_type(value) for value in values}
    if kinds == {"int64"} and any(not -(1 << 63) <= value < 1 << 63 for value in values):
        return ConnectField(name, "string", parameters=_GUESSED)
    if len(kinds) == 1:
        return _field_of_json_type(name, kinds.pop())
    if kinds == {"int64", "float64"}:
        return ConnectField(name, "float64", parameters=_GUESSED)
    if kinds <= {"map", "array"}:
        return ConnectField(name, "map", parameters=_GUESSED)
    return ConnectField(name, "string", parameters=_GUESSED)


def _json_type(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "int64"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            return "array"
        case {"x": _, "y": _, "wkb": _}:
            return "point"
        case {"wkb": _, "srid": _}:
            return "geometry"
        case {"scale": int(), "value": str()} if len(value) == 2:
            return "variable"
    return "map"


def _field_of_json_type(name: str, shape: str) -> ConnectField:
    match shape:
        case "geometry":
            return ConnectField(name, "struct", "io.debezium.data.geometry.Geometry", fields=_WKB)
        case "point":
            return ConnectField(name, "struct", "io.debezium.data.geometry.Point", fields=_POINT)
        case "variable":
            inside = (ConnectField("scale", "int32", optional=False), ConnectField("value", "bytes", optional=False))
            return ConnectField(name, "struct", VARIABLE, fields=inside)
        case "array":
            # A list of anything is a document, as a map is: in text.
            return ConnectField(name, "map", parameters=_GUESSED)
    return ConnectField(name, shape, parameters=_GUESSED)


def described_schema(table: TableName, fields: RowFields) -> TableSchema:
    cached = _schemas.get(id(fields))
    if cached is not None and cached[0] is fields and cached[1] == table:
        return cached[2]
    if len(_schemas) >= _MAX_SCHEMAS:
        _schemas.clear()
    schema = table_schema(table, fields, default_text)
    _schemas[id(fields)] = (fields, table, schema)
    return schema


def completed_schema(table: TableName, known: TableSchema, expected: RowFields, fields: RowFields) -> TableSchema:
    """Return the table as fields describe it; columns whose fields are only the expected ones stay as they are known."""
    expected_ids = {id(field) for field in expected.row}
    undescribed = {field.name for field in fields.row if id(field) in expected_ids or SEEN in field.parameters}
    if undescribed:
        described = [column for column in table_schema(table, fields, default_text).columns if column.name not in undescribed]
        kept = [column for column in known.columns if column.name in undescribed]
        schema = replace(known, columns=(*kept, *described), primary_key=fields.key)
    else:
        schema = described_schema(table, fields)
    # Keys without names (or in another format) do not change the table's key.
    return schema if fields.key else replace(schema, primary_key=known.row_key)
