"""Encodes single values in Avro's binary encoding: the defaults of fields, once per schema."""

from __future__ import annotations

import struct
from typing import Any

from headrace.errors import DefiniteError
from headrace.kafka.avro.schema import AvroKind, AvroType


def encode_number(number: int) -> bytes:
    """Encode an int or a long: zigzag, seven bits per byte."""
    word = (number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while word > 0x7F:
        out.append(word & 0x7F | 0x80)
        word >>= 7
    out.append(word)
    return bytes(out)


def encode_run(content: bytes) -> bytes:
    """Encode a length and that many bytes."""
    return encode_number(len(content)) + content


def encode_default(found: AvroType, value: Any, place: str) -> bytes:
    """Encode a field's default from a schema's JSON: bytes are text of code points 0 to 255; a union uses the first branch that fits."""
    try:
        return _encode(found, value)
    except (TypeError, ValueError, KeyError, OverflowError, struct.error, AttributeError) as error:
        raise DefiniteError(
            f"the default of {place} in an Avro schema is not a valid {found.label}: {value!r}", hint="correct the schema"
        ) from error


def _encode(found: AvroType, value: Any) -> bytes:
    match found.kind:
        case AvroKind.NULL:
            return _when(value is None, b"")
        case AvroKind.BOOLEAN:
            return _when(isinstance(value, bool), b"\1" if value else b"\0")
        case AvroKind.INT | AvroKind.LONG:
            bits = 31 if found.kind is AvroKind.INT else 63
            return _when(isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits, encode_number(value))
        case AvroKind.FLOAT:
            return struct.pack("<f", _number(value))
        case AvroKind.DOUBLE:
            return struct.pack("<d", _number(value))
        case AvroKind.BYTES:
            return encode_run(value.encode("latin-1"))
        case AvroKind.STRING:
            return encode_run(value.encode())
        case AvroKind.FIXED:
            content = value.encode("latin-1")
            return _when(len(content) == found.size, content)
        case AvroKind.ENUM:
            return encode_number(found.symbols.index(value))
        case AvroKind.ARRAY:
            items = b"".join(_encode(found.content, item) for item in _of(list, value))
            return encode_number(len(value)) + items + b"\0" if value else b"\0"
        case AvroKind.MAP:
            entries = b"".join(encode_run(key.encode()) + _encode(found.content, item) for key, item in _of(dict, value).items())
            return encode_number(len(value)) + entries + b"\0" if value else b"\0"
        case AvroKind.RECORD:
            return b"".join(_encode(field.type, _of(dict, value).get(field.name, field.default)) for field in found.fields)
        case AvroKind.UNION:
            return _encode_branch(found, value)


def _encode_branch(found: AvroType, value: Any) -> bytes:
    for number, branch in enumerate(found.branches):
        try:
            return encode_number(number) + _encode(branch, value)
        except (TypeError, ValueError, KeyError, OverflowError, struct.error, AttributeError):
            continue
    raise ValueError(value)


def _when(fine: bool, content: bytes) -> bytes:
    if not fine:
        raise ValueError
    return content


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _of(wanted: type, value: Any) -> Any:
    if not isinstance(value, wanted):
        raise TypeError
    return value
