"""The settings of one pipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import ZeroDates
from headrace.model.table_selection import Selection
from headrace.retry import DEADLINE_S
from headrace.settings.schema_policy import SchemaPolicy
from headrace.settings.settings_file import UserSettings
from headrace.sources.mysql.limits import CHUNK_ROWS, BatchLimits
from headrace.transforms.options import Transforms
from headrace.transforms.salts import read_salts

SALTS = "salts"
"""The stored option that shows whether hashes use the same salts."""
RESHAPED_TABLES = "reshaped"
"""The stored option with tables that must be emptied before a resync because their transforms changed."""


class SnapshotMode(StrEnum):
    """How the rows that are there at the start come over."""

    NONE = "none"
    LOCK_FREE = "lock-free"
    CONSISTENT = "consistent"


def snapshot_mode_for(start_at: str, asked: SnapshotMode) -> SnapshotMode:
    """Return the snapshot mode; a pipe that starts at a position of the log takes none."""
    if start_at and asked is SnapshotMode.CONSISTENT:
        raise DefiniteError(
            "a pipe that starts at a place in the log reads no rows first", place="start_at", hint="leave out start_at, or snapshot"
        )
    return SnapshotMode.NONE if start_at else asked


@dataclass(frozen=True, slots=True)
class PipeSettings:
    """All settings of a pipe except its source and sink."""

    selection: Selection
    state: Path
    projection: Projection = field(default_factory=Projection)
    once: bool = False
    start_at: str = ""
    """Where to start, without a snapshot: `now`, `oldest`, `FILE:OFFSET` or a GTID set."""
    snapshot: SnapshotMode = SnapshotMode.LOCK_FREE
    schema_changes: SchemaPolicy = field(default_factory=SchemaPolicy)
    limits: BatchLimits = field(default_factory=BatchLimits)
    relay_bytes: int = 1 << 30
    relay: str = ""
    """The directory of the relay log; empty: in the state directory. On a cluster, use a shared directory: tasks read the log there
    instead of fetching it from the source again."""
    chunk_rows: int = CHUNK_ROWS
    zero_dates: ZeroDates = ZeroDates.HALT
    retry_timeout_s: float = DEADLINE_S
    """How long to wait for a sink that is away or busy."""
    master: str = "local[2]"
    spark: Mapping[str, str] = field(default_factory=dict)
    """More Spark settings, including those of Headrace on a cluster (`spark.headrace.*`, see docs/scaling.md)."""
    spark_log: bool = False
    name: str = ""
    """The pipe's name in the sink's bookkeeping tables; empty: the name of its state directory."""
    shared_target: bool = False
    """Whether the pipe may write to tables or topics that another pipe writes to."""
    choices: dict[str, Any] = field(default_factory=dict)
    """Settings of the sink and its tables in plain form (`settings_file`); stored in the state."""
    transforms: Transforms = field(init=False, repr=False)
    """The transforms among `choices`."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], chosen: UserSettings, *, selection: Selection, state: Path) -> PipeSettings:
        """Build the settings of a pipe from keys of a pipe file, or from flags of the same names."""
        return cls(
            selection=selection,
            state=state,
            projection=Projection(tuple(values["columns"]), tuple(values["exclude_columns"])),
            start_at=values["start_at"],
            snapshot=snapshot_mode_for(values["start_at"], SnapshotMode(values["snapshot"])),
            schema_changes=chosen.schema_changes,
            limits=BatchLimits(values["flush_bytes"], values["flush_rows"], values["flush_seconds"]),
            relay_bytes=values["relay_bytes"],
            relay=values["relay"],
            chunk_rows=values["chunk_rows"],
            zero_dates=ZeroDates(values["zero_dates"]),
            retry_timeout_s=values["patience"] or math.inf,
            shared_target=values["shared_target"],
            choices=chosen.plain,
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", UserSettings(self.choices).transforms)

    @property
    def pipe_name(self) -> str:
        return self.name or self.state.resolve().name

    @property
    def stored_options(self) -> dict[str, Any]:
        """The settings that are stored with a new state and must not change later."""
        columns = {"include": list(self.projection.include), "exclude": list(self.projection.exclude)}
        salts = read_salts(self.transforms).fingerprints()
        return {"zero_dates": self.zero_dates.value, "columns": columns, "settings": self.choices, **({SALTS: salts} if salts else {})}
