"""Row counts of the last windows, written by the driver for the planner, which is another process: one small file.

Invariant: only the length of windows depends on it. A missing, old or damaged file leaves lengths unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.sources.scylla.position import LogPosition


def write_feedback(path: Path, reached: LogPosition, rows: Mapping[str, int]) -> None:
    """Write the row counts of the windows that ended here, by their labels in offsets."""
    ends = reached.to_json()
    content = {label: [ends[label][1], count] for label, count in rows.items() if label in ends}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def read_feedback(path: Path | None) -> dict[str, tuple[int, int]]:
    """Return the end and the row count of each label's last window."""
    try:
        raw = json.loads(path.read_bytes()) if path is not None else {}
        return {label: (int(until), int(rows)) for label, (until, rows) in raw.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
