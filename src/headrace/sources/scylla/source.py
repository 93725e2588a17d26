"""ScyllaDB's log behind the source's port: what is carried to the planner's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.cql.address import CqlAddress
from headrace.cql.session import connect
from headrace.model.schema import TableName
from headrace.retry import retrying
from headrace.sources.scylla.generations import Start
from headrace.sources.scylla.snapshot.options import ScyllaChoices
from headrace.sources.scylla.stream_catalog import ServerCatalog
from headrace.sources.scylla.window_planner import LogPlanner


@dataclass(frozen=True, slots=True)
class ScyllaSource:
    """The logs of some tables of a cluster. Picklable."""

    address: CqlAddress
    starts: Mapping[TableName, Start]
    choices: ScyllaChoices
    slots: int
    pace: Path | None = None

    def planner(self) -> LogPlanner:
        session = retrying(lambda: connect(self.address))
        return LogPlanner(ServerCatalog(session, self.choices), self.starts, self.choices, self.slots, self.pace)
