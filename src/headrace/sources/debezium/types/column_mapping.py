"""Maps fields of events to columns that hold exactly their values.

Invariant: a column made here holds every value that its field can carry. Where events say less than the source knows (a TINYINT UNSIGNED
arrives as `int16`), the column is as wide as the field, unless the connector passes the source's own type
(`column.propagate.source.type`), which then decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.column_types import COLUMN_TYPES, FRACTIONAL_FORMS, ValueForm
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.debezium.events.parsed_events import ConnectField, RowFields

SOURCE_TYPE: Final = "__debezium.source.column.type"
SOURCE_LENGTH: Final = "__debezium.source.column.length"
SOURCE_SCALE: Final = "__debezium.source.column.scale"
SOURCE_COMMENT: Final = "__debezium.source.column.comment"
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
PRECISION: Final = "connect.decimal.precision"
VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
ESCAPED: Final = "headrace.escaped"
"""Marks an Enum or EnumSet whose members are escaped as in a SQL statement."""

_VARIABLE_TYPES: Final = ("struct VariableScaleDecimal", "numeric")
"""What `field_type` calls it, and what PostgreSQL does."""
GUESSED: Final = "headrace.guessed"
"""Parameter of fields without a description: their type is inferred from their values."""
AS_IT_LOOKS: Final = " as it looks"

MOST_DIGITS: Final = 76
USUAL_DIGITS: Final = 38
"""For a decimal of unknown precision: 128 bits, unless its scale leaves fewer than half of them before the point."""
WIDEST_BITS: Final = 64

_PLAIN: Final = {
    "int8": Kind.INT8,
    "int16": Kind.INT16,
    "int32": Kind.INT32,
    "int64": Kind.INT64,
    "float32": Kind.FLOAT32,
    "float64": Kind.FLOAT64,
    # There is no kind for truth values: 0 and 1, by the name by which sinks know them.
    "boolean": Kind.INT8,
    "string": Kind.STRING,
    "bytes": Kind.BYTES,
    "array": Kind.JSON,
    "map": Kind.JSON,
    "struct": Kind.JSON,
}
_NAMED: Final[dict[str, tuple[Kind, int]]] = {
    "io.debezium.time.Date": (Kind.DATE, 0),
    "io.debezium.time.IsoDate": (Kind.DATE, 0),
    "org.apache.kafka.connect.data.Date": (Kind.DATE, 0),
    "io.debezium.time.Time": (Kind.TIME, 3),
    "io.debezium.time.MicroTime": (Kind.TIME, 6),
    "io.debezium.time.NanoTime": (Kind.TIME, 6),
    "io.debezium.time.IsoTime": (Kind.TIME, 6),
    "org.apache.kafka.connect.data.Time": (Kind.TIME, 3),
    "io.debezium.time.Timestamp": (Kind.DATETIME, 3),
    "io.debezium.time.MicroTimestamp": (Kind.DATETIME, 6),
    "io.debezium.time.NanoTimestamp": (Kind.DATETIME, 6),
    "io.debezium.time.IsoTimestamp": (Kind.DATETIME, 6),
    "org.apache.kafka.connect.data.Timestamp": (Kind.DATETIME, 3),
    "io.debezium.time.ZonedTimestamp": (Kind.TIMESTAMP, 6),
    # A time of day in a zone, an interval and a span are none of our kinds: as they are.
    "io.debezium.time.ZonedTime": (Kind.STRING, 0),
    "io.debezium.time.Interval": (Kind.STRING, 0),
    "io.debezium.time.Year": (Kind.YEAR, 0),
    "io.debezium.data.Enum": (Kind.ENUM, 0),
    "io.debezium.data.EnumSet": (Kind.SET, 0),
    "io.debezium.data.Json": (Kind.JSON, 0),
    "io.debezium.data.Xml": (Kind.STRING, 0),
    "io.debezium.data.Uuid": (Kind.UUID, 0),
    "io.debezium.data.Ltree": (Kind.STRING, 0),
    "io.debezium.data.TsVector": (Kind.STRING, 0),
    "io.debezium.data.geometry.Geometry": (Kind.GEOMETRY, 0),
    "io.debezium.data.geometry.Geography": (Kind.GEOMETRY, 0),
    "io.debezium.data.geometry.Point": (Kind.GEOMETRY, 0),
    "io.debezium.data.FloatVector": (Kind.VECTOR, 0),
    "io.debezium.data.DoubleVector": (Kind.VECTOR, 0),
    "io.debezium.data.vector.FloatVector": (Kind.VECTOR, 0),
    "io.debezium.data.vector.DoubleVector": (Kind.VECTOR, 0),
    # No decimal type holds the digits that PostgreSQL's numeric may have.
    VARIABLE: (Kind.STRING, 0),
}
"""The kind for a schema name, and the fractional digits that it can carry. For other names the plain type decides."""

_INTEGERS: Final = {
    "tinyint": (Kind.INT8, Kind.UINT8),
    "smallint": (Kind.INT16, Kind.UINT16),
    "mediumint": (Kind.INT32, Kind.UINT32),
    "int": (Kind.INT32, Kind.UINT32),
    "integer": (Kind.INT32, Kind.UINT32),
    "bigint": (Kind.INT64, Kind.UINT64),
    "int2": (Kind.INT16, Kind.INT16),
    "int4": (Kind.INT32, Kind.INT32),
    "int8": (Kind.INT64, Kind.INT64),
}
_BINARY: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bytea", "raw"})
_SIZED: Final = frozenset({"char", "varchar", "bpchar", "binary", "varbinary", "bit", "varbit", "vector"})
_DECIMALS: Final = frozenset({"decimal", "numeric", "dec", "fixed"})
_NAMED_TYPES: Final = frozenset({"enum", "set"})
_OPTION: Final = re.compile(r",((?:[^\\,]|\\.)*)", re.DOTALL)
_CLOCKS: Final = frozenset({"datetime", "timestamp", "timestamptz", "time"})
_MOST_FRACTION: Final = 6

DefaultOf = Callable[[ConnectField, Column], str | None]


def table_schema(name: TableName, fields: RowFields, default_of: DefaultOf | None = None) -> TableSchema:
    """The table that holds rows of these fields, keyed as their events are. `default_of`: how a field's default is spelled."""
    twice = next((field.name for i, field in enumerate(fields.row) if any(field.name == other.name for other in fields.row[:i])), None)
    if twice is not None:
        raise DefiniteError(f"events of {name} have two fields {twice!r}", place=str(name))
    columns = tuple(map(column_of, fields.row))
    if default_of is not None:
        columns = tuple(
            column if field.default is None else replace(column, default=default_of(field, column))
            for field, column in zip(fields.row, columns, strict=True)
        )
    required = frozenset(fields.key)
    return TableSchema(
        name,
        # A key column is never NULL, even if the schema allows it.
        tuple(replace(column, nullable=False) if column.name in required else column for column in columns),
        fields.key,
    )


def with_numeric(schema: TableSchema, numeric: str) -> TableSchema:
    """The table with decimals of any scale as it was chosen: `string`, or `decimal(P,S)`."""
    digits = numeric_digits(numeric)
    if digits is None or not any(map(_is_variable, schema.columns)):
        return schema
    columns = [
        replace(column, kind=Kind.DECIMAL, precision=digits[0], scale=digits[1]) if _is_variable(column) else column
        for column in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def _is_variable(column: Column) -> bool:
    return column.form is ValueForm.TEXT and column.source_type in _VARIABLE_TYPES


def numeric_digits(numeric: str) -> tuple[int, int] | None:
    """Return precision and scale of `decimal(P,S)`; None for `string`. Anything else is rejected."""
    found = re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", numeric.strip(), re.IGNORECASE)
    if found and 1 <= int(found[1]) <= MOST_DIGITS and int(found[2]) <= int(found[1]):
        return int(found[1]), int(found[2])
    if numeric.strip().lower() == "string":
        return None
    raise DefiniteError(f"numeric cannot be {numeric!r}", place="numeric", hint="choose string, or decimal(P,S) of at most 76 digits")


def column_of(field: ConnectField) -> Column:
    column = _by_source(field, _by_field(field))
    source = source_type(field)
    return replace(
        column,
        nullable=field.optional,
        source_type=source or field_type(field),
        comment=field.parameters.get(SOURCE_COMMENT, ""),
    )


def source_word(field: ConnectField) -> str:
    """The first word of the source's own type, in lower case; empty where the connector does not pass it on."""
    return re.split(r"[\s(]", field.parameters.get(SOURCE_TYPE, "").strip().lower(), maxsplit=1)[0]


def source_type(field: ConnectField) -> str:
    """The source's own type, in lower case, with its length; empty where the connector does not pass it on."""
    word = field.parameters.get(SOURCE_TYPE, "").strip().lower()
    length, scale = _number(field, SOURCE_LENGTH), _number(field, SOURCE_SCALE)
    first, _, rest = word.partition(" ")
    rest = f" {rest}" if rest else ""
    if first in _DECIMALS and length and "(" not in word:
        return f"{first}({length},{scale or 0}){rest}"
    if first in _NAMED_TYPES:
        names = "','".join(name.replace("'", "''") for name in members_of(field))
        return f"{first}('{names}')"
    if length is not None and "(" not in word and (first in _SIZED or (first == "tinyint" and length == 1)):
        return f"{first}({length}){rest}"
    digits = _fractional_digits(field) if first in _CLOCKS else 0
    return f"{first}({digits}){rest}" if digits else word


def field_type(field: ConnectField) -> str:
    """A field's type for people, and for telling whether two events mean the same: `int64`, `Decimal(12,2)`, `MicroTimestamp`."""
    is_known = field.semantic.startswith(("io.debezium.", "org.apache.kafka.connect.data."))
    short = field.semantic.rpartition(".")[2] if is_known else ""
    if field.semantic == DECIMAL:
        return f"decimal({field.parameters.get(PRECISION, '?')},{field.parameters.get('scale', '0')})"
    if field.semantic == "io.debezium.data.Bits":
        return f"bits({field.parameters.get('length', '?')})"
    if short:
        return f"{field.type} {short}"
    if GUESSED in field.parameters:
        return f"{field.type}{AS_IT_LOOKS}"
    if field.type == "array" and field.items is not None:
        return f"array of {field_type(field.items)}"
    return field.type


def is_guessed(column: Column) -> bool:
    return column.source_type.endswith(AS_IT_LOOKS)


def may_be_unsigned(column: Column) -> bool:
    """Whether a column's events only say `int64`: Debezium's `long` mode also sends BIGINT UNSIGNED as that."""
    return column.kind is Kind.INT64 and column.source_type == "int64"


def members_of(field: ConnectField) -> tuple[str, ...]:
    return tuple(options_of(field).values())


def options_of(field: ConnectField) -> dict[str, str]:
    """The names that an Enum or EnumSet allows, by how its schema writes them.

    Debezium takes MySQL's names from the text of statements, with a backslash before commas and backslashes; a row that it reads from the
    log has them so too, one of a snapshot has not. PostgreSQL's names are as they are.
    """
    allowed = field.parameters.get("allowed", "")
    if not allowed:
        return {}
    if not (field.parameters.get(ESCAPED) or source_word(field) in _NAMED_TYPES or "\\," in allowed):
        return {name: name for name in allowed.split(",")}
    return {found[1]: re.sub(r"\\(.)", _unescaped, found[1], flags=re.DOTALL) for found in _OPTION.finditer(f",{allowed}")}


def _unescaped(found: re.Match[str]) -> str:
    return found[1] if found[1] in "\\,'" else found[0]


def escaped_option(name: str) -> str:
    """A name as Debezium writes it that takes it from a statement."""
    return name.replace("\\", "\\\\").replace(",", "\\,")


def _by_field(field: ConnectField) -> Column:
    if field.semantic == DECIMAL:
        return _decimal(field)
    if field.semantic == "io.debezium.data.Bits":
        bits = _number(field, "length") or 0
        if 1 <= bits <= WIDEST_BITS:
            return Column(field.name, Kind.BIT, precision=bits)
        return Column(field.name, Kind.BYTES)
    kind, digits = _NAMED.get(field.semantic, (None, 0))
    if kind is None:
        kind = _PLAIN[field.type]
    if COLUMN_TYPES[kind].form is ValueForm.MEMBERS:
        return Column(field.name, kind, members=members_of(field))
    return Column(field.name, kind, precision=digits)


def _decimal(field: ConnectField) -> Column:
    scale, precision = _number(field, "scale") or 0, _number(field, PRECISION)
    if scale < 0:
        # 12E+3: only digits before the point are cut off; they are zeros in the table.
        precision, scale = None if precision is None else precision - scale, 0
    if precision is None:
        precision = USUAL_DIGITS if scale * 2 <= USUAL_DIGITS else MOST_DIGITS
    if precision > MOST_DIGITS or scale > precision:
        return Column(field.name, Kind.STRING)
    return Column(field.name, Kind.DECIMAL, precision=precision, scale=scale)


def _by_source(field: ConnectField, column: Column) -> Column:
    """Refine the column by the source type that the connector passes, where that is more precise."""
    declared = source_type(field)
    word, unsigned = source_word(field), "unsigned" in declared
    if word in _INTEGERS and column.kind in (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.STRING, Kind.FLOAT64):
        if field.type == "boolean":
            return column
        return replace(column, kind=_INTEGERS[word][unsigned], precision=0, scale=0)
    if word in _DECIMALS and column.kind in (Kind.DECIMAL, Kind.STRING, Kind.FLOAT64):
        found = re.search(r"\((\d+),(\d+)\)", declared)
        digits = (int(found[1]), int(found[2])) if found else (0, 0)
        if 1 <= digits[0] <= MOST_DIGITS and digits[1] <= digits[0]:
            return replace(column, kind=Kind.DECIMAL, precision=digits[0], scale=digits[1])
    if column.form in FRACTIONAL_FORMS and word in _CLOCKS:
        return replace(column, precision=_fractional_digits(field))
    if word == "bit" and field.type == "boolean":
        return replace(column, kind=Kind.BIT, precision=1)
    if word in _BINARY and column.form is ValueForm.TEXT and not field.semantic:
        return replace(column, kind=Kind.BYTES)
    return column


def _fractional_digits(field: ConnectField) -> int:
    """Return fractional digits of a second: PostgreSQL's scale, MySQL's length, or 0."""
    length, scale = _number(field, SOURCE_LENGTH), _number(field, SOURCE_SCALE)
    return min(scale if scale is not None else length or 0, _MOST_FRACTION)


def _number(field: ConnectField, name: str) -> int | None:
    text = field.parameters.get(name, "")
    return int(text) if re.fullmatch(r"-?\d+", text) else None
