"""MySQL's binary JSON as a tree for partial updates, and back.

Plain Python, for the documents of partial updates only. A scalar keeps its binary form, so the stored value is preserved; objects are
written in the server's order (keys by length, then bytes). Documents are written with wide offsets, which every reader of the format
accepts. The input is not trusted: a value that does not fit its container raises `ValueError`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from headrace.sources.mysql.kernels.jsonb import MAX_DEPTH
from headrace.sources.mysql.kernels.jsonb_scalars import DOUBLE, INT16, INT32, INT64, LITERAL, OPAQUE, STRING, UINT16, UINT32, UINT64

REPLACE, INSERT, REMOVE = range(3)
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_FIXED: Final = {LITERAL: 1, INT16: 2, UINT16: 2, INT32: 4, UINT32: 4, INT64: 8, UINT64: 8, DOUBLE: 8}
_INLINED: Final = {2: (LITERAL, INT16, UINT16), 4: (LITERAL, INT16, UINT16, INT32, UINT32)}


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
    """Return the binary document of a tree."""
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
