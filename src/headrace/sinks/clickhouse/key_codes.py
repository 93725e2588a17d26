"""Compares keys of several tables by numbers: equal keys have equal numbers, whatever their types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]


def encode_keys(sides: Iterable[list[Any]]) -> list[Indices]:
    """Return numbers that are equal where keys are equal, comparable across all sides. A key is a list of columns."""
    parts = [[_plain(column) for column in side] for side in sides]
    lengths = [len(side[0]) for side in parts]
    codes = np.zeros(sum(lengths), dtype=np.int64)
    for columns in zip(*parts, strict=True):
        whole = pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
        encoded = whole.combine_chunks().dictionary_encode()
        _, codes = np.unique(codes * max(len(encoded.dictionary), 1) + np.asarray(encoded.indices), return_inverse=True)
    return np.split(codes.astype(np.int64), np.cumsum(lengths)[:-1])


def _plain(column: Any) -> Any:
    """Return the column in chunks, without dictionary encoding."""
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return chunked.cast(chunked.type.value_type) if pa.types.is_dictionary(chunked.type) else chunked
