"""Registers the schemas of messages, and caches their ids for the life of a process.

Invariant: a subject and a schema text have one id in all processes. A repository in memory belongs to one process, so it serves generic
messages only, whose three schemas have the same ids in every process.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.mypipe.wire_format import generic_repository
from headrace.kafka.registry import MEMORY, open_repository
from headrace.kafka.registry_files import DirectoryRepository
from headrace.kafka.schema_repository import Compatibility, RegisteredSchema, SchemaRepository, incompatible_schema_error
from headrace.sinks.kafka.messages.options import Incompatible, KafkaOptions, MutationSchemas

_SHARED = "choose kafka.registry: a folder, or the http address of a registry"


@dataclass(frozen=True, slots=True)
class SchemaRegistration:
    """Registers schemas for encoders."""

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
