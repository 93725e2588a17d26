"""The settings of one pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.table_selection import Selection
from headrace.settings.dataclass_fields import select_values
from headrace.settings.pipe_keys import (
    LOG_KEYS,
    BinlogKeys,
    CascadeKeys,
    ColumnKeys,
    LatencyKeys,
    RelayKeys,
    SnapshotKeys,
    SnapshotMode,
    StartKeys,
    TargetKeys,
)
from headrace.settings.schema_policy import SchemaPolicy
from headrace.settings.settings_file import UserSettings
from headrace.sources.mysql.limits import BatchLimits
from headrace.transforms.options import Transforms, read_salts

SALTS = "salts"
"""The stored option that shows whether hashes use the same salts."""
RESHAPED_TABLES = "reshaped"
"""The stored option with tables that must be emptied before a resync because their transforms changed."""


def snapshot_mode_for(start_at: str, mode: SnapshotMode) -> SnapshotMode:
    """Return the snapshot mode; a pipe that starts at a position of the log takes none."""
    if start_at and mode is SnapshotMode.CONSISTENT:
        raise DefiniteError(
            "a pipe that starts at a place in the log reads no rows first", place="start_at", hint="leave out start_at, or snapshot"
        )
    return SnapshotMode.NONE if start_at else mode


@dataclass(frozen=True)
class PipeSettings(StartKeys, SnapshotKeys, BinlogKeys, LatencyKeys, CascadeKeys, RelayKeys, TargetKeys):
    """All settings of a pipe except its source and sink."""

    selection: Selection
    state: Path
    projection: Projection = field(default_factory=Projection)
    once: bool = False
    schema_changes: SchemaPolicy = field(default_factory=SchemaPolicy)
    master: str = "local[2]"
    spark: Mapping[str, str] = field(default_factory=dict)
    """More Spark settings, including those of Headrace on a cluster (`spark.headrace.*`, see docs/scaling.md)."""
    spark_log: bool = False
    name: str = ""
    """The pipe's name in the sink's bookkeeping tables; empty: the name of its state directory."""
    choices: dict[str, Any] = field(default_factory=dict)
    """Settings of the sink and its tables in plain form (`settings_file`); stored in the state."""
    transforms: Transforms = field(init=False, repr=False)
    """The transforms among `choices`."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], chosen: UserSettings, *, selection: Selection, state: Path) -> PipeSettings:
        """Build the settings of a pipe from keys of a pipe file, or from flags of the same names."""
        columns, own = select_values(values, ColumnKeys), select_values(values, *LOG_KEYS, LatencyKeys, TargetKeys)
        return cls(
            selection,
            state,
            Projection(columns["columns"], columns["exclude_columns"]),
            schema_changes=chosen.schema_changes,
            choices=chosen.plain,
            **{**own, "snapshot": snapshot_mode_for(own["start_at"], own["snapshot"])},
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", UserSettings(self.choices).transforms)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.flush_bytes, self.flush_rows, self.flush_seconds, self.latency_seconds)

    @property
    def pipe_name(self) -> str:
        return self.name or self.state.resolve().name

    @property
    def stored_options(self) -> dict[str, Any]:
        """The settings that are stored with a new state and must not change later."""
        columns = {"include": list(self.projection.include), "exclude": list(self.projection.exclude)}
        salts = read_salts(self.transforms).fingerprints()
        return {"zero_dates": self.zero_dates.value, "columns": columns, "settings": self.choices, **({SALTS: salts} if salts else {})}
