"""Codecs of text, bytes, enums and sets, addresses and UUIDs; and of any kind as a String.

Invariant: see `codec`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.text_values import parse_uuids, text_functions
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.types.codec import Check, ColumnCodec, Recode, cast_to, compose
from headrace.sinks.clickhouse.types.type_names import StoredType, parse_stored_type

_ENUMS: Final = {"Enum8": pa.int8(), "Enum16": pa.int16()}
_WITHOUT_ZEROS: Final = "trim(TRAILING '\\0' FROM {})"
_SET_ARRAYS: Final = ("String", "LowCardinality(String)")
_PARSED: Final = (ValueForm.INTEGER, ValueForm.YEAR, ValueForm.DATE, ValueForm.FIXED_BYTES)
"""Forms whose text ClickHouse parses exactly to the default type."""
_STRINGS: Final = pa.list_(pa.field("item", pa.string(), nullable=False))
_FIXED_SOURCE: Final = re.compile(r"binary\((\d+)\)", re.IGNORECASE)
_JSON_LOSES: Final = "the text: order of keys, keys whose value is null or {}, how numbers are written (see docs/types.md)"


def text_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For text of any length, and JSON documents."""
    match stored.plain.name:
        case "String":
            return ColumnCodec(pa.string())
        case "FixedString":
            return _fixed(column, stored, cast_to(pa.binary()), cast_to(pa.string()))
        case "Enum8" | "Enum16":
            return _enum(stored, None, _decoded)
        case "UUID":
            caution = "text that is not a UUID in lower case"
            return ColumnCodec(
                pa.binary(16), parse_uuids, _decoded, read="toString({})", canonical="toString({})", comparable=False, caution=caution
            )
        case "JSON":
            checks = (Check("is not a JSON object, which is all that the type JSON holds", _not_object),)
            return ColumnCodec(
                pa.string(),
                restore=normalize_stored_documents,
                checks=checks,
                sent_as="Nullable(String)" if stored.nullable else "String",
                read="toString({})",
                canonical=None,
                comparable=False,
                caution="documents that are no objects, or that have a path twice",
                loses=_JSON_LOSES,
                kept=normalize_source_documents,
            )
    return None


def bytes_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For bytes of any length; 16 bytes also as UUID or IPv6."""
    match stored.plain.name:
        case "String":
            return ColumnCodec(pa.binary())
        case "FixedString":
            return _fixed(column, stored, None, cast_to(pa.binary()))
        case "UUID":
            return _of_width(column, 16, "UUIDStringToNum(toString({}))", compose(_storage, cast_to(pa.binary())))
        case "IPv6":
            return _of_width(column, 16, "CAST({} AS FixedString(16))", cast_to(pa.binary()))
    return None


def enum_or_set_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For the text of an ENUM's member, or of a SET's members."""
    match stored.plain.name:
        case "String" if stored.low_cardinality:
            return ColumnCodec(column.arrow_type, _distinct_dictionary, _named)
        case "String":
            return ColumnCodec(pa.string(), cast_to(pa.string()), _named)
        case "Enum8" | "Enum16" if not column.type.multiple:
            return _enum(stored, cast_to(pa.string()), _named, column.members)
        case "Array" if column.type.multiple and _spelled_inner(stored) in _SET_ARRAYS:
            read = "arrayStringConcat({}, ',')"
            caution = "NULL" if column.nullable else ""
            return ColumnCodec(_STRINGS, _members, _named, read=read, canonical=read, comparable=False, caution=caution)
    return None


def fixed_bytes_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For MariaDB's UUID, INET4 and INET6."""
    match (column.type.clickhouse, stored.plain.name):
        case ("UUID", "UUID"):
            return ColumnCodec(column.arrow_type, restore=_storage)
        case ("UUID", "FixedString") if stored.plain.number(0, 0) == 16:
            return ColumnCodec(column.arrow_type, canonical="toUUID(UUIDNumToString({}))", comparable=False)
        case ("IPv4", "IPv4"):
            return ColumnCodec(pa.uint32(), _numbers, compose(cast_to(pa.uint32()), _addresses))
        case ("IPv4", "UInt32"):
            return ColumnCodec(pa.uint32(), _numbers, compose(cast_to(pa.uint32()), _addresses), canonical="toIPv4({})", comparable=False)
        case ("IPv6", "IPv6"):
            return ColumnCodec(column.arrow_type)
        case ("IPv6", "FixedString") if stored.plain.number(0, 0) == 16:
            return ColumnCodec(column.arrow_type, canonical=None, comparable=False)
    return None


def vector_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For MySQL's VECTOR. An Array cannot be NULL: a NULL vector is stored as the empty array, which no vector is."""
    inner = _spelled_inner(stored)
    if stored.plain.name != "Array" or inner not in ("Float32", "Float64"):
        return None
    wire = column.arrow_type if inner == "Float32" else pa.list_(pa.field("item", pa.float64(), nullable=False))
    recode = compose(_without_nulls, None if inner == "Float32" else cast_to(wire))
    restore = compose(cast_to(column.arrow_type), _with_nulls if column.nullable else None)
    canonical = "{}" if inner == "Float32" else "arrayMap(x -> toFloat32(x), {})"
    return ColumnCodec(wire, recode, restore, null_as_value=column.nullable, canonical=canonical, comparable=inner == "Float32")


def canonical_text_codec(column: Column, stored: StoredType) -> ColumnCodec | None:
    """For any kind with a canonical text, as String."""
    made = text_functions(column) if stored.plain.name == "String" else None
    if made is None:
        return None
    spell, read = made
    kind = column.type.clickhouse if column.form in _PARSED else None
    cast = "accurateCast" if "Int" in (kind or "") else "CAST"
    canonical = None if kind is None else f"{cast}({{}}, '{f'Nullable({kind})' if stored.nullable else kind}')"
    return ColumnCodec(pa.string(), spell, compose(_decoded, read), canonical=canonical, comparable=False)


def _spelled_inner(stored: StoredType) -> str:
    inner = stored.plain.inner()
    return "" if inner is None else parse_stored_type(inner.sql_name).sql_name


def _fixed(column: Column, stored: StoredType, to_bytes: Recode | None, restore: Recode | None) -> ColumnCodec:
    """For FixedString, which the server pads with zeros: values that end with a zero byte or are too long are rejected."""
    width = stored.plain.number(0, 0)
    source = _FIXED_SOURCE.fullmatch(column.source_type)
    if source is not None and int(source.group(1)) == width:
        return ColumnCodec(pa.binary(width), cast_to(pa.binary(width)), cast_to(pa.binary()))
    why = f"is longer than the {width} bytes of {stored.plain.sql_name}, or ends with a zero byte, which it would not keep"
    find = compose(to_bytes, lambda array: _not_padded(array, width))
    assert find is not None
    caution = f"more than {width} bytes, or a zero byte at the end"
    return ColumnCodec(
        pa.binary(),
        to_bytes,
        compose(cast_to(pa.binary()), restore),
        checks=(Check(why, find),),
        read=_WITHOUT_ZEROS,
        canonical=_WITHOUT_ZEROS,
        comparable=False,
        caution=caution,
    )


def _not_padded(array: Any, width: int) -> Any | None:
    bad = pc.or_(pc.greater(pc.binary_length(array), width), pc.ends_with(array, b"\0"))
    return bad if pc.any(bad).as_py() else None


def _of_width(column: Column, width: int, canonical: str, restore: Recode | None) -> ColumnCodec:
    source = _FIXED_SOURCE.fullmatch(column.source_type)
    caution = "" if source is not None and int(source.group(1)) == width else f"anything but {width} bytes"
    return ColumnCodec(pa.binary(width), cast_to(pa.binary(width)), restore, canonical=canonical, comparable=False, caution=caution)


def _enum(stored: StoredType, to_text: Recode | None, restore: Recode, needed: tuple[str, ...] | None = None) -> ColumnCodec:
    numbers = stored.plain.members
    wire = _ENUMS[stored.plain.name]
    names, values = pa.array(list(numbers), pa.string()), pa.array(list(numbers.values()), wire)
    look_up = compose(to_text, lambda array: pc.index_in(array, names))
    assert look_up is not None
    places: Recode = look_up

    def find(array: Any) -> Any | None:
        found = places(array)
        if found.null_count == array.null_count:
            return None
        bad = pc.and_(pc.is_null(found), pc.is_valid(array))
        return bad if pc.any(bad).as_py() else None

    missing = "text that is no member" if needed is None else ", ".join(map(quote_text, sorted({"", *needed} - set(numbers))[:5]))
    caution = missing if needed is None or not missing else f"the members that it lacks: {missing}"
    check = Check(f"is no member of {stored.plain.name} as the column has it", find)
    recode = compose(places, values.take)
    return ColumnCodec(
        wire, recode, restore, checks=(check,), read="toString({})", canonical="toString({})", comparable=False, caution=caution
    )


def _not_object(array: Any) -> Any | None:
    good = pc.starts_with(pc.utf8_ltrim(array, " \t\r\n"), "{")
    return None if pc.all(good).as_py() else pc.invert(good)


def _decoded(array: Any) -> Any:
    """Decode the server's bytes as UTF-8; strict."""
    return array.cast(pa.string())


def _named(array: Any) -> Any:
    return array.cast(pa.string()).dictionary_encode()


def _members(array: Any) -> Any:
    """Return the members of each set; none for the empty text."""
    text = array.cast(pa.string())
    lists = pc.split_pattern(text, ",")
    empty = pc.equal(text, "")
    if pc.any(empty).as_py():
        # Splitting an empty text gives one empty text.
        lists = pc.if_else(empty, pa.scalar([], lists.type), lists)
    return lists.cast(_STRINGS)


def _storage(array: Any) -> Any:
    """Return the bytes of Arrow's extension type for UUIDs."""
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _distinct_dictionary(array: Any) -> Any:
    """Return the strings with a dictionary without NULLs and duplicates, which the server rejects."""
    dictionary = array.dictionary
    if dictionary.null_count == 0 and len(pc.unique(dictionary)) == len(dictionary):
        return array
    return array.cast(array.type.value_type).dictionary_encode()


def _numbers(array: Any) -> Any:
    """Convert addresses of four bytes, most significant first, to numbers."""
    data = np.frombuffer(array.buffers()[1], dtype=">u4", count=len(array), offset=4 * array.offset)
    return pa.array(data.astype(np.uint32), mask=_nulls(array))


def _addresses(array: Any) -> Any:
    data = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(">u4")
    plain = pa.Array.from_buffers(pa.binary(4), len(array), [None, pa.py_buffer(data.tobytes())])
    return pc.if_else(pc.is_valid(array), plain, pa.scalar(None, pa.binary(4)))


def _without_nulls(array: Any) -> Any:
    """Replace NULL by the empty list; the range of a NULL is already empty."""
    return pa.ListArray.from_arrays(array.offsets, array.values, type=array.type)


def _with_nulls(array: Any) -> Any:
    empty = np.asarray(pc.equal(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), dtype=bool)
    return pa.ListArray.from_arrays(array.offsets, array.values, type=array.type, mask=pa.array(empty)) if empty.any() else array


def _nulls(array: Any) -> Any:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=bool) if array.null_count else None


_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def normalize_source_documents(array: Any) -> Any:
    """Return the source's documents as the type stores them."""
    return _canonical(array, _source_integer)


def normalize_stored_documents(array: Any) -> Any:
    """Return the stored documents in the same form."""
    return _canonical(array.cast(pa.string()), _stored_integer)


def _canonical(array: Any, integer: Any) -> Any:
    texts = [None if text is None else _canonical_text(text, integer) for text in array.to_pylist()]
    return pa.array(texts, pa.string())


def _canonical_text(text: str, integer: Any) -> str:
    return json.dumps(_kept(json.loads(text, parse_int=integer)), sort_keys=True, ensure_ascii=False)


def _source_integer(digits: str) -> int | float | str:
    number = int(digits)
    if digits == "-0":
        return -0.0
    return number if _LEAST <= number <= _MOST else digits


def _stored_integer(digits: str) -> int | float:
    """Parse an integer that the type rendered: an integer, or a float with an integral value."""
    number = int(digits)
    return number if _LEAST <= number <= _MOST and digits != "-0" else float(digits)


def _kept(value: Any) -> Any:
    match value:
        case dict():
            return dict(_paths(value))
        case list():
            return [_kept(float(one) if type(one) is int else one) for one in value]
        case float() if value.is_integer() and _LEAST <= value <= _MOST and str(value) != "-0.0":
            return int(value)
    return value


def _paths(document: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{before}{key}.")
        elif value is not None:
            yield before + key, _kept(value)
