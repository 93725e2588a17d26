"""Converts partial updates of JSON columns to full ones.

With `binlog_row_value_options = PARTIAL_JSON` MySQL logs only the changed parts of a document. The before image has the full document, so
the full after image can be computed: the result is the UPDATE_ROWS event that the server would have written without the setting. It runs
Python per row, which is acceptable: such a row carries large documents, and only partial updates come here.

A document becomes a tree, and then binary JSON again. A scalar keeps its binary form, so the stored value is preserved; objects are written
in the server's order (keys by length, then bytes). Documents are written with wide offsets, which every reader of the format accepts. The
input is not trusted: a value that does not fit its container raises `ValueError`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.sources.mysql.events import table_map as tablemap
from headrace.sources.mysql.events.compressed_event import with_header
from headrace.sources.mysql.events.event_types import HEADER_SIZE, UPDATE_ROWS_EVENT, packed_integer, truncated
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.kernels import row_images
from headrace.sources.mysql.kernels.jsonb import MAX_DEPTH
from headrace.sources.mysql.kernels.jsonb_scalars import DOUBLE, INT16, INT32, INT64, LITERAL, OPAQUE, STRING, UINT16, UINT32, UINT64
from headrace.sources.mysql.rows.column_layout import column_layout

_PARTIAL_JSON_OPTION: Final = 1
REPLACE, INSERT, REMOVE = range(3)
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_FIXED: Final = {LITERAL: 1, INT16: 2, UINT16: 2, INT32: 4, UINT32: 4, INT64: 8, UINT64: 8, DOUBLE: 8}
_INLINED: Final = {2: (LITERAL, INT16, UINT16), 4: (LITERAL, INT16, UINT16, INT32, UINT32)}


@dataclass(frozen=True, slots=True)
class _Layout:
    sizes: tuple[tuple[int, int], ...]
    """Per column, its size; or 0 and the bytes of its length."""
    documents: tuple[int, ...]
    """Which columns are JSON."""

    @property
    def bitmap(self) -> int:
        return (len(self.sizes) + 7) // 8


def plain_update(event: memoryview, table_map: bytes, place: str) -> bytes:
    """Return the UPDATE_ROWS event for a PARTIAL_UPDATE_ROWS event, given without checksum.

    `table_map` is the body of its table map after table id and flags.
    """
    try:
        layout = _layout(table_map)
    except DefiniteError as error:
        error.place = place
        raise
    body = bytes(event[HEADER_SIZE:])
    try:
        at = 8 + int.from_bytes(body[8:10], "little")
        width, at = packed_integer(body, at)
        present = body[at : at + 2 * layout.bitmap]
        at += len(present)
        if width != len(layout.sizes) or len(present) != 2 * layout.bitmap:
            raise ValueError("width")
        _check_whole(present, width, place)
        out = bytearray(body[:at])
        while at < len(body):
            at = _copy_row(body, at, layout, out)
    except (IndexError, KeyError, ValueError) as error:
        raise truncated("PARTIAL_UPDATE_ROWS", place) from error
    return with_header(event, UPDATE_ROWS_EVENT, bytes(out))


@lru_cache(maxsize=256)
def _layout(table_map: bytes) -> _Layout:
    parsed = parse_table_map(table_map, "")
    layouts = [column_layout(*column) for column in zip(parsed.types, parsed.metadata, strict=True)]
    sizes = []
    for layout in layouts:
        if layout is None:
            raise DefiniteError(f"a column of {parsed.name} is stored in a way that cannot be read")
        encoding, a, b = layout
        sizes.append((int(row_images.fixed_size(encoding, a, b)), a))
    return _Layout(tuple(sizes), tuple(c for c, kind in enumerate(parsed.types) if kind == tablemap.JSON))


def _check_whole(present: bytes, width: int, place: str) -> None:
    half = len(present) // 2
    for bitmap in (present[:half], present[half:]):
        if int.from_bytes(bitmap, "little") & (1 << width) - 1 != (1 << width) - 1:
            raise DefiniteError(
                "a row event does not hold all columns",
                place=place,
                hint="SET GLOBAL binlog_row_image = FULL on the source, for its sessions too",
            )


def _copy_row(body: bytes, at: int, layout: _Layout, out: bytearray) -> int:
    """Append one row's full images to `out`; return the position after them in `body`."""
    start = at
    before, at = _bounds(body, at, layout)
    out += body[start:at]
    options, at = packed_integer(body, at)
    partial: set[int] = set()
    if options & _PARTIAL_JSON_OPTION:
        size = (len(layout.documents) + 7) // 8
        bits = int.from_bytes(body[at : at + size], "little")
        partial = {c for i, c in enumerate(layout.documents) if bits >> i & 1}
        at += size
    start = at
    after, at = _bounds(body, at, layout)
    out += body[start : start + layout.bitmap]
    for c, span in enumerate(after):
        if span is None:
            continue
        value = body[span[0] : span[1]]
        if c in partial:
            old = before[c]
            if old is None:
                raise ValueError("a partial update of NULL")
            prefix = layout.sizes[c][1]
            document = _changed(body[old[0] + prefix : old[1]], value[prefix:])
            value = len(document).to_bytes(prefix, "little") + document
        out += value
    return at


def _bounds(body: bytes, at: int, layout: _Layout) -> tuple[list[tuple[int, int] | None], int]:
    """Return the bounds of each value of the image at `at`, None for NULL, and the position after it."""
    nulls = int.from_bytes(body[at : at + layout.bitmap], "little")
    at += layout.bitmap
    found: list[tuple[int, int] | None] = []
    for c, (size, prefix) in enumerate(layout.sizes):
        if nulls >> c & 1:
            found.append(None)
            continue
        end = at + (size or prefix + int.from_bytes(body[at : at + prefix], "little"))
        found.append((at, end))
        at = end
    if at > len(body):
        raise ValueError("image")
    return found, at


def _changed(document: bytes, changes: bytes) -> bytes:
    """Return a document after the logged changes; the same bytes if there are none."""
    if not changes:
        return document
    root = parse_document(document)
    at = 0
    while at < len(changes):
        operation = changes[at]
        size, at = packed_integer(changes, at + 1)
        path = parse_path(_slice(changes, at, size).decode())
        at += size
        value: Node | None = None
        if operation != REMOVE:
            size, at = packed_integer(changes, at)
            value = parse_document(_slice(changes, at, size))
            at += size
        root = apply_change(root, operation, path, value)
    return write_document(root)


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError("change")
    return data[at : at + size]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value without children, in its binary form."""

    kind: int
    raw: bytes


Node = Scalar | list["Node"] | dict[bytes, "Node"]
Leg = bytes | int
"""A step of a path: a member's name, or an element's index (negative from the end, -1 the last)."""


def parse_document(data: bytes) -> Node:
    """Parse a binary document; an empty one is JSON null, as in the server."""
    return _parse(data[0], data, 1, len(data), 0) if data else Scalar(LITERAL, b"\0")


def _parse(kind: int, data: bytes, at: int, end: int, depth: int) -> Node:
    if kind > _LARGE_ARRAY:
        return Scalar(kind, _scalar(kind, data, at, end))
    width = 4 if kind & 1 else 2
    if depth == MAX_DEPTH or at + 2 * width > end:
        raise ValueError("container")
    count, extent = _number(data, at, width), _number(data, at + width, width)
    keyed = kind <= _LARGE_OBJECT
    entries = at + 2 * width + (count * (width + 2) if keyed else 0)
    stop = at + extent
    if stop > end or entries + count * (width + 1) > stop:
        raise ValueError("container")
    values: list[Node] = []
    for i in range(count):
        entry = entries + i * (width + 1)
        inner = data[entry]
        if inner in _INLINED[width]:
            values.append(_parse(inner, data, entry + 1, entry + 1 + width, depth + 1))
        else:
            values.append(_parse(inner, data, at + _number(data, entry + 1, width), stop, depth + 1))
    if not keyed:
        return values
    names = []
    for i in range(count):
        entry = at + 2 * width + i * (width + 2)
        start, length = at + _number(data, entry, width), _number(data, entry + width, 2)
        if start + length > stop:
            raise ValueError("key")
        names.append(data[start : start + length])
    return dict(zip(names, values, strict=True))


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")


def _scalar(kind: int, data: bytes, at: int, end: int) -> bytes:
    """Return the bytes of a scalar, whose kind is stored elsewhere."""
    if kind in _FIXED:
        size = _FIXED[kind]
    elif kind in (STRING, OPAQUE):
        head = at + (1 if kind == OPAQUE else 0)
        length = shift = 0
        while True:
            if head >= end or shift > 28:
                raise ValueError("length")
            length |= (data[head] & 0x7F) << shift
            shift += 7
            head += 1
            if data[head - 1] < 0x80:
                break
        size = head + length - at
    else:
        raise ValueError("kind")
    if at + size > end:
        raise ValueError("scalar")
    return data[at : at + size]


def write_document(node: Node) -> bytes:
    kind, body = _written(node)
    return bytes([kind]) + body


def _written(node: Node) -> tuple[int, bytes]:
    if isinstance(node, Scalar):
        return node.kind, node.raw
    if isinstance(node, list):
        return _LARGE_ARRAY, _container([], node)
    names = sorted(node, key=lambda name: (len(name), name))
    return _LARGE_OBJECT, _container(names, [node[name] for name in names])


def _container(names: list[bytes], values: list[Node]) -> bytes:
    heads, entries, tail = bytearray(), bytearray(), bytearray()
    first = 8 + 6 * len(names) + 5 * len(values)
    for name in names:
        heads += (first + len(tail)).to_bytes(4, "little") + len(name).to_bytes(2, "little")
        tail += name
    for value in values:
        kind, body = _written(value)
        entries.append(kind)
        if kind in _INLINED[4]:
            entries += body.ljust(4, b"\0")
        else:
            entries += (first + len(tail)).to_bytes(4, "little")
            tail += body
    size = first + len(tail)
    return len(values).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(heads + entries + tail)


_LEG: Final = re.compile(
    r"""\s*(?:\.\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<name>[^\s."\[]+))|\[\s*(?:(?P<index>\d+)|last(?:\s*-\s*(?P<back>\d+))?)\s*\])"""
)


def parse_path(text: str) -> tuple[Leg, ...]:
    """Parse a path as the server writes it: `$.a."b c"[3]`."""
    if not text.startswith("$"):
        raise ValueError("path")
    legs: list[Leg] = []
    at = 1
    while at < len(text):
        match = _LEG.match(text, at)
        if match is None:
            raise ValueError("path")
        if match["quoted"] is not None:
            legs.append(str(json.loads(f'"{match["quoted"]}"', strict=False)).encode())
        elif match["name"] is not None:
            legs.append(match["name"].encode())
        else:
            legs.append(int(match["index"]) if match["index"] is not None else -1 - int(match["back"] or 0))
        at = match.end()
    return tuple(legs)


def apply_change(root: Node, operation: int, path: tuple[Leg, ...], value: Node | None) -> Node:
    """Return the document after one change; `root` is changed in place."""
    if not path:
        if operation != REPLACE or value is None:
            raise ValueError("operation")
        return value
    parent = root
    for leg in path[:-1]:
        parent = _step(parent, leg)
    leg = path[-1]
    if operation == INSERT and value is not None:
        _insert(parent, leg, value)
        return root
    _step(parent, leg)
    holder: Any = parent
    if operation == REMOVE:
        del holder[leg]
    elif operation == REPLACE and value is not None:
        holder[leg] = value
    else:
        raise ValueError("operation")
    return root


def _insert(parent: Node, leg: Leg, value: Node) -> None:
    if isinstance(parent, dict) and isinstance(leg, bytes) and leg not in parent:
        parent[leg] = value
    elif isinstance(parent, list) and isinstance(leg, int):
        # An index beyond either end means that end.
        parent.insert(leg if leg >= 0 else max(len(parent) + leg, 0), value)
    else:
        raise ValueError("insert")


def _step(node: Node, leg: Leg) -> Node:
    """Return the child at a leg, which must exist."""
    if isinstance(node, dict) and isinstance(leg, bytes) and leg in node:
        return node[leg]
    if isinstance(node, list) and isinstance(leg, int) and -len(node) <= leg < len(node):
        return node[leg]
    raise ValueError("path")
