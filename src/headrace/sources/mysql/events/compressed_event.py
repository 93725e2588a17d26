"""Decompresses events, one at a time.

MySQL compresses a transaction into one TRANSACTION_PAYLOAD event (zstd); MariaDB compresses the rows of a row event or the text of a
statement (zlib). Decompressed, they are plain events without checksums. Memory is bounded by the largest plain event: a payload's content
streams. Its size must be exactly the one in the event's header, because addresses depend on it (see `event_expander`). Any other size is
reported as damage.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.sources.mysql.events.event_types import HEADER_SIZE, QUERY_COMPRESSED_EVENT, QUERY_EVENT, packed_integer, truncated

_CHUNK_BYTES: Final = 1 << 20
_PAYLOAD_END, _PAYLOAD_COMPRESSION, _PAYLOAD_SIZE = 0, 2, 3
_ZSTD, _NONE = 0, 255
_PLAIN_KINDS: Final = {QUERY_COMPRESSED_EVENT: QUERY_EVENT, 166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""The plain counterpart of each of MariaDB's compressed events."""
_UPDATES: Final = (167, 170)


def event_size(event: memoryview, at: int = 0) -> int:
    return int.from_bytes(event[at + 9 : at + 13], "little")


def with_header(event: memoryview, kind: int, body: bytes) -> bytes:
    """Return an event with another kind and body, but otherwise the same header, without checksum."""
    head = bytearray(event[:HEADER_SIZE])
    head[4] = kind
    head[9:13] = (HEADER_SIZE + len(body)).to_bytes(4, "little")
    return bytes(head) + body


def inner_events(payload: memoryview, place: str) -> Iterator[memoryview]:
    """Yield the events in the body of a TRANSACTION_PAYLOAD event, in order."""
    compression, size, at = _payload_head(payload, place)
    content = pa.BufferReader(pa.py_buffer(payload[at:]))
    if compression == _ZSTD:
        content = pa.CompressedInputStream(content, "zstd")
    elif compression != _NONE:
        raise DefiniteError(f"a transaction is compressed in a way ({compression}) that is not known", place=place)
    rest, total = b"", 0
    while chunk := _read(content, max(_CHUNK_BYTES, len(rest)), place):
        total += len(chunk)
        data = memoryview(rest + chunk if rest else chunk)
        at = 0
        while at + HEADER_SIZE <= len(data):
            length = event_size(data, at)
            if length < HEADER_SIZE or length > size or total > size:
                raise truncated("TRANSACTION_PAYLOAD", place)
            if at + length > len(data):
                break
            yield data[at : at + length]
            at += length
        rest = bytes(data[at:])
    if rest or total != size:
        raise truncated("TRANSACTION_PAYLOAD", place)


def _read(content: pa.NativeFile, size: int, place: str) -> bytes:
    try:
        return bytes(content.read(size))
    except (OSError, pa.ArrowException) as error:
        raise truncated("TRANSACTION_PAYLOAD", place) from error


def _payload_head(body: memoryview, place: str) -> tuple[int, int, int]:
    fields: dict[int, int] = {}
    at = 0
    try:
        while True:
            field, at = packed_integer(body, at)
            if field == _PAYLOAD_END:
                return fields[_PAYLOAD_COMPRESSION], fields[_PAYLOAD_SIZE], at
            length, at = packed_integer(body, at)
            fields[field], _ = packed_integer(body, at)
            at += length
    except (IndexError, KeyError) as error:
        raise truncated("TRANSACTION_PAYLOAD", place) from error


def plain_event(event: memoryview, place: str) -> bytes:
    """Return the plain event for one of MariaDB's compressed events, given without checksum."""
    kind = event[4]
    at = _record_start(event, kind, place)
    return with_header(event, _PLAIN_KINDS[kind], bytes(event[HEADER_SIZE:at]) + _inflate(event[at:], place))


def _record_start(event: memoryview, kind: int, place: str) -> int:
    at = HEADER_SIZE
    try:
        if kind == QUERY_COMPRESSED_EVENT:
            return at + 13 + int.from_bytes(event[at + 11 : at + 13], "little") + event[at + 8] + 1
        at += 8
        if kind >= 169:
            at += int.from_bytes(event[at : at + 2], "little")
        width, at = packed_integer(event, at)
        return at + (width + 7) // 8 * (2 if kind in _UPDATES else 1)
    except (IndexError, KeyError) as error:
        raise truncated("compressed", place) from error


def _inflate(record: memoryview, place: str) -> bytes:
    """Decompress MariaDB's record: marker, algorithm and width of the length; the length; zlib data."""
    width = record[0] & 7 if len(record) else 0
    if not 1 <= width <= 4 or record[0] & 0xF0 != 0x80 or len(record) < 1 + width:
        raise truncated("compressed", place)
    size = int.from_bytes(record[1 : 1 + width], "big")
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(record[1 + width :], size + 1)
    except zlib.error as error:
        raise truncated("compressed", place) from error
    if len(data) != size or not inflater.eof:
        raise truncated("compressed", place)
    return data
