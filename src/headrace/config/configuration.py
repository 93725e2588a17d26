"""The validated configuration of a process, with secrets resolved: one `PipeSpec` for each source of each pipe.

Invariant: files of every format lead to this, and nothing in a file is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from headrace.alerts.rules import AlertRule
from headrace.pipes.spec import PipeSpec


class LogFormat(StrEnum):
    """How the process writes its log."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """`[headrace]`: settings of the whole process. The string below a field is its user documentation."""

    state: Path = Path("headrace-state")
    """The directory for progress, with one subdirectory per pipe."""
    listen: str = "127.0.0.1:8088"
    """The address of the dashboard, the metrics and the control API; empty: no server."""
    hosts: tuple[str, ...] = ()
    """Host names by which other machines reach the dashboard, such as a proxy's. Required to listen on an address other than loopback."""
    address: str = ""
    """The address by which people reach the dashboard, such as a proxy's (`https://headrace.example.com`), for links in alerts; empty:
    the one that it listens on."""
    master: str = "local[2]"
    """The Spark master: `local[N]`, `spark://host:port`, `yarn`, `k8s://…`."""
    log: LogFormat = LogFormat.TEXT
    """`text`, or `json`: one object per line."""
    spark_log: bool = False
    """Whether Spark's own warnings are logged."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """More Spark settings."""
    edit: bool = False
    """Whether the dashboard may create, change and delete pipes and alert rules of this file. Those who have the token can then read
    rows of any database whose account they know, and change this file."""
    retry_seconds: float = 5.0
    """How long a pipe waits after a transient error before it restarts; doubled each time, up to five minutes."""


@dataclass(frozen=True, slots=True)
class ConfiguredPipe:
    """One pipe of the file: one spec per source, all with the same sink. A spec is named `NAME`, or `NAME/SOURCE` if there are several."""

    name: str
    specs: tuple[PipeSpec, ...]
    enabled: bool = True
    merged: bool = False
    """Whether the rows of all sources are shown together: in `Merge` tables, or in shared topics."""
    prefix: str = ""
    """The prefix of target names; `{source}` stands for the source's name."""


@dataclass(frozen=True, slots=True)
class Configuration:
    file: str
    process: ProcessSettings
    pipes: tuple[ConfiguredPipe, ...]
    alerts: tuple[AlertRule, ...] = ()
