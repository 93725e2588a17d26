"""Schema repositories: the interface, and the rules that every implementation keeps.

Invariant: an id always means the same schema, and a schema has the same id under every subject. A new schema of a subject must meet the
subject's compatibility level; by default (BACKWARD, as in Confluent's registry) it can read what the previous schema wrote. Registering is
idempotent: if the subject already has the schema, its existing id is returned.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from headrace.errors import DefiniteError
from headrace.kafka.avro.schema import AvroSchema, problems

PASSWORD_VARIABLE: Final = "HEADRACE_REGISTRY_PASSWORD"
PROPERTIES_VARIABLE: Final = "HEADRACE_REGISTRY_PROPERTIES"
"""Further properties of the registry client, in the form of a URL's query."""


class Compatibility(StrEnum):
    """Compatibility levels of a subject, named as in Confluent's registry."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """The new schema can read data of the last one."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    """The last schema can read data of the new one."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    subject: str
    id: int
    version: int
    """Its number among the subject's schemas, from 1."""
    schema: AvroSchema


class SchemaRepository(Protocol):
    """A store of schemas. Every method may raise a `TransientError`, after retries, if the store is unreachable."""

    def register(self, subject: str, schema: AvroSchema) -> int:
        """Return the schema's id; raise `DefiniteError` if the subject does not allow it."""

    def by_id(self, number: int) -> AvroSchema:
        """Return the schema with this id; raise `DefiniteError` if it does not exist."""

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the subject's current newest schema; None if it has none."""

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        """Return why the subject would not allow the schema; empty if it would."""


def canonical_json(schema: AvroSchema) -> str:
    """Return a schema's JSON in a canonical form: equal schemas give equal texts."""
    return json.dumps(json.loads(schema.text), sort_keys=True, separators=(",", ":"))


def find_conflicts(level: Compatibility, schema: AvroSchema, before: Sequence[AvroSchema]) -> tuple[str, ...]:
    """Return why a schema must not follow the existing ones (oldest first)."""
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


def incompatible_schema_error(subject: str, found: Sequence[str]) -> DefiniteError:
    return DefiniteError(
        f"the schema cannot follow the last one of {subject}: {'; '.join(found)}",
        place=f"subject {subject}",
        hint="give new fields defaults, or set the subject's compatibility to NONE",
    )
