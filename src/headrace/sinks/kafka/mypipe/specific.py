"""Specific messages: one Avro record per table, with a field for each column.

An ALTER TABLE registers a new version of the record's schema. The repository decides whether readers of the new version can read earlier
messages. If they cannot, the pipe halts, or continues if the user chose so. A subject whose newest schema was not written by Headrace keeps
it: its records take the table's values (`existing_records`).
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import dataclass

import pyarrow as pa

from headrace.kafka.avro.encoder import Source
from headrace.kafka.avro.schema import AvroSchema, parse_schema
from headrace.kafka.mypipe.table_schemas import field_names, specific_schema
from headrace.kafka.mypipe.values import ValueMapping, to_field
from headrace.kafka.mypipe.wire_format import Mutation, schema_text, specific_subject
from headrace.model.schema import TableSchema
from headrace.sinks.kafka.mypipe.existing_records import ExistingRecord, is_headrace_schema, match_record
from headrace.sinks.kafka.mypipe.mutations import Mutations
from headrace.sinks.kafka.mypipe.null_headers import Extra
from headrace.sinks.kafka.mypipe.schema_registration import SchemaRegistration


@dataclass(frozen=True, slots=True)
class SpecificTableEncoding:
    """One table's rows in fields."""

    schema: TableSchema
    mapping: ValueMapping
    names: tuple[str, ...]
    """The field of each column."""
    ids: Map[Mutation, int]
    existing: Map[Mutation, ExistingRecord]
    """Records whose schemas others have registered."""

    def schema_id(self, mutation: Mutation) -> int:
        return self.existing[mutation].id if mutation in self.existing else self.ids[mutation]

    def avro_schema(self, mutation: Mutation) -> AvroSchema:
        if mutation in self.existing:
            return self.existing[mutation].schema
        return parse_schema(schema_text(specific_schema(self.schema, mutation, self.mapping)))

    def table_id(self, mutation: Mutation, number: int) -> pa.Scalar | None:
        return self.existing[mutation].table_id(number) if mutation in self.existing else pa.scalar(number)

    def columns(self, images: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns as they are: the schemas of inserts, updates and deletes may have different types."""
        return list(images.columns)

    def fields(self, mutation: Mutation, columns: list[pa.Array], prefix: str) -> Map[str, Source]:
        if mutation in self.existing:
            return self.existing[mutation].fields(columns, prefix)
        named = zip(self.schema.columns, self.names, columns, strict=True)
        return {prefix + name: to_field(column, array, self.mapping) for column, name, array in named}

    def headers(self, images: pa.RecordBatch, mutations: Mutations) -> tuple[Extra, ...]:
        """Return no headers: the fields contain everything."""
        del images, mutations
        return ()


@dataclass(frozen=True, slots=True)
class SpecificTableEncodings:
    """The layouts of all tables."""

    schemas: SchemaRegistration
    mapping: ValueMapping

    def of(self, schema: TableSchema) -> SpecificTableEncoding:
        existing = self._existing(schema)
        ids = {
            mutation: self.schemas.register(
                specific_subject(schema.name, mutation), schema_text(specific_schema(schema, mutation, self.mapping))
            )
            for mutation in Mutation
            if mutation not in existing
        }
        return SpecificTableEncoding(schema, self.mapping, field_names(schema.columns), ids, existing)

    def check(self, schema: TableSchema) -> None:
        existing = self._existing(schema)
        for mutation in Mutation:
            if mutation not in existing:
                self.schemas.check(specific_subject(schema.name, mutation), schema_text(specific_schema(schema, mutation, self.mapping)))

    def _existing(self, schema: TableSchema) -> dict[Mutation, ExistingRecord]:
        """Match the table with schemas that others have registered; raise `DefiniteError` if one cannot take its values."""
        found = {}
        for mutation in Mutation:
            own = schema_text(specific_schema(schema, mutation, self.mapping))
            newest = self.schemas.newest(specific_subject(schema.name, mutation), own)
            if newest is not None and not is_headrace_schema(newest):
                found[mutation] = match_record(newest, schema, mutation, self.mapping)
        return found
