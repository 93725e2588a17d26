"""The description of a source connector: what the rest of the code needs to know of a kind of source before a pipe is opened.

Each connector is defined in `connector.py` of its pipe's folder and listed in `pipes.source_registry`. It imports decoders and drivers only
when a pipe is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pipes.spec import BuiltPipe, PipeSpec
from headrace.sources.preflight import Finding

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.runtime.interface import Runtime


def _check_nothing(spec: PipeSpec) -> None:
    del spec


@dataclass(frozen=True, slots=True)
class SourceConnector:
    """One kind of source."""

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
    check: Callable[[PipeSpec], None] = _check_nothing
    """Raise `DefiniteError` if settings of the pipe contradict each other. Sends no request."""
    database_of: Callable[[str], str] = lambda _: ""
    """Return the database or keyspace that an address names; empty if it names none."""
    spark_settings: Callable[[PipeSpec], Mapping[str, str]] = lambda _: {}
    """Return settings that Spark must be started with."""
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
        """Return whether an address is of this kind."""
        return address.startswith(tuple(self.schemes))
