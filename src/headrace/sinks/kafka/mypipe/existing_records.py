"""Rows in records whose schema is in the repository already and was not written by Headrace.

Invariant: by the rules of Avro's schema resolution, a field takes the column of its name (or alias) as its own type, and no value is cut or
rounded. A column without a field is left out, with a warning. A field without a column needs a default. A field that cannot take the type
of its column is an error before the first message; a value that does not fit is an error with the column.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.avro.encoder import Source
from headrace.kafka.avro.schema import AvroField, AvroKind, AvroSchema, AvroType
from headrace.kafka.mypipe.values import ValueMapping, avro_type, decimal_bytes, to_field, to_map
from headrace.kafka.mypipe.wire_format import HEADER_FIELDS, TABLE, Mutation, field_names
from headrace.kafka.schema_repository import RegisteredSchema
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema

log = logging.getLogger("headrace")

_NUMBERS: Final = (AvroKind.INT, AvroKind.LONG, AvroKind.FLOAT, AvroKind.DOUBLE)
_TEXTS: Final = (AvroKind.STRING, AvroKind.BYTES)
_ARROW: Final = {
    AvroKind.INT: pa.int32(),
    AvroKind.LONG: pa.int64(),
    AvroKind.FLOAT: pa.float32(),
    AvroKind.DOUBLE: pa.float64(),
    AvroKind.STRING: pa.string(),
    AvroKind.BYTES: pa.binary(),
}
_SIDES: Final = {Mutation.INSERT: ("",), Mutation.UPDATE: ("old_", "new_"), Mutation.DELETE: ("",)}
_INT_BITS: Final = 31
_INTEGER_DIGITS: Final = 20
"""Every integer fits a decimal of so many digits."""


def is_headrace_schema(found: RegisteredSchema) -> bool:
    return TABLE in found.schema.root.properties


@dataclass(frozen=True, slots=True)
class _FieldOfColumn:
    column: Column
    place: int
    """The column's index in the table."""
    type: AvroType
    """The field's type, without null."""


@dataclass(frozen=True, slots=True)
class ExistingRecord:
    """A record schema of the repository, matched with a table."""

    id: int
    schema: AvroSchema
    subject: str
    sides: Mapping[str, Mapping[str, _FieldOfColumn]]
    """By the prefix of the fields (`old_`, `new_` or none): the columns of fields."""
    mapping: ValueMapping

    def fields(self, columns: list[pa.Array], prefix: str) -> Mapping[str, Source]:
        return {
            name: _converted(found, columns[found.place], self.mapping, f"subject {self.subject}, field {name}")
            for name, found in self.sides[prefix].items()
        }

    def table_id(self, number: int) -> pa.Scalar | None:
        """Return the table's number as the record has it: mypipe's own records have an int; None if there is no such field."""
        found = self.schema.root.field("tableId")
        if found is None:
            return None
        kinds = [one.kind for one in found.type.values]
        return pa.scalar(number if AvroKind.LONG in kinds else number & ((1 << _INT_BITS) - 1))


def match_record(found: RegisteredSchema, schema: TableSchema, mutation: Mutation, mapping: ValueMapping) -> ExistingRecord:
    root, place = found.schema.root, f"subject {found.subject}, version {found.version}"
    if root.kind is not AvroKind.RECORD:
        raise DefiniteError("the schema in the repository is not a record", place=place, hint=_remedy(found.subject))
    sides: dict[str, dict[str, _FieldOfColumn]] = {prefix: {} for prefix in _SIDES[mutation]}
    taken: set[str] = set()
    for field in root.fields:
        side = next((one for one in _columns_of(field, schema, mutation)), None)
        if side is not None:
            prefix, at = side
            column = schema.columns[at]
            taken.add(column.name)
            sides[prefix][field.name] = _FieldOfColumn(column, at, _fitting_type(column, field, mapping, found))
        elif field.name not in HEADER_FIELDS and not field.has_default:
            message = f"the field {field.name} of the schema in the repository has neither a column of {schema.name} nor a default"
            raise DefiniteError(message, place=place, hint=f"give the field a default, or {_remedy(found.subject)}")
    for column in schema.columns:
        if column.name not in taken:
            log.warning("%s has no field for column %s of %s: messages do not contain it", place, column.name, schema.name)
    return ExistingRecord(found.id, found.schema, found.subject, sides, mapping)


def _columns_of(field: AvroField, schema: TableSchema, mutation: Mutation) -> list[tuple[str, int]]:
    """Return the side and the index of the column that a field takes, by its name or an alias."""
    names = {name: at for at, name in enumerate(field_names(schema.columns))}
    return [
        (prefix, names[name.removeprefix(prefix)])
        for name in (field.name, *field.aliases)
        if name not in HEADER_FIELDS
        for prefix in _SIDES[mutation]
        if name.startswith(prefix) and name.removeprefix(prefix) in names
    ]


def _fitting_type(column: Column, field: AvroField, mapping: ValueMapping, found: RegisteredSchema) -> AvroType:
    for one in field.type.values:
        if len(field.type.values) == 1 and _fits(column, one, mapping):
            return one
    shown = " or ".join(one.label + (f" ({one.logical})" if one.logical else "") for one in field.type.values)
    raise DefiniteError(
        f"the field {field.name} ({shown}) of the schema in the repository cannot take values of column {column.name}"
        f" ({column.source_type or column.kind})",
        place=f"subject {found.subject}, version {found.version}",
        hint=f"change its type to {avro_type(column, mapping)}, or {_remedy(found.subject)}",
    )


def _remedy(subject: str) -> str:
    return f"remove the subject {subject} from the repository, and Headrace registers its own schema"


def _fits(column: Column, wanted: AvroType, mapping: ValueMapping) -> bool:
    """Return whether a field of a type (not null) can hold the column's values; single values may still be out of its range."""
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR:
            return (wanted.kind in _NUMBERS and not wanted.logical) or (
                wanted.logical == "decimal" and _decimal_fits(_INTEGER_DIGITS, 0, wanted)
            )
        case ValueForm.FLOAT:
            return wanted.kind is AvroKind.DOUBLE or (wanted.kind is AvroKind.FLOAT and column.type.bits == 32)
        case ValueForm.DECIMAL:
            return wanted.kind is AvroKind.STRING or (wanted.logical == "decimal" and _decimal_fits(column.precision, column.scale, wanted))
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            own = avro_type(column, mapping)
            logical = own["logicalType"] if isinstance(own, dict) else ""
            return wanted.kind is AvroKind.STRING or wanted.logical == logical
        case ValueForm.TIME:
            return wanted.kind is AvroKind.STRING or (wanted.kind is AvroKind.LONG and not wanted.logical)
        case ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS | ValueForm.FIXED_BYTES:
            return wanted.kind in _TEXTS and wanted.logical in ("", column.type.avro_logical)
        case ValueForm.BYTES:
            return wanted.kind in _TEXTS and not wanted.logical
        case ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.BITS:
            return wanted.kind is AvroKind.BYTES and not wanted.logical
        case unknown:
            assert_never(unknown)


def _decimal_fits(precision: int, scale: int, wanted: AvroType) -> bool:
    exact = wanted.properties.get("scale", 0) == scale and wanted.properties.get("precision", 0) >= precision
    return wanted.kind is AvroKind.BYTES and bool(exact)


def _converted(found: _FieldOfColumn, array: pa.Array, mapping: ValueMapping, place: str) -> pa.Array:
    column, wanted = found.column, found.type
    try:
        match column.form:
            case ValueForm.INTEGER | ValueForm.YEAR if wanted.kind is AvroKind.BYTES:
                return decimal_bytes(array.cast(pa.decimal128(_INTEGER_DIGITS)))
            case ValueForm.INTEGER | ValueForm.YEAR:
                return _exact_numbers(array, _ARROW[wanted.kind])
            case ValueForm.FLOAT:
                return array.cast(_ARROW[wanted.kind])
            case ValueForm.DECIMAL if wanted.kind is AvroKind.BYTES:
                return decimal_bytes(array)
            case ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.BITS:
                # Bytes as a string must be UTF-8; the cast checks it.
                return to_field(column, array, mapping).cast(_ARROW[wanted.kind])
            case ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.TIME if wanted.kind is not AvroKind.STRING:
                return to_field(column, array, mapping)
            case (
                ValueForm.TEXT
                | ValueForm.JSON
                | ValueForm.MEMBERS
                | ValueForm.FIXED_BYTES
                | ValueForm.DECIMAL
                | ValueForm.DATE
                | ValueForm.TIMESTAMP
                | ValueForm.TIME
            ):
                return to_map(column, array, "strings").cast(_ARROW[wanted.kind])
            case unknown:
                assert_never(unknown)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise DefiniteError(
            f"a value of column {column.name} does not fit the field: {error}",
            place=place,
            hint=f"change the field's type to {avro_type(column, mapping)} in a new version of the schema",
        ) from error


def _exact_numbers(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast whole numbers; raise `ArrowInvalid` for one that the type cannot hold exactly."""
    made = array.cast(wanted)
    if pa.types.is_floating(wanted) and not pc.all(pc.equal(made.cast(array.type), array), min_count=0).as_py():
        raise pa.ArrowInvalid("a number would be rounded")
    return made
