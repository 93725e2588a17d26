"""The MySQL source as Spark carries it from process to process: settings only.

Every process that unpickles it imports this module; only the one that plans needs the rest of the source and its compiled kernels, whose
import costs a second each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition

if TYPE_CHECKING:
    from headrace.sources.mysql.split_reader import LogPlanner, MySQLPlanner

CHUNK_ROWS: Final = 200_000
"""Rows per chunk of a snapshot, unless a user says otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a batch is cut."""

    flush_bytes: int = 128 << 20
    flush_rows: int = 0
    """Changes per batch, counted only if set; 0 sets no such limit."""
    flush_seconds: float = 0.05
    parallelism: int = 2
    poll_seconds: float = 1.0
    """How long planning waits for changes before it says that there are none."""


class Reach(StrEnum):
    """Where tasks find the mirror of the log."""

    HERE = "here"
    """They run on this machine."""
    SOUGHT = "sought"
    """They may run elsewhere: if they do not find it they fetch their part from the source (see `fetching`)."""
    HIDDEN = "hidden"
    """They always fetch it."""


@dataclass(frozen=True, slots=True)
class MySQLSource:
    """A server's log from a position on, mirrored under `relay_dir`."""

    address: MySQLAddress
    start: BinlogPosition
    relay_dir: Path
    relay_bytes: int
    limits: Limits
    mariadb: bool
    identity: str = ""
    """Who the server must be, if known: another one that answers in its place is refused."""
    reach: Reach = Reach.HERE
    backlog: Path | None = None
    """Where the relay writes what it has received, if the driver wants to know (see `backlog`)."""

    def planner(self) -> MySQLPlanner:
        from headrace.sources.mysql.split_reader import MySQLPlanner

        return MySQLPlanner(self)


@dataclass(frozen=True, slots=True)
class BinlogDirectory:
    """Log files in a directory, from a position on; nothing is mirrored, the files are read where they lie."""

    path: Path
    start: BinlogPosition
    limits: Limits
    mariadb: bool
    backlog: Path | None = None
    """As in `MySQLSource`."""

    def planner(self) -> LogPlanner:
        from headrace.sources.mysql.offline_source import directory_planner

        return directory_planner(self)
