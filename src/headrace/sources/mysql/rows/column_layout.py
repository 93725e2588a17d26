"""The layout of a column's values in a row image, from the table map alone.

It needs no schema: it suffices to step over any row, and so to count rows, also of tables that are not replicated. The decoder interprets
the values and compares them with the schema.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.sources.mysql.events import table_map as tablemap
from headrace.sources.mysql.events.table_map import TableMap
from headrace.sources.mysql.kernels import row_images

Layout = tuple[int, int, int]
"""An encoding of `row_images` and its two parameters."""

_FIXED: Final[dict[int, Layout]] = {
    tablemap.TINY: (row_images.INT, 1, 0),
    tablemap.SHORT: (row_images.INT, 2, 0),
    tablemap.INT24: (row_images.INT, 3, 0),
    tablemap.LONG: (row_images.INT, 4, 0),
    tablemap.LONGLONG: (row_images.INT, 8, 0),
    tablemap.FLOAT: (row_images.UINT, 4, 0),
    tablemap.DOUBLE: (row_images.UINT, 8, 0),
    tablemap.YEAR: (row_images.YEAR, 0, 0),
    tablemap.DATE: (row_images.DATE, 0, 0),
}
_FRACTIONAL: Final = {
    tablemap.DATETIME2: row_images.DATETIME2,
    tablemap.TIMESTAMP2: row_images.TIMESTAMP2,
    tablemap.TIME2: row_images.TIME2,
}
OLD_TEMPORAL: Final = {
    tablemap.DATETIME: row_images.OLD_DATETIME,
    tablemap.TIMESTAMP: row_images.OLD_TIMESTAMP,
    tablemap.TIME: row_images.OLD_TIME,
}
"""Forms older than MySQL 5.6. Their fractional digits, which only MariaDB has, are not in the table map but in the schema."""


def column_layout(stored: int, metadata: int) -> Layout | None:
    """Return the layout of a stored type, or None if it is unknown. For an old temporal type, `metadata` is the number of digits."""
    if stored in _FIXED:
        return _FIXED[stored]
    if stored in _FRACTIONAL and metadata <= 6:
        return _FRACTIONAL[stored], metadata, 0
    if stored in OLD_TEMPORAL and metadata <= 6:
        return OLD_TEMPORAL[stored], metadata, 0
    if stored == tablemap.NEWDECIMAL:
        return row_images.DECIMAL, metadata >> 8, metadata & 255
    if stored in (tablemap.VARCHAR, tablemap.VAR_STRING, tablemap.STRING, tablemap.VARCHAR_COMPRESSED):
        return row_images.VAR, 1 if metadata < 256 else 2, 0
    if stored in (tablemap.BLOB, tablemap.GEOMETRY, tablemap.VECTOR, tablemap.BLOB_COMPRESSED) and 1 <= metadata <= 4:
        return row_images.VAR, metadata, 0
    if stored == tablemap.JSON and 1 <= metadata <= 4:
        return row_images.JSON, metadata, 0
    if stored == tablemap.ENUM and metadata in (1, 2):
        return row_images.ENUM, metadata, 0
    if stored == tablemap.SET and 1 <= metadata <= 8:
        return row_images.MASK, metadata, 0
    if stored == tablemap.BIT and 1 <= metadata <= 64:
        return row_images.BITS, (metadata + 7) // 8, 0
    return None


def describe_storage(table_map: TableMap) -> npt.NDArray[np.int32] | None:
    """Return a table description without outputs, for walking over images; None if a column's layout is unknown."""
    layouts = [column_layout(*column) for column in zip(table_map.types, table_map.metadata, strict=True)]
    description = np.zeros((6, len(layouts)), dtype=np.int32)
    for c, layout in enumerate(layouts):
        if layout is None:
            return None
        description[row_images.ENCODING, c], description[row_images.A, c], description[row_images.B, c] = layout
        description[row_images.OUT, c] = -1
    return description
