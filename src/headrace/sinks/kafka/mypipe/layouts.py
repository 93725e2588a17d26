"""The layouts of mypipe's messages, and the registration of their schemas.

Generic messages hold a row's values in maps by their type, under schemas that are the same for all tables. Headers hold what the maps
cannot: which columns are NULL, and the id of a schema with the exact types of the columns. An altered table continues in the same topic
with the same message schemas.

Specific messages are one Avro record per table, with a field for each column. An ALTER TABLE registers a new version of its schema.
The repository decides whether readers of the new version can read earlier messages. If they cannot, the pipe halts, or continues if the
user chose so. A subject whose newest schema was not written by Headrace keeps it: its records take the table's values (`existing_records`).

Invariant: a subject and a schema text have one id in all processes. A repository in memory belongs to one process, so it serves generic
messages only, whose three schemas have the same ids in every process.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping as Map
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.kafka.avro.encoder import MapColumns, Source
from headrace.kafka.avro.schema import AvroSchema, parse_schema
from headrace.kafka.mypipe.values import ValueMapping, map_of, to_field, to_map
from headrace.kafka.mypipe.wire_format import (
    COLUMNS_HEADER,
    MAPS,
    NULLS_HEADER,
    OLD_NULLS_HEADER,
    Mutation,
    columns_schema,
    columns_subject,
    field_names,
    generic_repository,
    generic_schema,
    generic_subject,
    id_bytes,
    schema_text,
    specific_schema,
    specific_subject,
)
from headrace.kafka.registry import MEMORY, DirectoryRepository, open_repository
from headrace.kafka.schema_repository import Compatibility, RegisteredSchema, SchemaRepository, incompatible_schema_error
from headrace.model.schema import TableSchema
from headrace.model.text_values import fixed_bytes
from headrace.sinks.kafka.mypipe.encoder import Extra, Mutations
from headrace.sinks.kafka.mypipe.existing_records import ExistingRecord, is_headrace_schema, match_record
from headrace.sinks.kafka.options import Incompatible, KafkaOptions, MutationSchemas

_SHARED = "choose kafka.registry: a folder, or the http address of a registry"


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
        del images, mutations
        return ()


@dataclass(frozen=True, slots=True)
class SpecificTableEncodings:
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


@dataclass(frozen=True, slots=True)
class SchemaRegistration:
    repository: SchemaRepository
    is_shared: bool
    """Whether other processes can look up registered schemas."""
    checks: bool = True
    """Whether a schema that is not compatible with the previous one is rejected."""
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _newest: dict[tuple[str, str], RegisteredSchema | None] = field(default_factory=dict)

    def register(self, subject: str, text: str) -> int:
        """Return the schema's id; register the schema if needed."""
        known = self._known.get((subject, text))
        if known is None:
            known = self._known[subject, text] = self.repository.register(subject, parse_schema(text))
        return known

    def newest(self, subject: str, text: str) -> RegisteredSchema | None:
        """Return the subject's newest schema when this process first wrote a schema text; so a block is always encoded alike."""
        if (subject, text) not in self._newest:
            self._newest[subject, text] = self.repository.latest(subject)
        return self._newest[subject, text]

    def check(self, subject: str, text: str) -> None:
        """Raise `DefiniteError` if readers of the subject's messages could not read old ones by this schema."""
        found = self.repository.check(subject, parse_schema(text)) if self.checks and (subject, text) not in self._known else ()
        if found:
            raise incompatible_schema_error(subject, found)


def open_book(choices: KafkaOptions, *, must_be_shared: bool) -> SchemaRegistration:
    """Return the configured repository; one per process."""
    if choices.registry == MEMORY and must_be_shared:
        raise DefiniteError("specific messages need a schema repository that their readers share", hint=_SHARED)
    return _book(
        choices.registry, choices.incompatible is Incompatible.HALT, choices.mutation_schemas is MutationSchemas.OLDER, os.getpid()
    )


@functools.cache
def _book(address: str, checks: bool, older: bool, process: int) -> SchemaRegistration:
    # A forked process must not share its parent's connections.
    del process
    if address == MEMORY:
        return SchemaRegistration(generic_repository(old_shape=older), is_shared=False)
    if not checks and "://" not in address:
        return SchemaRegistration(DirectoryRepository(Path(address), Compatibility.NONE), is_shared=True, checks=False)
    return SchemaRegistration(open_repository(address), is_shared=True, checks=checks)
