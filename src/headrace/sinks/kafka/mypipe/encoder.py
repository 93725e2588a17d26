"""Encodes blocks as mypipe's messages.

Invariant: a block gives the same messages, byte for byte, at each replay. They depend only on the block, the table's schema and the ids of
the registered schemas.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from collections.abc import Mapping as Map
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.avro.encoder import Encoder as AvroEncoder
from headrace.kafka.avro.encoder import Source
from headrace.kafka.avro.schema import AvroSchema
from headrace.kafka.mypipe.values import ValueMapping, map_of, to_map
from headrace.kafka.mypipe.wire_format import Mutation, head, transaction_guids
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.model.text_values import format_hex
from headrace.sinks.kafka.delivery import Messages
from headrace.sinks.kafka.options import KafkaOptions, KeyChanges

Extra = tuple[tuple[str, bytes], ...]
Places = npt.NDArray[np.int64]
Encode = Callable[[Mutation, Places, Places | None], pa.BinaryArray]
"""The bodies of mutations of one kind: where their images are, and for updates where the images before them are."""
_TABLE_ID_BYTES: Final = 6
_TEXTUAL: Final = ValueMapping(text_as_bytes=False)


@dataclass(frozen=True, slots=True)
class Mutations:
    """The messages of a block.

    Each image but the before image of an update that keeps its key becomes exactly one message, under its own key and with its own version.
    An update that moves a row to another key becomes, unless chosen otherwise, the old row's deletion and the new row's insertion, so one
    partition holds all messages of a key.
    """

    kind: npt.NDArray[np.uint8]
    at: Places
    """The image of each message; for an update its after image, which follows its before image."""
    key: pa.BinaryArray

    def bodies(self, encode: Encode) -> pa.BinaryArray:
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


class MypipeLayout(Protocol):
    """The layout of a table's messages: maps (generic) or fields (specific)."""

    def schema_id(self, mutation: Mutation) -> int: ...

    def avro_schema(self, mutation: Mutation) -> AvroSchema: ...

    def table_id(self, mutation: Mutation, number: int) -> pa.Scalar | None:
        """Return the table's number as the schema has it; None if it has no such field."""

    def columns(self, images: pa.RecordBatch) -> list[pa.Array]:
        """Convert the table's columns for writing."""

    def fields(self, mutation: Mutation, columns: list[pa.Array], prefix: str) -> Map[str, Source]:
        """Return the fields of a row; `prefix` distinguishes before and after image of an update."""

    def headers(self, images: pa.RecordBatch, mutations: Mutations) -> tuple[Extra, ...]:
        """Return the headers of each message, except its position."""


class MypipeLayouts(Protocol):
    """Provides the layout of each table."""

    def of(self, schema: TableSchema) -> MypipeLayout:
        """Return the table's layout; its schemas are registered."""

    def check(self, schema: TableSchema) -> None:
        """Raise `DefiniteError` if readers of the table's messages could not read old ones by its schemas."""


def check_ids(form: MypipeLayout) -> None:
    """Raise `DefiniteError` if the id of one of the schemas does not fit a message."""
    for mutation in Mutation:
        head(mutation, form.schema_id(mutation))


class MypipeEncoder:
    def __init__(self, choices: KafkaOptions, forms: MypipeLayouts) -> None:
        self._choices, self._forms = choices, forms
        self._tables: dict[TableSchema, _MypipeTableEncoder] = {}

    def encode(self, block: ChangeBlock) -> list[Messages]:
        if not block.rows:
            return []
        table = self._tables.get(block.schema)
        if table is None:
            table = self._tables[block.schema] = _MypipeTableEncoder(self._choices, block.schema, self._forms.of(block.schema))
        return [table.encode(block)]


class _MypipeTableEncoder:
    def __init__(self, choices: KafkaOptions, schema: TableSchema, form: MypipeLayout) -> None:
        self._choices, self._form = choices, form
        self._topic = choices.topic_of(schema.name)
        schemas = {mutation: form.avro_schema(mutation) for mutation in Mutation}
        self._constants = {mutation: _constants(form, mutation, schema) for mutation in Mutation}
        self._encoders = {mutation: AvroEncoder(schema) for mutation, schema in schemas.items()}
        self._has_txid = {mutation: schema.root.field("txid") is not None for mutation, schema in schemas.items()}
        self._heads = {mutation: head(mutation, form.schema_id(mutation)) for mutation in Mutation}

    def encode(self, block: ChangeBlock) -> Messages:
        mutations = mutations_of(block, self._choices.key_changes)
        columns, guids = self._form.columns(block.images), guids_of(block)

        def bodies(mutation: Mutation, now: Places, before: Places | None) -> pa.BinaryArray:
            fields: dict[str, Any] = {**self._constants[mutation]}
            if self._has_txid[mutation]:
                fields["txid"] = _taken([guids], now)[0]
            if before is None:
                fields.update(self._form.fields(mutation, _taken(columns, now), ""))
            else:
                fields.update(self._form.fields(mutation, _taken(columns, before), "old_"))
                fields.update(self._form.fields(mutation, _taken(columns, now), "new_"))
            return self._encoders[mutation].encode(fields, rows=len(now), prefix=self._heads[mutation])

        value = mutations.bodies(bodies)
        headers = self._form.headers(block.images, mutations)
        at, key = mutations.at, mutations.key
        if self._choices.has_tombstones:
            value, of = with_tombstones(mutations, value)
            at, key = at[of], key.take(pa.array(of))
            headers = tuple(headers[place] for place in of.tolist()) if headers else ()
        commit_us = block.commit_ts.take(pa.array(at))
        return Messages(
            topic=self._topic,
            key=key,
            value=value,
            version=block.version.take(pa.array(at)),
            timestamp_ms=pc.divide(commit_us, 1000),
            headers=headers,
            # A block contains only snapshot rows, or none.
            row=block.order.take(pa.array(at)) if block.order is not None and block.op[0].as_py() == Op.SNAPSHOT else None,
            commit_us=commit_us,
        )


def _constants(form: MypipeLayout, mutation: Mutation, schema: TableSchema) -> dict[str, pa.Scalar]:
    found = {
        "database": pa.scalar(schema.name.database),
        "table": pa.scalar(schema.name.table),
        "tableId": form.table_id(mutation, table_id(schema)),
    }
    root = form.avro_schema(mutation).root
    return {name: value for name, value in found.items() if value is not None and root.field(name) is not None}


def _taken(columns: list[pa.Array], at: Places) -> list[pa.Array]:
    """Return the columns' values at some indexes; without a copy if all are selected."""
    if not columns or (len(at) == len(columns[0]) and np.array_equal(at, np.arange(len(at)))):
        return columns
    places = pa.array(at)
    return [column.take(places) for column in columns]


def encode_keys(schema: TableSchema, images: pa.RecordBatch) -> pa.BinaryArray:
    """Return the key of each image: a row's key columns as a JSON object, such as {"id":7}; NULL for a table without a key.

    Equal keys give equal bytes, different keys different ones; so all messages of a row are in one partition, and a compacted topic keeps
    the last of them. Integers are numbers, everything else is text as the source shows it, bytes are in hex.
    """
    if not schema.row_key:
        return pa.nulls(images.num_rows, pa.binary())
    parts: list[Any] = []
    for place, name in enumerate(schema.row_key):
        opening = "{" if not place else ","
        parts += [f"{opening}{json.dumps(name, ensure_ascii=False)}:", _fragment(schema.column(name), images.column(name))]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _fragment(column: Column, array: pa.Array) -> pa.Array:
    if column.form is ValueForm.INTEGER:
        return array.cast(pa.string())
    name = map_of(column, _TEXTUAL)
    values = to_map(column, array, name)
    match name:
        case "integers" | "longs":
            return values.cast(pa.string())
        case "bytes":
            return pc.binary_join_element_wise('"', format_hex(values), '"', "")
        case "strings":
            return _quoted(values)
        case unknown:
            assert_never(unknown)


def _quoted(array: pa.Array) -> pa.Array:
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, dtype=np.int32, count=len(array) + 1 + array.offset)[array.offset :]
    used = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.zeros(0, np.uint8)
    if not ((used < 0x20) | (used == 0x22) | (used == 0x5C)).any():
        return pc.binary_join_element_wise('"', array, '"', "")
    # Quotes and control characters in a key are rare: Python's own escapes, for blocks that have any.
    return pa.array([json.dumps(text, ensure_ascii=False) for text in array.to_pylist()], pa.string())
