"""What the user chose for a pipe."""

from __future__ import annotations

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
from headrace.settings.settings_file import Chosen
from headrace.sources.mysql.limits import CHUNK_ROWS, BatchLimits
from headrace.transforms.options import Transforms
from headrace.transforms.salts import read_salts

SALTS = "salts"
"""The lasting choice that tells whether hashes are made with the same secrets."""
RESHAPED = "reshaped"
"""Among a state's options: tables that are to be emptied before they are read again, for they are transformed otherwise."""


class SnapshotMode(StrEnum):
    """How the rows that are there at the start come over."""

    NONE = "none"
    LOCK_FREE = "lock-free"
    CONSISTENT = "consistent"


def snapshot_before(start_at: str, asked: SnapshotMode) -> SnapshotMode:
    """What is read first, of a pipe that may start at a place in the log: then nothing."""
    if start_at and asked is SnapshotMode.CONSISTENT:
        raise DefiniteError(
            "a pipe that starts at a place in the log reads no rows first", place="start_at", hint="leave out start_at, or snapshot"
        )
    return SnapshotMode.NONE if start_at else asked


@dataclass(frozen=True, slots=True)
class PipeSettings:
    """Everything but the two ends."""

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
    """Where a server's log is mirrored; empty: in the state directory. On a cluster, a directory that all machines share: tasks read the
    log there, and need not fetch it from the source once more."""
    chunk_rows: int = CHUNK_ROWS
    zero_dates: ZeroDates = ZeroDates.HALT
    patience_s: float = DEADLINE_S
    """How long a sink that is away or busy is waited for."""
    master: str = "local[2]"
    spark: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark's, and of how it is used on a cluster (`spark.headrace.*`, see docs/scaling.md)."""
    spark_log: bool = False
    name: str = ""
    """What the pipe is called in the sink's own tables; empty: as its state directory."""
    shared_target: bool = False
    """Whether the pipe may write to tables or topics that another pipe writes to."""
    choices: dict[str, Any] = field(default_factory=dict)
    """What was chosen for the sink and its tables, in the words of a settings file (`settings_file`): kept in the state."""
    transforms: Transforms = field(init=False, repr=False)
    """What of that is done to rows on their way."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", Chosen(self.choices).transforms)

    @property
    def pipe_name(self) -> str:
        return self.name or self.state.resolve().name

    @property
    def lasting(self) -> dict[str, Any]:
        """The choices that a state was made with and that must not change."""
        columns = {"include": list(self.projection.include), "exclude": list(self.projection.exclude)}
        salts = read_salts(self.transforms).fingerprints()
        return {"zero_dates": self.zero_dates.value, "columns": columns, "settings": self.choices, **({SALTS: salts} if salts else {})}
