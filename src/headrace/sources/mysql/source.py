"""The MySQL sources as Spark pickles them: settings only.

Every process that unpickles a source imports this module. Only the process that plans imports the planner and its compiled kernels, which
takes a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.sources.mysql.limits import BatchLimits, SegmentAccess
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition

if TYPE_CHECKING:
    from headrace.sources.mysql.split_reader import BinlogPlanner


@dataclass(frozen=True, slots=True)
class MySQLSource:
    """A server's binary log from a position on. The relay copies it to `relay_dir`."""

    address: MySQLAddress
    start: BinlogPosition
    relay_dir: Path
    relay_bytes: int
    limits: BatchLimits
    mariadb: bool
    identity: str = ""
    """The expected server identity, if known. The relay refuses another server at the same address."""
    access: SegmentAccess = SegmentAccess.LOCAL
    backlog: Path | None = None
    """The file to which the relay writes the commit times it has received, if the driver reports lag (see `commit_times`)."""

    def planner(self) -> BinlogPlanner:
        from headrace.sources.mysql.split_reader import MySQLPlanner, open_relay

        relay = open_relay(self.address, self.relay_dir, self.relay_bytes, self.identity, self.backlog)
        return MySQLPlanner(relay, self.start, self.limits, mariadb=self.mariadb, access=self.access)


@dataclass(frozen=True, slots=True)
class BinlogDirectory:
    """Binary log files in a directory, from a position on. The planner reads them in place, without a relay."""

    path: Path
    start: BinlogPosition
    limits: BatchLimits
    mariadb: bool
    backlog: Path | None = None
    """See `MySQLSource.backlog`."""

    def planner(self) -> BinlogPlanner:
        from headrace.sources.mysql.offline_source import directory_planner

        return directory_planner(self.path, self.start, self.limits, mariadb=self.mariadb, backlog=self.backlog)
