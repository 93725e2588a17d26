"""What a file of pipes comes to: everything checked, secrets in their places, one `PipeSpec` for each source of each pipe.

Invariant: whatever language the file was written in, this is what runs; nothing in the file is without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from headrace.pipes.factory import PipeSpec


class LogFormat(StrEnum):
    """How the process writes its log."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """`[headrace]`: what is said of the process as a whole. What stands under a field is its documentation for users."""

    state: Path = Path("headrace-state")
    """Where progress is kept: a directory, with one inside for each pipe."""
    listen: str = "127.0.0.1:8088"
    """Where the dashboard, the figures and the control API are served; empty: nowhere."""
    hosts: tuple[str, ...] = ()
    """Names that the dashboard is reached by from elsewhere, such as a proxy's. Needed to listen on another address than loopback."""
    master: str = "local[2]"
    """The Spark master: `local[N]`, `spark://host:port`, `yarn`, `k8s://…`."""
    log: LogFormat = LogFormat.TEXT
    """`text` or `json`: one object a line."""
    spark_log: bool = False
    """Whether Spark's own warnings are logged."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark's."""
    retry_seconds: float = 5.0
    """How long a pipe that ended by a passing error waits before it is started again; doubled each time, up to five minutes."""


@dataclass(frozen=True, slots=True)
class ConfiguredPipe:
    """One pipe of the file: its sources' parts into one sink. A part's `settings.name` is `NAME`, or `NAME/SOURCE` if there are several."""

    name: str
    specs: tuple[PipeSpec, ...]
    enabled: bool = True
    merged: bool = False
    """Whether the sources' rows are seen together: in tables over the parts' own ones, or in the same topics."""
    prefix: str = ""
    """What the names of the parts' targets begin with, `{source}` in it for the source's name."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A whole file."""

    file: str
    process: ProcessSettings
    pipes: tuple[ConfiguredPipe, ...]
