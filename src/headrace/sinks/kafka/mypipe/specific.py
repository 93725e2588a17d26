"""Specific messages: one Avro record per table, with a field for each column.

An ALTER TABLE registers a new version of the record's schema. The repository decides whether readers of the new version can read earlier
messages. If they cannot, the pipe halts, or continues if the user chose so.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import dataclass

import pyarrow as pa

from headrace.kafka.avro.encoder import Source
from headrace.kafka.mypipe.table_schemas import field_names, specific_schema
from headrace.kafka.mypipe.values import ValueMapping, to_field
from headrace.kafka.mypipe.wire_format import Mutation, schema_text, specific_subject
from headrace.model.schema import TableSchema
from headrace.sinks.kafka.mypipe.mutations import Mutations
from headrace.sinks.kafka.mypipe.null_headers import Extra
from headrace.sinks.kafka.mypipe.schema_registration import SchemaBook


@dataclass(frozen=True, slots=True)
class SpecificForm:
    """One table's rows in fields."""

    schema: TableSchema
    mapping: ValueMapping
    names: tuple[str, ...]
    """The field of each column."""
    ids: Map[Mutation, int]

    def schema_id(self, mutation: Mutation) -> int:
        return self.ids[mutation]

    def avro_schema(self, mutation: Mutation) -> str:
        return schema_text(specific_schema(self.schema, mutation, self.mapping))

    def columns(self, images: pa.RecordBatch) -> list[pa.Array]:
        pairs = zip(self.schema.columns, images.columns, strict=True)
        return [to_field(column, array, self.mapping) for column, array in pairs]

    def fields(self, columns: list[pa.Array], prefix: str) -> Map[str, Source]:
        return {prefix + name: array for name, array in zip(self.names, columns, strict=True)}

    def headers(self, images: pa.RecordBatch, mutations: Mutations) -> tuple[Extra, ...]:
        """Return no headers: the fields contain everything."""
        del images, mutations
        return ()


@dataclass(frozen=True, slots=True)
class SpecificForms:
    """The layouts of all tables."""

    book: SchemaBook
    mapping: ValueMapping

    def of(self, schema: TableSchema) -> SpecificForm:
        ids = {
            mutation: self.book.register(
                specific_subject(schema.name, mutation), schema_text(specific_schema(schema, mutation, self.mapping))
            )
            for mutation in Mutation
        }
        return SpecificForm(schema, self.mapping, field_names(schema.columns), ids)

    def check(self, schema: TableSchema) -> None:
        for mutation in Mutation:
            self.book.check(specific_subject(schema.name, mutation), schema_text(specific_schema(schema, mutation, self.mapping)))
