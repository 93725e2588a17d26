"""mypipe's messages, written by fastavro."""

from __future__ import annotations

import io
import struct
import uuid
from typing import Any

import fastavro

from headrace.kafka.mypipe.wire_format import POSITION_HEADER, Mutation, generic_schema

GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def message(mutation: Mutation, schema: dict[str, Any], record: dict[str, Any], number: int | None = None) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return struct.pack(">BBh", 0, mutation, int(mutation) if number is None else number) + body.getvalue()


def head(table: str = "orders") -> dict[str, Any]:
    return {"database": "shop", "table": table, "tableId": 7}


def generic_message(mutation: Mutation, *, old_shape: bool = False, number: int | None = None, **maps: Any) -> bytes:
    schema = generic_schema(mutation, old_shape=old_shape)
    empty = {field["name"]: {} for field in schema["fields"] if isinstance(field["type"], dict)}
    txid = {} if old_shape else {"txid": GUID.bytes}
    return message(mutation, schema, {**head(), **txid, **empty, **maps}, number)


def insert_message(number: int, **options: Any) -> bytes:
    return generic_message(Mutation.INSERT, integers={"id": number}, strings={"state": f"s{number}"}, **options)


def position_header(version: int) -> list[tuple[str, bytes]]:
    return [(POSITION_HEADER, version.to_bytes(8, "big"))]
