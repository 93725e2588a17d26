"""Hashes rows, for tables whose images cancel each other by equal versions and whose version column Headrace fills.

Invariant: equal rows have equal hashes in every block, process and release. Hashes are stored, so the function never changes. A NULL adds
nothing, so an added column with NULLs does not change older rows' hashes. Columns are identified by their source names; their order does
not matter.

Arithmetic is modulo 2**64: values are mixed word by word, and the hashes of the columns are added. Works on whole columns.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U64 = npt.NDArray[np.uint64]
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def content_hash(images: pa.RecordBatch) -> U64:
    total = np.zeros(images.num_rows, dtype=np.uint64)
    for name, array in zip(images.schema.names, images.columns, strict=True):
        salt = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
        hashes = _mixed(_values(array) ^ salt)
        if array.null_count:
            hashes[np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=bool)] = 0
        total += hashes
    return total


def _values(array: Any) -> U64:
    """Return a number for each value, equal for equal values; undefined for NULL."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not len(array.dictionary):
            return np.zeros(len(array), dtype=np.uint64)
        hashes: U64 = _values(array.dictionary)[pc.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)]
        return hashes
    if pa.types.is_list(kind):
        width = kind.value_type.bit_width // 8
        return _variable(array.offsets, _raw(array.values, width), width)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]
        data = array.buffers()[2]
        return _variable(offsets, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8), 1)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _values(array.cast(pa.binary()))
    return _fixed(array, kind.bit_width // 8)


def _raw(array: Any, width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(array.buffers()[1], dtype=np.uint8)[: (array.offset + len(array)) * width]


def _fixed(array: Any, width: int) -> U64:
    """Hash values of a fixed width, word by word."""
    rows = len(array)
    if not rows:
        return np.zeros(0, dtype=np.uint64)
    raw = _raw(array, width)[array.offset * width :].reshape(rows, width)
    words = np.zeros((rows, -(-width // 8) * 8), dtype=np.uint8)
    words[:, :width] = raw
    columns = words.view("<u8")
    total = np.zeros(rows, dtype=np.uint64)
    for at in range(columns.shape[1]):
        total = _mixed(total ^ columns[:, at])
    return total


def _variable(offsets: Any, data: npt.NDArray[np.uint8], width: int) -> U64:
    """Hash values of variable length with a compiled loop."""
    from headrace.sinks.clickhouse.types.row_hash_kernel import hash_texts

    bounds = np.asarray(offsets, dtype=np.int64) * width
    found = np.zeros(len(bounds) - 1, dtype=np.uint64)
    hash_texts(data, bounds[:-1], bounds[1:], found)
    return found


def _mixed(numbers: U64) -> U64:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the number."""
    mixed = numbers + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    found: U64 = mixed ^ (mixed >> np.uint64(31))
    return found
