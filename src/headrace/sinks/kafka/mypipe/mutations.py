"""A block's images as mypipe's mutations, in the order of the log.

Invariant: each image but the before image of an update that keeps its key becomes exactly one message, under its own key and with its own
version. An update that moves a row to another key becomes, unless chosen otherwise, the old row's deletion and the new row's insertion:
then the messages of each key tell its whole story in one partition, whatever the partitions of the two keys are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.mypipe.wire_format import Mutation, transaction_guids
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.sinks.kafka.messages.message_keys import encode_keys
from headrace.sinks.kafka.messages.options import KeyChanges

Places = npt.NDArray[np.int64]
Encode = Callable[[Mutation, Places, Places | None], pa.BinaryArray]
"""The bodies of mutations of one kind: where their images are, and for updates where the images before them are."""
_TABLE_ID_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Mutations:
    """The messages of a block."""

    kind: npt.NDArray[np.uint8]
    at: Places
    """The image of each message; for an update its after image, which follows its before image."""
    key: pa.BinaryArray

    def bodies(self, encode: Encode) -> pa.BinaryArray:
        """Encode all values, kind by kind, and return them in order."""
        parts, places = [], []
        for mutation in Mutation:
            mine = np.flatnonzero(self.kind == mutation)
            if mine.size:
                at = self.at[mine]
                parts.append(encode(mutation, at, at - 1 if mutation is Mutation.UPDATE else None))
                places.append(mine)
        if len(parts) == 1:
            return parts[0]
        order = np.empty(len(self.kind), dtype=np.int64)
        order[np.concatenate(places)] = np.arange(len(self.kind))
        return pa.concat_arrays(parts).take(pa.array(order))


def mutations_of(block: ChangeBlock, key_changes: KeyChanges) -> Mutations:
    """Return the messages of a block; every update in it must have its before image."""
    ops = block.op.to_numpy()
    befores = np.flatnonzero(ops == Op.BEFORE)
    updates = np.flatnonzero(ops == Op.UPDATE)
    if not np.array_equal(befores + 1, updates):
        raise DefiniteError(
            "an update came without the row before it",
            place=f"table {block.schema.name}",
            hint="please report it: the sink requires all of them",
        )
    kinds = np.full(len(ops), Mutation.INSERT, dtype=np.uint8)
    kinds[ops == Op.DELETE] = Mutation.DELETE
    kinds[updates] = Mutation.UPDATE
    kinds[befores] = 0
    keys = encode_keys(block.schema, block.images)
    if key_changes is KeyChanges.SPLIT and updates.size and block.schema.row_key:
        moved = pc.not_equal(keys.take(pa.array(befores)), keys.take(pa.array(updates))).to_numpy(zero_copy_only=False)
        kinds[befores[moved]] = Mutation.DELETE
        kinds[updates[moved]] = Mutation.INSERT
    at = np.flatnonzero(kinds)
    return Mutations(kinds[at], at, keys if at.size == len(ops) else keys.take(pa.array(at)))


def guids_of(block: ChangeBlock) -> pa.Array:
    """Return the Guid of each image's transaction; NULL if unknown, as in a snapshot."""
    if block.transaction is None:
        return pa.nulls(block.rows, pa.binary(16))
    return transaction_guids(block.transaction.dictionary).take(block.transaction.indices)


def table_id(schema: TableSchema) -> int:
    """Return a table id of 48 bits that changes only when the table is altered. (The server's own id changes at each restart.)"""
    text = repr((schema.name, [(column.name, column.kind, column.precision, column.scale) for column in schema.columns], schema.row_key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_TABLE_ID_BYTES], "big")


def with_tombstones(mutations: Mutations, value: pa.BinaryArray) -> tuple[pa.BinaryArray, Places]:
    """Insert a tombstone after each deletion with a key; return the values and the mutation of each."""
    deleted = (mutations.kind == Mutation.DELETE) & mutations.key.is_valid().to_numpy(zero_copy_only=False)
    of = np.repeat(np.arange(len(deleted)), 1 + deleted)
    second = np.concatenate(([False], of[1:] == of[:-1]))
    return value.take(pa.array(of, mask=second)), of
