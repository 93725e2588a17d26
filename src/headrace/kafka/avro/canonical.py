"""A schema's canonical form and fingerprint, as the Avro specification defines them: schemas with equal ones are equal."""

from __future__ import annotations

import json
from typing import Final

from headrace.kafka.avro.schema import PRIMITIVES, AvroKind, AvroSchema, AvroType

_EMPTY: Final = 0xC15D213AA4D7A795


def canonical_form(schema: AvroSchema) -> str:
    """Return the "Parsing Canonical Form": only the parts that matter for reading data."""
    return _form(schema.root, set())


def fingerprint(schema: AvroSchema) -> int:
    """Return the CRC-64-AVRO of the canonical form, unsigned."""
    number = _EMPTY
    for byte in canonical_form(schema).encode():
        number = number >> 8 ^ _TABLE[(number ^ byte) & 0xFF]
    return number


def _form(found: AvroType, seen: set[str]) -> str:
    if found.kind in PRIMITIVES:
        return _text(found.kind.value)
    if found.kind is AvroKind.UNION:
        return f"[{','.join(_form(branch, seen) for branch in found.branches)}]"
    if found.kind is AvroKind.ARRAY:
        return f'{{"type":"array","items":{_form(found.content, seen)}}}'
    if found.kind is AvroKind.MAP:
        return f'{{"type":"map","values":{_form(found.content, seen)}}}'
    if found.name in seen:
        return _text(found.name)
    seen.add(found.name)
    head = f'{{"name":{_text(found.name)},"type":"{found.kind.value}"'
    if found.kind is AvroKind.FIXED:
        return f'{head},"size":{found.size}}}'
    if found.kind is AvroKind.ENUM:
        return f'{head},"symbols":[{",".join(map(_text, found.symbols))}]}}'
    fields = ",".join(f'{{"name":{_text(field.name)},"type":{_form(field.type, seen)}}}' for field in found.fields)
    return f'{head},"fields":[{fields}]}}'


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        number = byte
        for _ in range(8):
            number = number >> 1 ^ (_EMPTY if number & 1 else 0)
        found.append(number)
    return tuple(found)


_TABLE: Final = _table()
