"""Schema repositories: where the schemas of messages are kept, by subject and by id.

Invariant: an id means the same schema for ever, and the same schema has the same id whatever its subject. A subject's schemas follow each
other only as its compatibility allows; by default (BACKWARD, as in Confluent's registry) the newer one reads what the one before it wrote.
Registering is idempotent: a subject that has the schema answers with its id.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qsl

from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret
from headrace.kafka.avro.resolution import problems
from headrace.kafka.avro.schema import AvroSchema

MEMORY: Final = "memory"
PASSWORD_VARIABLE: Final = "HEADRACE_REGISTRY_PASSWORD"
PROPERTIES_VARIABLE: Final = "HEADRACE_REGISTRY_PROPERTIES"
"""Further properties of the registry's client, as after the question mark of an address."""
_FORM: Final = "write http://host:8081 for a registry, a path for a directory of .avsc files, or memory"


class Compatibility(StrEnum):
    """Which schemas may follow a subject's, by the names of Confluent's registry."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """The new one reads what the last one wrote."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    """The last one reads what the new one writes."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of a subject."""

    subject: str
    id: int
    version: int
    """Its place among the subject's schemas, from 1."""
    schema: AvroSchema


class SchemaRepository(Protocol):
    """Where schemas are kept. Every method may raise a `TransientError` if it is away, after trying for a while."""

    def register(self, subject: str, schema: AvroSchema) -> int:
        """The schema's id; a `DefiniteError` if the subject does not allow it."""

    def by_id(self, number: int) -> AvroSchema:
        """The schema with this id; a `DefiniteError` if there is none."""

    def latest(self, subject: str) -> Registered | None:
        """The subject's newest schema, as of now; None if it has none."""

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        """Why the subject would not allow the schema; nothing if it would."""


def open_repository(address: str) -> SchemaRepository:
    """A repository by its address: a registry's URL, `memory` (this process's own), or a directory."""
    if address.startswith(("http://", "https://")):
        from headrace.kafka.registry_http import HttpRepository

        return HttpRepository(address)
    if address.removesuffix(":") == MEMORY:
        return _this_process()
    if not address or "://" in address:
        raise DefiniteError(f"{address!r} is no address of a schema repository", hint=_FORM)
    from headrace.kafka.registry_files import DirectoryRepository

    return DirectoryRepository(Path(address))


def secret_in(address: str) -> str | None:
    """What in a registry's address is a secret, by its name; nothing of it may be kept or shown."""
    place, _, query = address.partition("?")
    if not place.startswith(("http://", "https://")):
        return None
    if any(":" in one.rpartition("@")[0].partition("://")[2] for one in place.split(",")):
        return "its password"
    return next((name for name, _ in parse_qsl(query) if is_secret(name)), None)


def plain_text(schema: AvroSchema) -> str:
    """A schema's JSON in one form: schemas that say the same have the same, however they were written down."""
    return json.dumps(json.loads(schema.text), sort_keys=True, separators=(",", ":"))


def conflicts(level: Compatibility, schema: AvroSchema, before: Sequence[AvroSchema]) -> tuple[str, ...]:
    """Why a schema must not follow those before it, oldest first."""
    if level is Compatibility.NONE or not before:
        return ()
    others = before if level.value.endswith("TRANSITIVE") else before[-1:]
    found: list[str] = []
    for other in others:
        if not level.value.startswith("FORWARD"):
            found.extend(problems(other.root, schema.root))
        if not level.value.startswith("BACKWARD"):
            found.extend(f"{problem} (by readers of the schema before)" for problem in problems(schema.root, other.root))
    return tuple(dict.fromkeys(found))


def refusal(subject: str, found: Sequence[str]) -> DefiniteError:
    """The error for a schema that a subject does not allow."""
    return DefiniteError(
        f"the schema cannot follow the last one of {subject}: {'; '.join(found)}",
        place=f"subject {subject}",
        hint="give new fields defaults, or set the subject's compatibility to NONE",
    )


class MemoryRepository:
    """Schemas of this process alone, gone with it."""

    def __init__(self, compatibility: Compatibility = Compatibility.BACKWARD) -> None:
        self._level = compatibility
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, AvroSchema] = {}
        self._subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: AvroSchema) -> int:
        text = plain_text(schema)
        ids = self._subjects.get(subject, [])
        if self._ids.get(text) in ids:
            return self._ids[text]
        found = self.check(subject, schema)
        if found:
            raise refusal(subject, found)
        number = self._ids.setdefault(text, len(self._ids) + 1)
        self._schemas.setdefault(number, schema)
        self._subjects.setdefault(subject, []).append(number)
        return number

    def by_id(self, number: int) -> AvroSchema:
        if number not in self._schemas:
            raise DefiniteError(f"there is no schema with the id {number} in this process's memory", hint="use a registry or a directory")
        return self._schemas[number]

    def latest(self, subject: str) -> Registered | None:
        ids = self._subjects.get(subject)
        return Registered(subject, ids[-1], len(ids), self._schemas[ids[-1]]) if ids else None

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        return conflicts(self._level, schema, [self._schemas[number] for number in self._subjects.get(subject, [])])


@functools.cache
def _this_process() -> MemoryRepository:
    return MemoryRepository()
