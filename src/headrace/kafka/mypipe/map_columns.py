"""The maps of generic messages as columns: one column for each name that occurs in them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def map_columns(maps: pa.MapArray) -> dict[str, pa.Array]:
    """Each name's values, row by row; NULL where its map does not have the name. Of a name that is twice in a map, the last counts."""
    offsets = np.frombuffer(maps.buffers()[1], dtype=np.int32, count=len(maps) + 1 + maps.offset)[maps.offset :]
    keys, items = maps.keys, maps.items
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return {}
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(maps)), lengths)
    coded = keys[first:last].dictionary_encode()
    codes = coded.indices.to_numpy()
    found = {}
    for code, name in enumerate(coded.dictionary.to_pylist()):
        at = np.flatnonzero(codes == code)
        places = np.full(len(maps), -1, dtype=np.int64)
        places[rows[at]] = at + first
        found[name] = items.take(pa.array(places, mask=places < 0))
    return found
