"""Settings of a pipe that are keys of `headrace.toml` and flags of `headrace replicate`.

Invariant: a setting is declared here and nowhere else. The name of a field is the key, and with dashes the flag; its type, default and the
string below it give validation, `--help`, JSON schema and reference page; `PipeSettings` inherits it. The imports are light, because
`headrace --help` loads this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.model.setting_values import CascadeMode, ZeroDates
from headrace.retry import DEADLINE_S
from headrace.settings.dataclass_fields import Size
from headrace.sources.mysql.limits import CHUNK_ROWS, BatchLimits

_LIMITS: Final = BatchLimits()
_FLUSH_BYTES: Final = Size(_LIMITS.flush_bytes)
_RELAY_BYTES: Final = Size(1 << 30)


class SnapshotMode(StrEnum):
    """How the existing rows are copied at the start."""

    NONE = "none"
    LOCK_FREE = "lock-free"
    CONSISTENT = "consistent"


@dataclass(frozen=True, kw_only=True)
class ColumnKeys:
    """Keys of sources with column selection."""

    columns: tuple[str, ...] = ()
    """Globs over `database.table.column`: from the tables that a glob names, only these columns and the key are taken."""
    exclude_columns: tuple[str, ...] = ()
    """Globs of columns to exclude, such as 'shop.users.pass*'."""


@dataclass(frozen=True, kw_only=True)
class StartKeys:
    """Keys of sources with a log."""

    start_at: str = field(default="", metadata={"flag": "WHERE"})
    """Start at this position of the log, without a snapshot: `now`, `oldest`, `FILE:OFFSET` or a GTID set; for ScyllaDB `now`, `oldest`
    or a timestamp."""


@dataclass(frozen=True, kw_only=True)
class SnapshotKeys:
    """Keys of sources that support snapshots."""

    snapshot: SnapshotMode = SnapshotMode.LOCK_FREE
    """How the existing rows are copied at the start; `none`: not at all."""
    chunk_rows: int = CHUNK_ROWS
    """Rows per chunk of a snapshot."""


@dataclass(frozen=True, kw_only=True)
class BinlogKeys:
    """Keys of sources with a binary log."""

    zero_dates: ZeroDates = ZeroDates.HALT
    """How to read an invalid date (0000-00-00, 2024-00-10, the 31st of February); `epoch`: as 1970-01-01. In a key, every value halts."""
    flush_bytes: Size = _FLUSH_BYTES
    """A batch ends after this much log."""
    flush_rows: int = _LIMITS.flush_rows
    """A batch ends after this many changes; 0: no limit."""
    flush_seconds: float = _LIMITS.flush_seconds
    """The time to collect a batch after its first change."""


@dataclass(frozen=True, kw_only=True)
class LatencyKeys:
    """Keys of sources that are read as changes arrive."""

    latency_seconds: float = 0.5
    """Under steady changes, a batch begins this long after the one before it. A change after a pause does not wait; nor does a backlog."""


@dataclass(frozen=True, kw_only=True)
class CascadeKeys:
    """Keys of servers with foreign keys."""

    cascades: CascadeMode = CascadeMode.APPLY
    """What to do about foreign keys that change child rows without logging it (ON DELETE or ON UPDATE with CASCADE or SET NULL): `apply`
    the change in the sink, `ignore` it, or `halt` if there is such a key."""


@dataclass(frozen=True, kw_only=True)
class RelayKeys:
    """Keys of sources with a relay log."""

    relay_bytes: Size = _RELAY_BYTES
    """The maximum size of the relay log on local disk."""
    relay: str = field(default="", metadata={"flag": "DIR"})
    """The directory of the relay log, instead of the state directory. On a cluster, a shared one saves tasks from fetching the log."""


@dataclass(frozen=True, kw_only=True)
class TopicKeys:
    """Keys of Debezium topics."""

    topics: tuple[str, ...] = ()
    """Globs of topics to read, such as 'shop.inventory.*'."""
    topic_pattern: str = field(default="", metadata={"flag": "REGEX"})
    """Topics to read, by a regular expression over whole names."""
    start: str = field(default="earliest", metadata={"flag": "WHERE"})
    """Where a new pipe starts: `earliest`, `latest`, a timestamp (`2024-05-01T12:00:00Z`), or offsets as JSON."""
    max_offsets: int = 500_000
    """The maximum number of records in a batch; 0: no limit."""
    min_partitions: int = 0
    """The minimum number of tasks per batch; 0: one per partition."""
    kafka_jars: str = field(default="", metadata={"flag": "DIR"})
    """A folder with Spark's Kafka connector, or its Maven coordinates, if it is not in the default place."""


@dataclass(frozen=True, kw_only=True)
class TargetKeys:
    """Keys of every pipe about its sink."""

    shared_target: bool = False
    """Whether the pipe may write to tables or topics of another pipe; otherwise that is an error."""
    patience: float = DEADLINE_S
    """How many seconds a task waits for a sink that is away or busy; 0: for ever. With `headrace run` at most 15, because pipes share task
    slots; after that the pipe restarts, repeatedly if necessary (`retry_seconds`)."""

    @property
    def retry_timeout_s(self) -> float:
        return self.patience or math.inf


LOG_KEYS: Final = (StartKeys, SnapshotKeys, BinlogKeys, CascadeKeys, RelayKeys)
"""Keys of sources that Headrace reads from a log, in contrast to topics."""
FIXED: Final = frozenset({"columns", "exclude_columns", "zero_dates"})
"""Keys that must not change when a pipe restarts."""
