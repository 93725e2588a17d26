"""The ScyllaDB source; pickled to the planner's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cql.address import CqlAddress
from headrace.cql.session import connect
from headrace.model.schema import TableName
from headrace.retry import retrying
from headrace.sources.scylla.generations import LogStart
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.stream_catalog import ServerCatalog
from headrace.sources.scylla.window_planner import WindowPlanner


@dataclass(frozen=True, slots=True)
class ScyllaSource:
    """The logs of some tables of a cluster. Picklable."""

    address: CqlAddress
    starts: Mapping[TableName, LogStart]
    options: ScyllaOptions
    slots: int
    pace: Path | None = None

    def planner(self) -> WindowPlanner:
        session = retrying(lambda: connect(self.address))
        return WindowPlanner(ServerCatalog(session, self.options), self.starts, self.options, self.slots, self.pace)
