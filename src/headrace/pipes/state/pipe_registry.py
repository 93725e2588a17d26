"""Registers pipes in the sink: `headrace.pipes`, one row per pipe, written at each start.

The row tells where the sink's tables come from, with which settings, and where the pipe keeps its state. Invariant: a row describes the
last start of the pipe and never holds a password.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.table_selection import Selection
from headrace.settings.settings_file import UserSettings, load_stored
from headrace.sinks.base import ProgressStore
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, format_timestamp
from headrace.sinks.clickhouse.bookkeeping.progress_store import PIPES
from headrace.sinks.clickhouse.server.identifiers import quote_text


@dataclass(frozen=True, slots=True)
class PipeEntry:
    name: str
    source: str
    """The source's address, without password."""
    selection: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """Settings from the state."""
    state: str = ""
    """The state directory, on `host`."""
    host: str = field(default_factory=socket.gethostname)
    statement: str = ""
    """The CREATE DATABASE statement that created the pipe, if any, with its password hidden."""
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


def register(store: ProgressStore, entry: PipeEntry) -> None:
    store.register(
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
    return next(iter(_read(own, f"pipe = {quote_text(name)}")), None)


def all_pipes(own: OwnTables) -> list[PipeEntry]:
    return _read(own, "1")


def pipe_from(own: OwnTables, source: str, name: str = "") -> PipeEntry | None:
    """Return the pipe of a name, or else the one that reads the source's server and database with any user; None if there is none.

    Of several equal pipes the last one counts; several that differ are an error.
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
