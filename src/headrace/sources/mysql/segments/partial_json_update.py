"""Converts partial updates of JSON columns to full ones.

With `binlog_row_value_options = PARTIAL_JSON` MySQL logs only the changed parts of a document. The before image has the full document, so
the full after image can be computed: the result is the UPDATE_ROWS event that the server would have written without the setting. It runs
Python per row, which is acceptable: such a row carries large documents, and only partial updates come here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headrace.errors import DefiniteError
from headrace.sources.mysql.events import table_map as tablemap
from headrace.sources.mysql.events.compressed_event import packed_integer, with_header
from headrace.sources.mysql.events.event_types import HEADER_SIZE, UPDATE_ROWS_EVENT, truncated
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.kernels import row_images
from headrace.sources.mysql.rows.column_layout import column_layout
from headrace.sources.mysql.rows.jsonb_tree import REMOVE, Node, apply_change, parse_document, parse_path, write_document

_PARTIAL_JSON_OPTION: Final = 1


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a table's columns in an image."""

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
    layout = _layout(table_map, place)
    body = bytes(event[HEADER_SIZE:])
    try:
        at = 8 + int.from_bytes(body[8:10], "little")
        width, at = packed_integer(memoryview(body), at)
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
def _layout(table_map: bytes, place: str) -> _Layout:
    parsed = parse_table_map(table_map, place)
    layouts = [column_layout(*column) for column in zip(parsed.types, parsed.metadata, strict=True)]
    sizes = []
    for layout in layouts:
        if layout is None:
            raise DefiniteError(f"a column of {parsed.name} is stored in a way that cannot be read", place=place)
        encoding, a, b = layout
        sizes.append((int(row_images.fixed_size(encoding, a, b)), a))
    return _Layout(tuple(sizes), tuple(c for c, kind in enumerate(parsed.types) if kind == tablemap.JSON))


def _check_whole(present: bytes, width: int, place: str) -> None:
    """Raise unless both images hold all columns."""
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
    options, at = packed_integer(memoryview(body), at)
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
    view, at = memoryview(changes), 0
    while at < len(changes):
        operation = changes[at]
        size, at = packed_integer(view, at + 1)
        path = parse_path(_slice(changes, at, size).decode())
        at += size
        value: Node | None = None
        if operation != REMOVE:
            size, at = packed_integer(view, at)
            value = parse_document(_slice(changes, at, size))
            at += size
        root = apply_change(root, operation, path, value)
    return write_document(root)


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError("change")
    return data[at : at + size]
