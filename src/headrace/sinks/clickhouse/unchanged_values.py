"""Fills values that an event omits because they did not change, so that every row image is complete.

The value is taken from an earlier image of the same row: in the same block, or in the table, which has all earlier images (blocks of one
row are written in order). Invariant: an image gets the value of the newest image with a lower version. If the table only has an image with
a higher version, the batch is a replay: the filled value does not matter, because the higher version wins. A row without any image is an
error, and so is a row that the block deletes before the image: the table's images from before the deletion have no value of the new row.
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
        deletions = _deletions_before(codes, np.asarray(block.op))
        origins = {name: _origin_in_block(codes, mask, deletions) for name, mask in masks.items()}
        wanted = np.flatnonzero(np.logical_or.reduce([origin < 0 for origin in origins.values()]))
        stored = self._read_stored(block, wanted, tuple(masks), deletions) if len(wanted) else None
        images = block.images
        for name, origin in origins.items():
            at = images.schema.get_field_index(name)
            images = images.set_column(at, images.schema.field(at), self._fill_column(block, name, origin, wanted, stored, place))
        return replace(block, images=images)

    def _read_stored(self, block: ChangeBlock, wanted: Indices, names: tuple[str, ...], deletions: Indices) -> _Stored:
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
        own, deleted = np.asarray(block.version), deletions[wanted]
        since = np.where((deleted >= 0) & (own[deleted] < own[wanted]), own[deleted], np.uint64(0))
        return images, _newest_before(requested, own[wanted], since, there, versions, live)

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


def _by_row(codes: Indices) -> tuple[Indices, Indices]:
    """Return the order that sorts images by row, and for each place in it the place of the row's first image."""
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    begins = np.concatenate(([True], sorted_codes[1:] != sorted_codes[:-1]))
    return order, np.maximum.accumulate(np.where(begins, np.arange(len(codes)), 0))


def _deletions_before(codes: Indices, op: npt.NDArray[np.uint8]) -> Indices:
    """For each image, return the index of the last deletion of the same row before it in the block; -1 if there is none."""
    order, begins = _by_row(codes)
    last = np.maximum.accumulate(np.where(op[order] == Op.DELETE, np.arange(len(codes)), -1))
    before = np.concatenate(([-1], last[:-1]))
    found = np.empty(len(codes), dtype=np.int64)
    found[order] = np.where(before >= begins, order[np.maximum(before, 0)], -1)
    return found


def _origin_in_block(codes: Indices, mask: npt.NDArray[np.bool_], deletions: Indices) -> Indices:
    """For each image, return the index of the block's image that has its value: itself, or the last earlier one of the same row since its
    last deletion; -1 if there is none."""
    order, begins = _by_row(codes)
    last = np.maximum.accumulate(np.where(mask[order], -1, np.arange(len(codes))))
    origins = np.empty(len(codes), dtype=np.int64)
    origins[order] = np.where(last >= begins, order[np.maximum(last, 0)], -1)
    # A deleted row has no value to retain.
    return np.where(mask & (origins <= deletions), -1, origins)


def _newest_before(
    requested: Indices,
    versions: npt.NDArray[np.uint64],
    since: npt.NDArray[np.uint64],
    there: Indices,
    stored: npt.NDArray[np.uint64],
    live: npt.NDArray[np.bool_],
) -> Indices:
    """For each wanted row, return the stored image that has its value (see the module's invariant); -1 if there is none.

    `since`: the version of the block's deletion of the row before the wanted image; 0 if there is none."""
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
    lowest = np.concatenate([np.zeros(count, dtype=np.uint64), since])[order]
    usable = has_before & (live[np.maximum(earlier, 0)] & (stored[np.maximum(earlier, 0)] >= lowest) if count else False)
    chosen = np.where(usable, earlier, np.where(has_after, later, -1))
    places = np.empty(len(codes), dtype=np.int64)
    places[order] = chosen
    return places[count:]
