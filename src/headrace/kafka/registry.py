"""Opens the schema repository at an address: a registry over HTTP, a directory of `.avsc` files, or this process's memory."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret
from headrace.kafka.avro.schema import AvroSchema
from headrace.kafka.schema_repository import (
    Compatibility,
    RegisteredSchema,
    SchemaRepository,
    canonical_json,
    find_conflicts,
    incompatible_schema_error,
)

MEMORY: Final = "memory"
_FORM: Final = "write http://host:8081 for a registry, a path for a directory of .avsc files, or memory"


def open_repository(address: str) -> SchemaRepository:
    """Open a repository by its address: a registry's URL, `memory` (of this process), or a directory."""
    if address.startswith(("http://", "https://")):
        from headrace.kafka.registry_http import HttpRepository

        return HttpRepository(address)
    if address.removesuffix(":") == MEMORY:
        return _process_repository()
    if not address or "://" in address:
        raise DefiniteError(f"{address!r} is not the address of a schema repository", hint=_FORM)
    from headrace.kafka.registry_files import DirectoryRepository

    return DirectoryRepository(Path(address))


def secret_name_in(address: str) -> str | None:
    """Return the name of the part of a registry's address that is a secret, if any. It must not be stored or displayed."""
    place, _, query = address.partition("?")
    if not place.startswith(("http://", "https://")):
        return None
    if any(":" in one.rpartition("@")[0].partition("://")[2] for one in place.split(",")):
        return "its password"
    return next((name for name, _ in parse_qsl(query) if is_secret(name)), None)


class MemoryRepository:
    """Schemas in the memory of this process."""

    def __init__(self, compatibility: Compatibility = Compatibility.BACKWARD) -> None:
        self._level = compatibility
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, AvroSchema] = {}
        self._subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: AvroSchema) -> int:
        text = canonical_json(schema)
        ids = self._subjects.get(subject, [])
        if self._ids.get(text) in ids:
            return self._ids[text]
        found = self.check(subject, schema)
        if found:
            raise incompatible_schema_error(subject, found)
        number = self._ids.setdefault(text, len(self._ids) + 1)
        self._schemas.setdefault(number, schema)
        self._subjects.setdefault(subject, []).append(number)
        return number

    def by_id(self, number: int) -> AvroSchema:
        if number not in self._schemas:
            raise DefiniteError(f"there is no schema with the id {number} in this process's memory", hint="use a registry or a directory")
        return self._schemas[number]

    def latest(self, subject: str) -> RegisteredSchema | None:
        ids = self._subjects.get(subject)
        return RegisteredSchema(subject, ids[-1], len(ids), self._schemas[ids[-1]]) if ids else None

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        return find_conflicts(self._level, schema, [self._schemas[number] for number in self._subjects.get(subject, [])])


@functools.cache
def _process_repository() -> MemoryRepository:
    return MemoryRepository()
