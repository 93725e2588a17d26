"""Parses whole responses to rows, with a check of the memory they need.

Invariant: nothing is decompressed or parsed that would exceed the limits of `bounded_client`, whatever the response claims. Callers run
inside `errors.translate_errors`, which translates the exceptions raised here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from headrace.sinks.clickhouse.server.bounded_client import ANSWER_BYTES, InvalidResponse, ResponseTooLarge

PARSED_BYTES: Final = 512 << 20
"""Of rows as Python values."""
_ROW_BYTES, _VALUE_BYTES = 120, 60
_BATCHES: Final = ("record batch", "dictionary")
_HEADER, _DATA, _LENGTH, _BUFFERS, _COMPRESSION = 2, 1, 0, 2, 3
"""Field numbers of Arrow's messages, dictionaries and record batches."""


def json_rows(raw: bytes, text: str | None = None) -> list[list[Any]]:
    """Parse rows of a format with one JSON array per line; `text` is the response if it was decoded leniently."""
    needed = len(raw) + _ROW_BYTES * raw.count(b"\n") + _VALUE_BYTES * raw.count(b",")
    if needed > PARSED_BYTES:
        raise ResponseTooLarge(f"its rows take more than {PARSED_BYTES >> 20} MiB of memory")
    rows = [json.loads(line) for line in (raw.decode() if text is None else text).split("\n") if line]
    if not all(isinstance(row, list) for row in rows):
        raise InvalidResponse("its rows are not arrays of JSON")
    return rows


def arrow_table(raw: bytes, width: int) -> pa.Table:
    """Parse an ArrowStream response with `width` columns, with strings as bytes."""
    try:
        _check_claims(raw)
        table = pa.ipc.open_stream(raw).read_all()
    except OSError as error:
        # Arrow raises OSError for a truncated or invalid stream.
        raise InvalidResponse(f"its columns cannot be read ({error})") from error
    # Arrow does not check offsets when it reads values.
    table.validate(full=True)
    if table.num_columns != width:
        raise InvalidResponse(f"it sent {table.num_columns} columns where {width} were requested")
    return table


def _check_claims(raw: bytes) -> None:
    needed = 0
    for message in pa.ipc.MessageReader.open_stream(raw):
        if message.type in _BATCHES:
            needed += _unpacked_bytes(message)
            if needed > ANSWER_BYTES:
                raise ResponseTooLarge(f"its columns take more than {ANSWER_BYTES >> 20} MiB of memory")


def _unpacked_bytes(message: Any) -> int:
    """Return the decompressed size of a batch's buffers; Arrow allocates what they claim."""
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")
    batch = _table(metadata, _uint32(metadata, 0), _HEADER)
    if batch is not None and message.type == "dictionary":
        batch = _table(metadata, batch, _DATA)
    if batch is None:
        raise InvalidResponse("its columns cannot be read")
    spans = list(_buffers(metadata, batch))
    if any(offset < 0 or length < 0 or offset + length > len(body) for offset, length in spans):
        raise InvalidResponse("its columns are longer than the answer")
    if _field(metadata, batch, _COMPRESSION) is None:
        sizes = [length for _, length in spans]
    else:
        # Each buffer starts with its decompressed length, or with -1 if it is not compressed.
        claims = [(struct.unpack_from("<q", body, offset)[0] if length >= 8 else 0, length) for offset, length in spans]
        sizes = [length if plain == -1 else plain for plain, length in claims]
    if any(size < 0 for size in sizes):
        raise InvalidResponse("its columns claim a negative length")
    place = _field(metadata, batch, _LENGTH)
    rows = struct.unpack_from("<q", metadata, place)[0] if place is not None else 0
    # A row takes at least one bit.
    return max(sum(sizes), rows // 8)


def _buffers(metadata: memoryview, batch: int) -> Iterator[tuple[int, int]]:
    place = _field(metadata, batch, _BUFFERS)
    if place is None:
        return
    first = place + _uint32(metadata, place)
    for index in range(_uint32(metadata, first)):
        yield struct.unpack_from("<qq", metadata, first + 4 + 16 * index)


def _field(data: memoryview, table: int, index: int) -> int | None:
    """Return the offset of a field of a FlatBuffers table; None for its default."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * index >= struct.unpack_from("<H", data, layout)[0]:
        return None
    offset = struct.unpack_from("<H", data, layout + 4 + 2 * index)[0]
    return table + offset if offset else None


def _table(data: memoryview, table: int, index: int) -> int | None:
    place = _field(data, table, index)
    return None if place is None else place + _uint32(data, place)


def _uint32(data: memoryview, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])
