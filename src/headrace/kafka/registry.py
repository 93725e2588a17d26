"""Opens the schema repository at an address: a registry over HTTP, a directory of `.avsc` files, or this process's memory."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

from headrace.errors import DefiniteError
from headrace.jsonl import sync_directory
from headrace.kafka.address import is_secret
from headrace.kafka.avro.schema import AvroSchema, parse_schema
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
_FILE: Final = re.compile(r"(\d+)\.(\d+)\.avsc")


def open_repository(address: str) -> SchemaRepository:
    """Open a repository by its address: a registry's URL, `memory` (of this process), or a directory."""
    if address.startswith(("http://", "https://")):
        from headrace.kafka.registry_http import HttpRepository

        return HttpRepository(address)
    if address.removesuffix(":") == MEMORY:
        return _process_repository()
    if not address or "://" in address:
        raise DefiniteError(f"{address!r} is not the address of a schema repository", hint=_FORM)
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


class DirectoryRepository:
    """Schemas in files `SUBJECT/VERSION.ID.avsc`. Registering the first one creates the directory.

    Invariant: a file is complete (it is written under a temporary name and renamed) and never changes. A writer holds the directory's
    lock, so two processes never give one id to two schemas; readers need no lock. Users may add files by hand.
    """

    def __init__(self, directory: Path, compatibility: Compatibility = Compatibility.BACKWARD) -> None:
        self._directory = directory
        self._level = compatibility
        self._schemas: dict[int, AvroSchema] = {}

    def register(self, subject: str, schema: AvroSchema) -> int:
        with self._locked():
            known = self._schemas_of(subject)
            text = canonical_json(schema)
            for one in known:
                if canonical_json(one.schema) == text:
                    return one.id
            found = find_conflicts(self._level, schema, [one.schema for one in known])
            if found:
                raise incompatible_schema_error(subject, found)
            number = self._id_of(text)
            self._write(subject, known[-1].version + 1 if known else 1, number, schema)
            return number

    def by_id(self, number: int) -> AvroSchema:
        if number not in self._schemas:
            path = next((path for path, _, found in self._files() if found == number), None)
            if path is None:
                raise DefiniteError(
                    f"there is no schema with the id {number} in {self._directory}",
                    hint="use the directory that the messages were written with",
                )
            self._schemas[number] = _read(path)
        return self._schemas[number]

    def latest(self, subject: str) -> RegisteredSchema | None:
        return next(reversed(self._schemas_of(subject)), None)

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        return find_conflicts(self._level, schema, [one.schema for one in self._schemas_of(subject)])

    def _schemas_of(self, subject: str) -> list[RegisteredSchema]:
        """Return a subject's schemas, oldest first."""
        return sorted(
            (RegisteredSchema(subject, number, version, self.by_id(number)) for _, version, number in self._files(_folder_name(subject))),
            key=lambda one: one.version,
        )

    def _files(self, folder: str = "*") -> Iterator[tuple[Path, int, int]]:
        folders = self._directory.iterdir() if folder == "*" else [self._directory / folder]
        for place in folders if self._directory.is_dir() else ():
            for path in place.iterdir() if place.is_dir() else ():
                match = _FILE.fullmatch(path.name)
                if match:
                    yield path, int(match[1]), int(match[2])

    def _id_of(self, text: str) -> int:
        """Return the id of the schema under another subject, or the next free id."""
        most = 0
        for path, _, number in self._files():
            if number not in self._schemas:
                self._schemas[number] = _read(path)
            if canonical_json(self._schemas[number]) == text:
                return number
            most = max(most, number)
        return most + 1

    def _write(self, subject: str, version: int, number: int, schema: AvroSchema) -> None:
        folder = self._directory / _folder_name(subject)
        folder.mkdir(exist_ok=True)
        temporary = folder / f".{secrets.token_hex(8)}"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(schema.text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / f"{version}.{number}.avsc")
        for place in (folder, self._directory):
            sync_directory(place)
        self._schemas[number] = schema

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DefiniteError(
                f"the directory of schemas cannot be written: {error}", place=str(self._directory), hint="choose one that can"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _read(path: Path) -> AvroSchema:
    try:
        return parse_schema(path.read_text("utf-8"), strict=False)
    except DefiniteError as error:
        raise DefiniteError(error.message, place=str(path), hint=error.hint) from error


def _folder_name(subject: str) -> str:
    """Return a subject as a folder name that cannot leave the directory."""
    found = quote(subject, safe=" $@+")
    return found.replace(".", "%2E", 1) if found.startswith(".") else found
