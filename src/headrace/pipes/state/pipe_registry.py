"""Which pipes fill a sink: `headrace.pipes`, one row per pipe, written when it begins.

Whoever has the sink finds here from where its tables come, with which settings, and where the pipe keeps its state. Invariant: a row tells
how the pipe was last begun; it never holds a password.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.table_selection import Selection
from headrace.pipes.state.pipe_state import PipeState
from headrace.settings.settings_file import UserSettings, load_stored
from headrace.sinks.base import ProgressStore
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, format_timestamp
from headrace.sinks.clickhouse.bookkeeping.progress_store import PIPES
from headrace.sinks.clickhouse.server.quoting import quote_text


@dataclass(frozen=True, slots=True)
class PipeEntry:
    """What a sink knows of a pipe."""

    name: str
    source: str
    """The source's address, without password."""
    selection: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """What the state says was chosen."""
    state: str = ""
    """The state directory, on `host`."""
    host: str = field(default_factory=socket.gethostname)
    statement: str = ""
    """The CREATE DATABASE that made it, if one did, its password hidden."""
    created: str = field(default_factory=lambda: format_timestamp(time.time_ns() // 1000))

    @property
    def chosen(self) -> UserSettings:
        """The settings of its tables."""
        return load_stored(self.options.get("settings", {}), f"pipe {self.name}")

    @property
    def tables(self) -> Selection:
        return Selection.from_json(self.selection)

    @property
    def projection(self) -> Projection:
        columns = self.options.get("columns", {})
        return Projection(tuple(columns.get("include", ())), tuple(columns.get("exclude", ())))

    @property
    def is_here(self) -> bool:
        """Whether its state directory is on this machine."""
        return self.host == socket.gethostname()


def entry_of(name: str, state: PipeState, directory: Path) -> PipeEntry:
    """What a pipe that begins says of itself."""
    return PipeEntry(name, state.source, state.selection, state.options, str(directory))


def register(books: ProgressStore, entry: PipeEntry) -> None:
    """Say how a pipe was begun."""
    books.register(
        {
            "pipe": entry.name,
            "source": entry.source,
            "selection": json.dumps(entry.selection),
            "options": json.dumps(entry.options),
            "state": entry.state,
            "host": entry.host,
            "statement": entry.statement,
            "created": entry.created,
        }
    )


def find_pipe(own: OwnTables, name: str) -> PipeEntry | None:
    """The pipe of a name; None if the sink knows none."""
    return next(iter(_read(own, f"pipe = {quote_text(name)}")), None)


def all_pipes(own: OwnTables) -> list[PipeEntry]:
    """All pipes that a sink knows, by name."""
    return _read(own, "1")


def pipe_from(own: OwnTables, source: str, name: str = "") -> PipeEntry | None:
    """The pipe of a name, or else the one that comes from a source's server and database, whoever asks there; None if there is none.

    Several that do the same are as good as one, and the last one counts; several that differ are an error.
    """
    if name:
        return find_pipe(own, name)
    found = sorted((entry for entry in all_pipes(own) if _origin(entry.source) == _origin(source)), key=lambda entry: entry.created)
    if any((entry.options, entry.selection) != (found[-1].options, found[-1].selection) for entry in found):
        names = ", ".join(entry.name for entry in found)
        raise DefiniteError(f"several pipes come from {source}: {names}", place="headrace.pipes", hint="say which with --pipe NAME")
    return found[-1] if found else None


def _origin(source: str) -> tuple[str, str, str]:
    parts = urlsplit(source)
    return parts.netloc.rpartition("@")[2], parts.path, parts.query


def _read(own: OwnTables, condition: str) -> list[PipeEntry]:
    if not own.exists(PIPES):
        return []
    rows = own.select(PIPES, [name for name, _ in PIPES.columns], condition, "pipe")
    return [
        PipeEntry(name, source, json.loads(selection), json.loads(options), state, host, statement, created)
        for name, source, selection, options, state, host, statement, created in rows
    ]
