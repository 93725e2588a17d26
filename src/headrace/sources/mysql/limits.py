"""Size limits of batches and snapshot chunks, and where tasks read the log.

Settings modules and the pickled source import this module, so it imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CHUNK_ROWS: Final = 200_000
"""Default number of rows per snapshot chunk."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When the planner ends a batch."""

    flush_bytes: int = 128 << 20
    flush_rows: int = 0
    """Row changes per batch; 0: no limit, and rows are not counted."""
    flush_seconds: float = 0.05
    latency_seconds: float = 0.0
    """Under steady changes, a batch ends this long after the one before it: fewer and larger batches cost less."""
    parallelism: int = 2
    whole_tables: bool = False
    """Whether one task reads a table with few changes whole: the sink pays for each block."""
    poll_seconds: float = 1.0
    """How long `plan` waits for new events before it returns an empty batch."""


class SegmentAccess(StrEnum):
    LOCAL = "here"
    """From the relay's files: tasks run on the planner's machine."""
    LOCAL_OR_FETCH = "sought"
    """From the relay's files if the executor has them, otherwise from the source server (see `segment_fetch`)."""
    FETCH = "hidden"
    """Always from the source server."""
