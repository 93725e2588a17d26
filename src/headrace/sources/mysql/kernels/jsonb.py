"""Converts MySQL's binary JSON to the text that the server's own SELECT returns, compiled.

Invariant: the text is a pure function of the document's bytes and equals the server's utf8mb4 rendering byte for byte, so a replay writes
the same text. The document is not trusted: every offset and length is checked against its container before use, and nesting is bounded as
in the server. Every visited header, key and value spends from a budget of as many bytes as the document has. The server never lets two
values share bytes, so only a damaged document can exceed the budget. Work and text are therefore linear in the document's size (see
`text_room`), and offsets that form a loop or a bomb return `MALFORMED`.

Layout (the server's `json_binary.h`): a type byte, then the value. Objects and arrays: count, size, key entries (offset, length), value
entries (type, offset or inlined value), keys, values. Offsets are relative to the container's first byte, 2 or 4 bytes wide.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.pointers import MALFORMED, NO_ROOM, Bytes, Pointer, byte_at, compiled, pointer_to, stack_slots
from headrace.sources.mysql.kernels.jsonb_scalars import (
    DOUBLE,
    INT16,
    INT32,
    INT64,
    LITERAL,
    OPAQUE,
    STRING,
    UINT16,
    UINT32,
    UINT64,
    put_literal,
    put_number,
    put_opaque,
    put_string,
    read_length,
    read_offset,
)

MAX_DEPTH = 100
"""The nesting depth that the server accepts."""
SLACK = 64
"""Room kept free while writing, so that numbers, literals and punctuation need one check per value."""

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_FRAMES = 2 * MAX_DEPTH
_FIXED_SIZES = np.zeros(256, np.int64)
for _kind, _size in ((LITERAL, 1), (INT16, 2), (UINT16, 2), (INT32, 4), (UINT32, 4), (INT64, 8), (UINT64, 8), (DOUBLE, 8)):
    _FIXED_SIZES[_kind] = _size


def text_room(size: int) -> int:
    """Return the bytes of `out` that suffice for the text of any document of `size` bytes: an escaped control character grows sixfold."""
    return 6 * size + 2 * SLACK


@compiled("int64(int64)", inlined=True)
def _width(kind: int) -> int:
    """Return the bytes of an offset in a container of this kind."""
    return 4 if kind & 1 else 2


@compiled("int64(int64, int64)", inlined=True)
def _header_size(kind: int, count: int) -> int:
    """Return the bytes before the first key or value of a container."""
    width = _width(kind)
    return 2 * width + count * (2 * width + 3 if kind < _SMALL_ARRAY else width + 1)


@compiled("Tuple((int64, int64))(int64, CPointer(uint8), int64, int64, CPointer(uint8), int64, int64, int64)", inlined=True)
def _put_scalar(kind: int, buf: Pointer, at: int, limit: int, out: Pointer, pos: int, out_end: int, buf_end: int) -> tuple[int, int]:
    """Write the scalar at buf[at:limit); return the position after it, and the bytes of the document that it spent."""
    size = int(_FIXED_SIZES[kind])
    if size > 0:
        if limit - at < size:
            return MALFORMED, 0
        if kind == LITERAL:
            return put_literal(byte_at(buf, at), out, pos), 0
        return put_number(kind, buf, at, out, pos), size if size == 8 else 0
    field_type = 0
    if kind == OPAQUE and at < limit:
        field_type = byte_at(buf, at)
        at += 1
    elif kind != STRING:
        return MALFORMED, 0
    coded = read_length(buf, at, limit)
    length = coded >> 3
    at += coded & 7
    if coded < 0 or length > limit - at:
        return MALFORMED, 0
    if kind == STRING:
        return put_string(buf, at, at + length, buf_end, out, pos, out_end), length + 1
    return put_opaque(field_type, buf, at, at + length, out, pos, out_end), length + 2


@compiled("Tuple((int64, int64))(CPointer(uint8), int64, int64, int64, int64, int64)", inlined=True)
def _find_key(buf: Pointer, base: int, kind: int, extent: int, count: int, index: int) -> tuple[int, int]:
    """Return start and length of a key of the object at `base`; a negative start if it lies outside."""
    width = _width(kind)
    entry = base + 2 * width + index * (width + 2)
    key, length = read_offset(buf, entry, width), read_offset(buf, entry + width, 2)
    if key < _header_size(kind, count) or key + length > extent:
        return MALFORMED, length
    return base + key, length


@compiled("Tuple((int64, int64, int64))(CPointer(uint8), int64, int64, int64, int64, int64)", inlined=True)
def _find_value(buf: Pointer, base: int, outer: int, extent: int, count: int, index: int) -> tuple[int, int, int]:
    """Return kind, start and limit of an element of the container at `base`; a negative start if it lies outside."""
    width = _width(outer)
    header = _header_size(outer, count)
    entry = base + header - (count - index) * (width + 1)
    kind = byte_at(buf, entry)
    if LITERAL <= kind <= (UINT32 if width == 4 else UINT16):
        return kind, entry + 1, entry + 1 + width
    offset = read_offset(buf, entry + 1, width)
    return kind, base + offset if header <= offset <= extent else MALFORMED, base + extent


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64)")
def _put_document(buf: Pointer, start: int, end: int, buf_end: int, out: Pointer, pos: int, out_end: int) -> int:
    """Write the text of a document of at least one byte. `out` has `SLACK` bytes left."""
    room = out_end - SLACK
    frames = stack_slots(_FRAMES)
    depth = 0
    kind, at, limit = byte_at(buf, start), start + 1, end
    budget = end - at
    # The open container: its kind, first byte, size, number of elements, and the index of the next element.
    outer, base, extent, count, index = 0, at, 0, 0, 0
    while True:
        if kind <= _LARGE_ARRAY:
            width = _width(kind)
            if limit - at < 2 * width or depth == MAX_DEPTH:
                return MALFORMED
            frames[2 * depth] = base
            frames[2 * depth + 1] = index << 2 | outer
            depth += 1
            outer, base, index = kind, at, 0
            count, extent = read_offset(buf, at, width), read_offset(buf, at + width, width)
            spent = _header_size(kind, count)
            if extent > limit - at or spent > extent:
                return MALFORMED
            out[pos] = 123 if kind < _SMALL_ARRAY else 91
            pos += 1
        else:
            pos, spent = _put_scalar(kind, buf, at, limit, out, pos, out_end, buf_end)
        budget -= spent
        if pos < 0:
            return pos
        if budget < 0:
            return MALFORMED
        while depth > 0 and index == count:
            if pos > room:
                return NO_ROOM
            out[pos] = 125 if outer < _SMALL_ARRAY else 93
            pos += 1
            depth -= 1
            base, index, outer = int(frames[2 * depth]), int(frames[2 * depth + 1]) >> 2, int(frames[2 * depth + 1]) & 3
            if depth > 0:
                count, extent = read_offset(buf, base, _width(outer)), read_offset(buf, base + _width(outer), _width(outer))
        if depth == 0:
            return pos
        if pos > room:
            return NO_ROOM
        if index > 0:
            out[pos] = 44
            out[pos + 1] = 32
            pos += 2
        if outer < _SMALL_ARRAY:
            key, length = _find_key(buf, base, outer, extent, count, index)
            budget -= length
            if key < 0 or budget < 0:
                return MALFORMED
            pos = put_string(buf, key, key + length, buf_end, out, pos, out_end)
            if pos < 0 or pos > room:
                return pos if pos < 0 else NO_ROOM
            out[pos] = 58
            out[pos + 1] = 32
            pos += 2
        kind, at, limit = _find_value(buf, base, outer, extent, count, index)
        if at < 0:
            return MALFORMED
        index += 1


@compiled("int64(CPointer(uint8), int64, int64, int64, CPointer(uint8), int64, int64)", inlined=True)
def put_json(buf: Pointer, start: int, end: int, buf_end: int, out: Pointer, out_pos: int, out_end: int) -> int:
    """`json_to_text` on pointers, for kernels that have checked start, end and out_pos against the ends of the memory."""
    if out_end - out_pos < SLACK:
        return NO_ROOM
    if start == end:
        return put_literal(0, out, out_pos)
    return _put_document(buf, start, end, buf_end, out, out_pos, out_end)


@compiled("int64(uint8[::1], int64, int64, uint8[::1], int64)")
def json_to_text(buf: Bytes, start: int, end: int, out: Bytes, out_pos: int) -> int:
    """Write the text of the binary document buf[start:end) at out[out_pos] and return the position after it.

    Return `NO_ROOM` if `out` is too short (never if `text_room(end - start)` bytes are left, or the text's own length plus `SLACK`),
    `MALFORMED` if the server could not have written the document. Bytes of `out` after the returned position are scratch: pass a slice if
    other data follows. An empty document is JSON null, as in the server.
    """
    if start < 0 or end < start or end > len(buf) or out_pos < 0:
        return MALFORMED
    return put_json(pointer_to(buf), start, end, len(buf), pointer_to(out), out_pos, len(out))
