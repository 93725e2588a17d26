"""What a pipe is made of: its addresses and settings, its kind of source, and the pipe that was opened from them.

Each source connector is defined in `connector.py` of its pipe's folder and listed in `pipes.source_registry`. It imports decoders and
drivers only when a pipe is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.extras import Extra
from headrace.settings.pipe_keys import TopicKeys
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import UserSettings
from headrace.sources.preflight import Finding

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.base import Pipe
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.runtime.interface import Runtime


@dataclass(frozen=True, slots=True)
class PipeSpec:
    """One source, one sink, and the settings of the pipe between them. Addresses contain secrets: never print one."""

    source: str = field(repr=False)
    sink: str = field(repr=False)
    settings: PipeSettings
    chosen: UserSettings = field(default_factory=UserSettings)
    topics: TopicKeys = field(default_factory=TopicKeys)

    @property
    def name(self) -> str:
        return self.settings.pipe_name


@dataclass(frozen=True, slots=True)
class BuiltPipe:
    """A pipe that is ready to run, with its sink open."""

    pipe: Pipe
    is_lost: Callable[[], bool]
    """Whether the sink's embedded server has exited."""


@dataclass(frozen=True, slots=True)
class SourceConnector:
    name: str
    label: str
    """The name in messages to users."""
    schemes: Sequence[str]
    """What addresses start with."""
    redact: Callable[[str], str]
    """Return an address without its secrets."""
    preload: tuple[str, ...]
    """Modules that tasks need."""
    open: Callable[[PipeSpec, ProgressView, Runtime | None, str], AbstractContextManager[BuiltPipe]]
    """Open the pipe of a spec and its sink. The text is the host where tasks reach this process."""
    preflight: Callable[[PipeSpec], Sequence[Finding]]
    """Ask the source's servers whether they are as the pipe needs them."""
    check: Callable[[PipeSpec], None] = lambda _: None
    """Raise `DefiniteError` if settings of the pipe contradict each other. Sends no request."""
    database_of: Callable[[str], str] = lambda _: ""
    """Return the database or keyspace that an address names; empty if it names none."""
    spark_settings: Callable[[PipeSpec], Mapping[str, str]] = lambda _: {}
    """Return settings that Spark must be started with."""
    extra: Extra | None = None
    """The optional part of the installation that such a source needs."""
    sections: tuple[str, ...] = ()
    """The sections of a settings file with the source's options."""
    section_subject: str = ""
    """What the sections are about, for the error when the source is another one."""
    refused_sections: tuple[tuple[str, str], ...] = ()
    """Further sections that do not apply to the source, each with the reason."""
    selects_all: bool = False
    """Whether all tables are selected if none is named, and the address names no database."""
    has_rows: bool = True
    """Whether the source is a database, whose rows can be read again; else it is a log."""
    is_cdc_log: bool = False
    """Whether the pipe writes rows of a CDC log (`sinks.cdc_log_sink`) instead of change blocks."""

    def is_address(self, address: str) -> bool:
        return address.startswith(tuple(self.schemes))
