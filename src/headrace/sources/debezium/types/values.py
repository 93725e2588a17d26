"""Converts values of events from wire types to column types, a column at a time.

Invariant: a value is converted exactly or its row is reported as bad; other rows are unaffected. A value that the source did not log
because it did not change (`__debezium_unavailable_value`) is distinct from NULL.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import uuid
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import text_functions
from headrace.sources.debezium.events.parsed_events import ConnectField, WireFormat, wire_type
from headrace.sources.debezium.types.binary import (
    Array,
    Mask,
    ParsedColumn,
    bits,
    fixed,
    from_base64,
    from_hex,
    geometries,
    struct_parts,
    valid_rows,
    vectors,
    with_nulls_at,
)
from headrace.sources.debezium.types.column_mapping import DECIMAL, VARIABLE, column_of, options_of
from headrace.sources.debezium.types.numeric import (
    decimal_bytes,
    decimal_texts,
    decimals,
    decimals_of_bytes,
    either,
    floats,
    integers,
    variable_as,
    variable_texts,
)
from headrace.sources.debezium.types.temporal import days, each, times, timestamps

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's default; a connector may set another `unavailable.value.placeholder`."""
_BITS: Final = "io.debezium.data.Bits"
_LOGGED_ZERO: Final = 1900
_NAMED: Final = frozenset({"io.debezium.data.Enum", "io.debezium.data.EnumSet"})
_PART: Final = re.compile(r"[^,]+")
_AS_THEY_ARE: Final = (ValueForm.INTEGER, ValueForm.YEAR, ValueForm.BITS, ValueForm.FLOAT)


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    array: Array
    """Of exactly the column's Arrow type; NULL in bad rows and where the value is unavailable."""
    bad: Mask | None = None
    """Rows whose value the column cannot hold; None if there are none."""
    kept: Mask | None = None
    """Rows whose value did not change and was not logged; None if there are none."""
    raw: Array = None
    column: Column | None = None

    def reason(self, row: int) -> str:
        assert self.column is not None
        shown = repr(self.raw[row].as_py())
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return f"column {self.column.name}: {shown} is no value of {_described(self.column)}"


def convert_column(
    array: Array, field: ConnectField, column: Column, wire: WireFormat, *, placeholder: str = UNAVAILABLE, binaries: str = "bytes"
) -> ConvertedColumn:
    """The values of a field as those of a column. `binaries`: the connector's `binary.handling.mode`, for bytes that come as text."""
    if pa.types.is_null(array.type):
        return ConvertedColumn(pa.nulls(len(array), column.arrow_type))
    kept = unavailable(array, field, column, wire, placeholder)
    known = array if kept is None else with_nulls_at(array, kept)
    try:
        found = _converted(_Conversion(known, field, column, binaries))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError):
        # A column of another sort altogether: every value of it is wrong.
        bad = np.asarray(pc.is_valid(known).to_numpy(zero_copy_only=False), dtype=np.bool_)
        found = ParsedColumn(pa.nulls(len(array), column.arrow_type), bad)
    if found.array.type != column.arrow_type:
        raise DefiniteError(f"column {column.name}: values of {found.array.type} were made for {column.arrow_type}")
    bad_rows = found.bad if found.bad is not None and found.bad.any() else None
    return ConvertedColumn(found.array, bad_rows, kept, array, column)


def default_text(field: ConnectField, column: Column) -> str | None:
    """Return a field's default in the source's notation; None if it has none, or none with a text form."""
    if field.default is None:
        return None
    try:
        made = convert_column(pa.array([field.default], wire_type(field, WireFormat.JSON)), field, column, WireFormat.JSON)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    value = made.array[0].as_py() if made.bad is None else None
    spelled = text_functions(column)
    if value is None or (spelled is None and column.form is not ValueForm.BYTES):
        return None
    if column.form is ValueForm.BYTES:
        return f"0x{value.hex().upper()}"
    if column.form is ValueForm.BITS:
        return f"b'{value:b}'"
    assert spelled is not None
    text = str(spelled[0](made.array)[0].as_py())
    # The moment at which a row was made has no other default in an event than the beginning of time.
    return "(current_timestamp())" if column.form is ValueForm.TIMESTAMP and text.startswith("1970-01-01 00:00:00") else text


def _described(column: Column) -> str:
    match column.form:
        case ValueForm.DECIMAL:
            return f"decimal({column.precision},{column.scale})"
        case ValueForm.BITS:
            return f"bit({column.precision})"
        case ValueForm.TIMESTAMP | ValueForm.TIME:
            return f"{column.kind.value} in microseconds"
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.FLOAT | ValueForm.DATE | ValueForm.TEXT | ValueForm.JSON | ValueForm.MEMBERS:
            return column.kind.value
        case ValueForm.BYTES | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return column.kind.value
        case unknown:
            assert_never(unknown)


# -- by form


@dataclass(frozen=True, slots=True)
class _Conversion:
    array: Array
    field: ConnectField
    column: Column
    binaries: str = "bytes"

    @property
    def semantic(self) -> str:
        return self.field.semantic

    @property
    def scale(self) -> int:
        return int(self.field.parameters.get("scale", "0"))

    @property
    def variable(self) -> bool:
        return self.semantic == VARIABLE and pa.types.is_struct(self.array.type)


def _integers(case: _Conversion) -> ParsedColumn:
    column = case.column
    if case.semantic == _BITS:
        found = _decoded(case.array)
        made = bits(found.array)
        checked = integers(made.array, column, wraps=False)
        return ParsedColumn(checked.array, either(either(found.bad, made.bad), checked.bad))
    if case.semantic == DECIMAL:
        found = decimal_bytes(case.array, case.scale)
        made = each(found.array, column.arrow_type, lambda part: part.cast(column.arrow_type))
        return ParsedColumn(made.array, either(found.bad, made.bad))
    if column.form is ValueForm.YEAR and pa.types.is_integer(case.array.type):
        # No YEAR is 1900, but Debezium counts the year 0000 of a binary log from there.
        zero = pc.equal(case.array, _LOGGED_ZERO)
        return integers(pc.if_else(zero, pa.scalar(0, case.array.type), case.array), column, wraps=False)
    return integers(case.array, column, wraps=case.field.type == "int64" and not case.semantic)


def _floats(case: _Conversion) -> ParsedColumn:
    if case.semantic == DECIMAL:
        texts = decimal_texts(case.array, case.scale)
        return ParsedColumn(floats(texts.array, case.column).array, texts.bad)
    if case.variable:
        texts = variable_texts(case.array)
        return ParsedColumn(floats(texts.array, case.column).array, texts.bad)
    return floats(case.array, case.column)


def _decimals(case: _Conversion) -> ParsedColumn:
    if case.semantic == DECIMAL:
        return decimals_of_bytes(case.array, case.scale, case.column)
    return variable_as(case.array, case.column) if case.variable else decimals(case.array, case.column)


def _texts(case: _Conversion) -> ParsedColumn:
    if case.variable:
        return variable_texts(case.array)
    if case.semantic == DECIMAL:
        return decimal_texts(case.array, case.scale)
    if case.field.type == "bytes":
        found = _decoded(case.array)
        made = each(found.array, pa.string(), lambda part: part.cast(pa.string()))
        return ParsedColumn(made.array, either(found.bad, made.bad))
    texts = documents(case.array, case.field)
    return ParsedColumn(_as_named(texts.array, case.field), texts.bad) if case.semantic in _NAMED else texts


def _as_named(texts: Array, field: ConnectField) -> Array:
    """Names as the source has them, where some are written otherwise."""
    odd = {written: name for written, name in options_of(field).items() if written != name}
    if not odd:
        return texts
    found = texts.dictionary_encode()
    several = field.semantic.endswith("EnumSet")
    names = [
        ",".join(odd.get(part, part) for part in _PART.findall(text)) if several else odd.get(text, text)
        for text in found.dictionary.to_pylist()
    ]
    return pa.array(names, pa.string()).take(found.indices)


def _bytes(case: _Conversion) -> ParsedColumn:
    if case.field.type != "bytes" and pa.types.is_string(case.array.type):
        if case.binaries == "bytes":
            return ParsedColumn(case.array.cast(pa.binary()))
        return from_hex(case.array) if case.binaries == "hex" else from_base64(case.array)
    return _decoded(case.array)


def _decoded(array: Array) -> ParsedColumn:
    """Bytes, however the wire has them."""
    return from_base64(array) if pa.types.is_string(array.type) else ParsedColumn(array.cast(pa.binary()))


def _leaf(array: Array, field: ConnectField) -> tuple[list[Any], Mask]:
    """Values inside of others, as a column of their own would show them."""
    column = column_of(field)
    found = _converted(_Conversion(array, field, column))
    bad = np.zeros(len(array), np.bool_) if found.bad is None else found.bad
    if column.form is ValueForm.JSON:
        return [None if text is None else orjson.loads(text) for text in found.array.to_pylist()], bad
    if field.type == "boolean":
        return found.array.cast(pa.bool_()).to_pylist(), bad
    spelled = text_functions(column) if column.form not in _AS_THEY_ARE else None
    return (spelled[0](found.array) if spelled is not None else found.array).to_pylist(), bad


def _fixed_bytes(case: _Conversion) -> ParsedColumn:
    if case.field.type == "bytes":
        found = _decoded(case.array)
        made = fixed(found.array, case.column.arrow_type.byte_width)
        return ParsedColumn(made.array, either(found.bad, made.bad))
    spelled = text_functions(case.column)
    if spelled is not None:
        return each(case.array, case.column.arrow_type, lambda part: spelled[1](pc.utf8_lower(part)))
    named = case.array.dictionary_encode()
    packed = [_packed(case.column, text) for text in named.dictionary.to_pylist()]
    wrong = pa.array([value is None for value in packed], pa.bool_())
    bad = np.asarray(pc.fill_null(wrong.take(named.indices), False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return ParsedColumn(pa.array(packed, case.column.arrow_type).take(named.indices), bad)


def _packed(column: Column, text: str) -> bytes | None:
    try:
        return column.type.parse_value(text)
    except ValueError:
        return None


def _converted(case: _Conversion) -> ParsedColumn:
    match case.column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return _integers(case)
        case ValueForm.FLOAT:
            return _floats(case)
        case ValueForm.DECIMAL:
            return _decimals(case)
        case ValueForm.TEXT:
            return _texts(case)
        case ValueForm.MEMBERS:
            texts = _texts(case)
            return ParsedColumn(texts.array.dictionary_encode(), texts.bad)
        case ValueForm.JSON:
            return documents(case.array, case.field)
        case ValueForm.BYTES:
            return _bytes(case)
        case ValueForm.FIXED_BYTES:
            return _fixed_bytes(case)
        case ValueForm.GEOMETRY:
            return geometries(case.array)
        case ValueForm.VECTOR:
            return vectors(case.array, case.column)
        case ValueForm.DATE:
            return days(case.array)
        case ValueForm.TIMESTAMP:
            return timestamps(case.array, case.semantic, zoned=case.column.type.zoned)
        case ValueForm.TIME:
            return times(case.array, case.semantic)
        case unknown:
            assert_never(unknown)


# -- values that the source did not log


def unavailable(array: Array, field: ConnectField, column: Column, wire: WireFormat, placeholder: str = UNAVAILABLE) -> Mask | None:
    """The rows that hold Debezium's placeholder of a value that the source did not log (PostgreSQL's TOAST); None if there are none."""
    found = _find_placeholder(array, field, column, wire, placeholder)
    return found if found is not None and found.any() else None


def _find_placeholder(array: Array, field: ConnectField, column: Column, wire: WireFormat, placeholder: str) -> Mask | None:
    match field.type:
        case "string" | "map" if pa.types.is_string(array.type):
            return _one_of(array, _placeholder_texts(column, placeholder))
        case "bytes":
            raw = placeholder.encode()
            return _one_of(array, [b64encode(raw).decode()] if wire is WireFormat.JSON else [raw])
        case "array" if pa.types.is_list(array.type):
            return _placeholder_lists(array, placeholder)
        case "struct" if pa.types.is_struct(array.type):
            inner = next((part for part in field.fields if part.name in ("wkb", "value") and part.type == "bytes"), None)
            return None if inner is None else _find_placeholder(struct_parts(array)[inner.name], inner, column, wire, placeholder)
    return None


def _placeholder_texts(column: Column, placeholder: str) -> list[str]:
    raw = placeholder.encode()
    texts = [placeholder, f'{{"{placeholder}":"{placeholder}"}}']
    if column.form is ValueForm.BYTES:
        texts += [b64encode(raw).decode(), urlsafe_b64encode(raw).decode(), raw.hex()]
    return texts


def _one_of(array: Array, values: list[Any]) -> Mask:
    size = pc.binary_length(array)
    # The length rules out nearly every value without reading its bytes.
    lengths = pa.array([len(value.encode() if isinstance(value, str) else value) for value in values], size.type)
    if not pc.any(pc.is_in(size, lengths)).as_py():
        return np.zeros(len(array), np.bool_)
    found = pc.is_in(array, pa.array(values, array.type))
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _placeholder_lists(array: Array, placeholder: str) -> Mask:
    """A list of the one text (of UUIDs: of the one that Java makes of it), or of the numbers of its bytes."""
    found = np.zeros(len(array), np.bool_)
    text = pa.types.is_string(array.type.value_type)
    if not text and not pa.types.is_integer(array.type.value_type):
        return found
    expected: list[list[Any]] = [[placeholder], [_name_uuid(placeholder)]] if text else [list(placeholder.encode())]
    lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(lengths == len(expected[0])):
        found[row] = array[int(row)].as_py() in expected
    return found


@functools.cache
def _name_uuid(placeholder: str) -> str:
    """As Java's `nameUUIDFromBytes`."""
    return str(uuid.UUID(bytes=hashlib.md5(placeholder.encode(), usedforsecurity=False).digest(), version=3))


# -- lists, maps and structs as JSON text: what lies in them is what a column of its own would show


def documents(array: Array, field: ConnectField) -> ParsedColumn:
    """Return nested values as JSON texts; strings stay unchanged."""
    if not pa.types.is_nested(array.type):
        return ParsedColumn(array.cast(pa.string()))
    values, bad = _plain(array, field)
    texts = [None if value is None else orjson.dumps(value).decode() for value in values]
    return ParsedColumn(pa.array(texts, pa.string(), mask=bad), bad if bad.any() else None)


def _plain(array: Array, field: ConnectField) -> tuple[list[Any], Mask]:
    if pa.types.is_list(array.type) and field.items is not None:
        return _list_items(array, field.items)
    if pa.types.is_struct(array.type) and not field.semantic.startswith("io.debezium.data."):
        return _struct_values(array, field)
    if field.type == "map" and pa.types.is_string(array.type):
        return [None if text is None else orjson.loads(text) for text in array.to_pylist()], np.zeros(len(array), np.bool_)
    values, bad = _leaf(array, field)
    return [_json_value(value) for value in values], bad


def _list_items(array: Array, items: ConnectField) -> tuple[list[Any], Mask]:
    inner, wrong = _plain(array.flatten(), items)
    bad = np.zeros(len(array), np.bool_)
    if wrong.any():
        bad[pc.list_parent_indices(array).to_numpy()[wrong]] = True
    values: list[Any] = []
    at = 0
    for size in pc.list_value_length(array).to_pylist():
        values.append(None if size is None else inner[at : at + size])
        at += size or 0
    return values, bad


def _struct_values(array: Array, field: ConnectField) -> tuple[list[Any], Mask]:
    bad = np.zeros(len(array), np.bool_)
    parts: dict[str, list[Any]] = {}
    inner = struct_parts(array)
    for part in field.fields:
        parts[part.name], wrong = _plain(inner[part.name], part)
        bad |= wrong
    there = valid_rows(array)
    rows = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    return [row if valid else None for row, valid in zip(rows, there, strict=True)], bad & there


def _json_value(value: Any) -> Any:
    """What JSON has no form for, as text."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
