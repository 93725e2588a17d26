"""Encodes blocks as mypipe's messages.

Invariant: a block gives the same messages, byte for byte, at each replay. They depend only on the block, the table's schema and the ids of
the registered schemas.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kafka.avro.encoder import Encoder as AvroEncoder
from headrace.kafka.avro.encoder import Source
from headrace.kafka.avro.schema import AvroSchema
from headrace.kafka.mypipe.wire_format import Mutation, head
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.sinks.kafka.messages.messages import Messages
from headrace.sinks.kafka.messages.options import KafkaOptions
from headrace.sinks.kafka.mypipe.mutations import Mutations, Places, guids_of, mutations_of, table_id, with_tombstones
from headrace.sinks.kafka.mypipe.null_headers import Extra


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
    """Encodes blocks of any tables. Belongs to one task."""

    def __init__(self, choices: KafkaOptions, forms: MypipeLayouts) -> None:
        self._choices, self._forms = choices, forms
        self._tables: dict[TableSchema, _MypipeTableEncoder] = {}

    def encode(self, block: ChangeBlock) -> list[Messages]:
        """Return the block's messages; every update in it has its before image."""
        if not block.rows:
            return []
        table = self._tables.get(block.schema)
        if table is None:
            table = self._tables[block.schema] = _MypipeTableEncoder(self._choices, block.schema, self._forms.of(block.schema))
        return [table.encode(block)]


class _MypipeTableEncoder:
    """Encodes the blocks of one table under one schema."""

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
            row=_rows(block, at),
            commit_us=commit_us,
        )


def _constants(form: MypipeLayout, mutation: Mutation, schema: TableSchema) -> dict[str, pa.Scalar]:
    """Return the fields that are the same in all messages of a table."""
    found = {
        "database": pa.scalar(schema.name.database),
        "table": pa.scalar(schema.name.table),
        "tableId": form.table_id(mutation, table_id(schema)),
    }
    root = form.avro_schema(mutation).root
    return {name: value for name, value in found.items() if value is not None and root.field(name) is not None}


def _rows(block: ChangeBlock, at: Places) -> pa.UInt64Array | None:
    """Return the row numbers of a snapshot's block; a block contains only snapshot rows, or none."""
    if block.order is None or block.op[0].as_py() != Op.SNAPSHOT:
        return None
    return block.order.take(pa.array(at))


def _taken(columns: list[pa.Array], at: Places) -> list[pa.Array]:
    """Return the columns' values at some indexes; without a copy if all are selected."""
    if not columns or (len(at) == len(columns[0]) and np.array_equal(at, np.arange(len(at)))):
        return columns
    places = pa.array(at)
    return [column.take(places) for column in columns]
