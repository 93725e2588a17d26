"""Size limits of batches and snapshot chunks. Settings modules import this module, so it imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
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
    parallelism: int = 2
    poll_seconds: float = 1.0
    """How long `plan` waits for new events before it returns an empty batch."""
