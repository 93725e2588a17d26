"""How many rows the last windows had, told by the driver to the planner, which is another process: one small file.

Invariant: nothing depends on it but the length of windows. A file that is missing, old or damaged leaves lengths as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.sources.scylla.position import LogPosition


def write_feedback(path: Path, reached: LogPosition, rows: Mapping[str, int]) -> None:
    """Say how many rows the windows had that ended here, by the names that they have in offsets."""
    ends = reached.to_json()
    content = {label: [ends[label][1], count] for label, count in rows.items() if label in ends}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def read_feedback(path: Path | None) -> dict[str, tuple[int, int]]:
    """Where windows ended last, and how many rows they had."""
    try:
        raw = json.loads(path.read_bytes()) if path is not None else {}
        return {label: (int(until), int(rows)) for label, (until, rows) in raw.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
