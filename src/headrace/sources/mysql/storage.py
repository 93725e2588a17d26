"""How a column's values lie in a row image, from the table map alone.

Needs no schema: enough to step over any row, and so to count rows, of tables nobody replicates as well. What the values mean, and whether
a schema agrees with them, is the decoder's business.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.sources.mysql import images, tablemap
from headrace.sources.mysql.tablemap import TableMap

Layout = tuple[int, int, int]
"""An encoding of `images` and its two parameters."""

_FIXED: Final[dict[int, Layout]] = {
    tablemap.TINY: (images.INT, 1, 0),
    tablemap.SHORT: (images.INT, 2, 0),
    tablemap.INT24: (images.INT, 3, 0),
    tablemap.LONG: (images.INT, 4, 0),
    tablemap.LONGLONG: (images.INT, 8, 0),
    tablemap.FLOAT: (images.UINT, 4, 0),
    tablemap.DOUBLE: (images.UINT, 8, 0),
    tablemap.YEAR: (images.YEAR, 0, 0),
    tablemap.DATE: (images.DATE, 0, 0),
}
_FRACTIONAL: Final = {
    tablemap.DATETIME2: images.DATETIME2,
    tablemap.TIMESTAMP2: images.TIMESTAMP2,
    tablemap.TIME2: images.TIME2,
}
OLD_TEMPORAL: Final = {
    tablemap.DATETIME: images.OLD_DATETIME,
    tablemap.TIMESTAMP: images.OLD_TIMESTAMP,
    tablemap.TIME: images.OLD_TIME,
}
"""Forms older than MySQL 5.6. Their fractional digits, which only MariaDB has, are not in the table map: the schema must tell."""


def column_layout(stored: int, metadata: int) -> Layout | None:
    """The layout of a stored type, or None if no server is known to write it so; of an old temporal type, `metadata` is the digits."""
    if stored in _FIXED:
        return _FIXED[stored]
    if stored in _FRACTIONAL and metadata <= 6:
        return _FRACTIONAL[stored], metadata, 0
    if stored in OLD_TEMPORAL and metadata <= 6:
        return OLD_TEMPORAL[stored], metadata, 0
    if stored == tablemap.NEWDECIMAL:
        return images.DECIMAL, metadata >> 8, metadata & 255
    if stored in (tablemap.VARCHAR, tablemap.VAR_STRING, tablemap.STRING, tablemap.VARCHAR_COMPRESSED):
        return images.VAR, 1 if metadata < 256 else 2, 0
    if stored in (tablemap.BLOB, tablemap.GEOMETRY, tablemap.VECTOR, tablemap.BLOB_COMPRESSED) and 1 <= metadata <= 4:
        return images.VAR, metadata, 0
    if stored == tablemap.JSON and 1 <= metadata <= 4:
        return images.JSON, metadata, 0
    if stored == tablemap.ENUM and metadata in (1, 2):
        return images.ENUM, metadata, 0
    if stored == tablemap.SET and 1 <= metadata <= 8:
        return images.MASK, metadata, 0
    if stored == tablemap.BIT and 1 <= metadata <= 64:
        return images.BITS, (metadata + 7) // 8, 0
    return None


def describe_storage(table_map: TableMap) -> npt.NDArray[np.int32] | None:
    """A table description without outputs, for walking over images; None if a column's layout is unknown."""
    layouts = [column_layout(*column) for column in zip(table_map.types, table_map.metadata, strict=True)]
    description = np.zeros((6, len(layouts)), dtype=np.int32)
    for c, layout in enumerate(layouts):
        if layout is None:
            return None
        description[images.ENCODING, c], description[images.A, c], description[images.B, c] = layout
        description[images.OUT, c] = -1
    return description
