"""Fills values that an event omits because they did not change, so that every row image is complete.

The value is taken from an earlier image of the same row: in the same block, or in the table, which has all earlier images (blocks of one
row are written in order). Invariant: an image gets the value of the newest image with a lower version. If the table only has an image with
a higher version, the batch is a replay: the filled value does not matter, because the higher version wins. A row without any image is an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sinks.clickhouse.bookkeeping.dead_letters import key_text
from headrace.sinks.clickhouse.reader import ClickHouseReader, Indices, encode_keys
from headrace.sinks.clickhouse.tables.target_cache import TargetScope

_Stored = tuple[pa.Table, Indices]
"""Images of the table and, for each wanted row, the index of the image that has its values; -1 if none has."""
_MOST_KEYS: Final = 2000
"""Per query."""


@dataclass(frozen=True, slots=True)
class UnchangedValueFiller:
    """Fills omitted values of blocks. Picklable."""

    scope: TargetScope

    def filled(self, block: ChangeBlock, kept: Mapping[str, pa.BooleanArray], place: str) -> ChangeBlock:
        """Return the block with every value filled in."""
        schema = block.schema
        if not schema.row_key:
            raise DefiniteError(
                f"an event of table {schema.name} leaves out values that did not change, and the table has no key to find them by",
                place=place,
                hint="have the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL)",
            )
        masks = {name: np.asarray(pc.fill_null(mask, fill_value=False)) for name, mask in kept.items()}
        masks = {name: mask for name, mask in masks.items() if mask.any()}
        keys = [block.images.column(name) for name in schema.row_key]
        (codes,) = encode_keys([keys])
        origins = {name: _origin_in_block(codes, mask, np.asarray(block.op)) for name, mask in masks.items()}
        wanted = np.flatnonzero(np.logical_or.reduce([origin < 0 for origin in origins.values()]))
        stored = self._read_stored(block, wanted, tuple(masks)) if len(wanted) else None
        images = block.images
        for name, origin in origins.items():
            at = images.schema.get_field_index(name)
            images = images.set_column(at, images.schema.field(at), self._fill_column(block, name, origin, wanted, stored, place))
        return replace(block, images=images)

    def _read_stored(self, block: ChangeBlock, wanted: Indices, names: tuple[str, ...]) -> _Stored:
        """Read the table's images of the wanted rows, and find the image that has each row's value."""
        schema, reader = block.schema, ClickHouseReader(self.scope)
        keys = pa.table([block.images.column(name).take(wanted) for name in schema.row_key], names=list(schema.row_key))
        found = []
        for start in range(0, len(wanted), _MOST_KEYS):
            condition = reader.key_condition(schema, keys.slice(start, _MOST_KEYS))
            found.append(reader.read_images(schema, condition, (*schema.row_key, *names)))
        images = pa.concat_tables([one[0] for one in found])
        versions = np.concatenate([np.asarray(one[1]) for one in found])
        live = np.concatenate([one[2].to_numpy(zero_copy_only=False) for one in found])
        requested, there = encode_keys([[keys.column(name) for name in schema.row_key], [images.column(name) for name in schema.row_key]])
        return images, _newest_before(requested, np.asarray(block.version)[wanted], there, versions, live)

    def _fill_column(self, block: ChangeBlock, name: str, origin: Indices, wanted: Indices, stored: _Stored | None, place: str) -> Any:
        """Return the column's values, each from the block or from the table."""
        values = block.images.column(name)
        if stored is None:
            return values.take(origin)
        stored_images, places = stored
        lookup = np.full(len(values), -1, dtype=np.int64)
        lookup[wanted] = places
        # An image that takes its value from another image of the block takes it from that image's origin.
        from_table = origin < 0
        unknown = np.flatnonzero(from_table & (lookup < 0))
        if len(unknown):
            row = int(unknown[0])
            raise DefiniteError(
                f"an event of table {block.schema.name} leaves out the value of {name}, which did not change, and there is no row to take "
                f"it from: {key_text(block, row)}",
                place=place,
                hint="have the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL) and take a new snapshot of it",
            )
        both = pa.chunked_array([values, *stored_images.column(name).chunks], values.type)
        both = both.unify_dictionaries() if pa.types.is_dictionary(values.type) else both
        return both.take(np.where(from_table, lookup + len(values), origin)).combine_chunks()


def _origin_in_block(codes: Indices, mask: npt.NDArray[np.bool_], op: npt.NDArray[np.uint8]) -> Indices:
    """For each image, return the index of the block's image that has its value: itself, or the last earlier one of the same row; -1 if
    none."""
    rows = np.arange(len(codes))
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    begins = np.maximum.accumulate(np.where(np.concatenate(([True], sorted_codes[1:] != sorted_codes[:-1])), rows, 0))
    last = np.maximum.accumulate(np.where(mask[order], -1, rows))
    found = np.where(last >= begins, order[np.maximum(last, 0)], -1)
    # A deleted row has no value to retain.
    found = np.where((found >= 0) & (op[np.maximum(found, 0)] == Op.DELETE) & mask[order], -1, found)
    origins = np.empty(len(codes), dtype=np.int64)
    origins[order] = found
    return origins


def _newest_before(
    requested: Indices, versions: npt.NDArray[np.uint64], there: Indices, stored: npt.NDArray[np.uint64], live: npt.NDArray[np.bool_]
) -> Indices:
    """For each wanted row, return the stored image that has its value (see the module's invariant); -1 if there is none."""
    count = len(there)
    codes, both = np.concatenate([there, requested]), np.concatenate([stored, versions])
    is_asked = np.concatenate([np.zeros(count, dtype=np.int8), np.ones(len(requested), dtype=np.int8)])
    order = np.lexsort((is_asked, both, codes))
    images, groups = np.where(is_asked[order] == 0, order, -1), codes[order]
    rows = np.arange(len(order))
    before = np.maximum.accumulate(np.where(images >= 0, rows, -1))
    after = np.minimum.accumulate(np.where(images >= 0, rows, len(order))[::-1])[::-1]
    has_before = (before >= 0) & (groups[np.maximum(before, 0)] == groups)
    has_after = (after < len(order)) & (groups[np.minimum(after, len(order) - 1)] == groups)
    earlier, later = images[np.maximum(before, 0)], images[np.minimum(after, len(order) - 1)]
    usable = has_before & (live[np.maximum(earlier, 0)] if count else False)
    chosen = np.where(usable, earlier, np.where(has_after, later, -1))
    places = np.empty(len(codes), dtype=np.int64)
    places[order] = chosen
    return places[count:]
