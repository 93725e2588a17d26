"""Headers that list the NULL columns of a row, which mypipe's maps cannot hold."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kafka.mypipe.wire_format import NULLS_HEADER, OLD_NULLS_HEADER, Mutation
from headrace.model.text_values import fixed_bytes
from headrace.sinks.kafka.mypipe.mutations import Mutations

Extra = tuple[tuple[str, bytes], ...]


def null_headers(images: pa.RecordBatch, mutations: Mutations, always: Extra) -> tuple[Extra, ...]:
    """Return the headers of each message: common ones, and the names of NULL columns. Empty if no message has any."""
    pattern, names = _patterns(images)
    if len(names) == 1 and not names[0]:
        return (always,) * len(mutations.at) if always else ()
    of_update = mutations.kind == Mutation.UPDATE
    # One number for each pair of patterns; the first is that of no NULLs where there is no row before.
    before = np.where(of_update, pattern[mutations.at - 1], -1)
    pairs = pa.array((before + 1) * len(names) + pattern[mutations.at]).dictionary_encode()
    made = [_headers(names, pair // len(names) - 1, pair % len(names), always) for pair in pairs.dictionary.to_pylist()]
    return tuple(map(made.__getitem__, pairs.indices.to_pylist()))


def _patterns(images: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], list[tuple[str, ...]]]:
    """Return the NULL pattern of each row, and the column names of each pattern."""
    holding = [(name, column) for name, column in zip(images.schema.names, images.columns, strict=True) if column.null_count]
    if not holding:
        return np.zeros(images.num_rows, dtype=np.int64), [()]
    missing = np.stack([column.is_null().to_numpy(zero_copy_only=False) for _, column in holding], axis=1)
    coded = fixed_bytes(np.packbits(missing, axis=1)).dictionary_encode()
    patterns = [np.unpackbits(np.frombuffer(one, np.uint8), count=len(holding)) for one in coded.dictionary.to_pylist()]
    names = [tuple(name for (name, _), is_null in zip(holding, one, strict=True) if is_null) for one in patterns]
    return coded.indices.to_numpy().astype(np.int64), names


def _headers(names: list[tuple[str, ...]], before: int, after: int, always: Extra) -> Extra:
    found = [*always]
    if before >= 0 and names[before]:
        found.append((OLD_NULLS_HEADER, _text(names[before])))
    if names[after]:
        found.append((NULLS_HEADER, _text(names[after])))
    return tuple(found)


def _text(names: tuple[str, ...]) -> bytes:
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode()
