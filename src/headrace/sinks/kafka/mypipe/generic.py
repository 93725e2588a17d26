"""Generic messages: a row's values in maps by their type, under schemas that are the same for all tables.

Headers hold what the maps cannot: which columns are NULL, and the id of a schema with the exact types of the columns. An altered table
continues in the same topic with the same message schemas.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import dataclass

import pyarrow as pa

from headrace.kafka.avro.encoder import MapColumns, Source
from headrace.kafka.avro.schema import AvroSchema, parse_schema
from headrace.kafka.mypipe.table_schemas import columns_schema
from headrace.kafka.mypipe.values import ValueMapping, map_of, to_map
from headrace.kafka.mypipe.wire_format import (
    COLUMNS_HEADER,
    MAPS,
    Mutation,
    columns_subject,
    generic_schema,
    generic_subject,
    id_bytes,
    schema_text,
)
from headrace.model.schema import TableSchema
from headrace.sinks.kafka.mypipe.mutations import Mutations
from headrace.sinks.kafka.mypipe.null_headers import Extra, null_headers
from headrace.sinks.kafka.mypipe.schema_registration import SchemaRegistration


def _schema(mutation: Mutation, mapping: ValueMapping) -> str:
    return schema_text(generic_schema(mutation, old_shape=not mapping.has_bytes_map))


@dataclass(frozen=True, slots=True)
class GenericTableEncoding:
    """One table's rows in maps."""

    schema: TableSchema
    mapping: ValueMapping
    ids: Map[Mutation, int]
    always: Extra
    """Headers that every message has."""

    def schema_id(self, mutation: Mutation) -> int:
        return self.ids[mutation]

    def avro_schema(self, mutation: Mutation) -> AvroSchema:
        return parse_schema(_schema(mutation, self.mapping))

    def table_id(self, mutation: Mutation, number: int) -> pa.Scalar:
        del mutation
        return pa.scalar(number)

    def columns(self, images: pa.RecordBatch) -> list[pa.Array]:
        pairs = zip(self.schema.columns, images.columns, strict=True)
        return [to_map(column, array, map_of(column, self.mapping)) for column, array in pairs]

    def fields(self, mutation: Mutation, columns: list[pa.Array], prefix: str) -> Map[str, Source]:
        del mutation
        entries: dict[str, dict[str, pa.Array]] = {name: {} for name in MAPS if self.mapping.has_bytes_map or name != "bytes"}
        for column, array in zip(self.schema.columns, columns, strict=True):
            entries[map_of(column, self.mapping)][column.name] = array
        return {prefix + name: MapColumns(mine) for name, mine in entries.items()}

    def headers(self, images: pa.RecordBatch, mutations: Mutations) -> tuple[Extra, ...]:
        return null_headers(images, mutations, self.always)


@dataclass(frozen=True, slots=True)
class GenericTableEncodings:
    """The layouts of all tables."""

    schemas: SchemaRegistration
    mapping: ValueMapping

    def of(self, schema: TableSchema) -> GenericTableEncoding:
        ids = {mutation: self.schemas.register(generic_subject(mutation), _schema(mutation, self.mapping)) for mutation in Mutation}
        return GenericTableEncoding(schema, self.mapping, ids, self._always(schema))

    def check(self, schema: TableSchema) -> None:
        """Check that the repository has the generic schemas, which are the same for all tables."""
        del schema
        for mutation in Mutation:
            self.schemas.check(generic_subject(mutation), _schema(mutation, self.mapping))

    def _always(self, schema: TableSchema) -> Extra:
        if not self.schemas.is_shared:
            # Other processes cannot look up the columns.
            return ()
        number = self.schemas.register(columns_subject(schema.name), schema_text(columns_schema(schema)))
        return ((COLUMNS_HEADER, id_bytes(number)),)
