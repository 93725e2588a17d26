"""How many rows the last windows had, told by the driver to the planner, which is another process: one small file.

Invariant: nothing depends on it but the length of windows. A file that is missing, old or damaged leaves lengths as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.model.schema import TableName
from headrace.sources.scylla.position import LogPosition, parse_name


def tell(path: Path, reached: LogPosition, rows: Mapping[TableName, int]) -> None:
    """Say how many rows the windows had that ended here."""
    content = {str(name): [reached.places[name].time, count] for name, count in rows.items() if name in reached.places}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def told(path: Path | None) -> dict[TableName, tuple[int, int]]:
    """For each table, where its last window ended and how many rows it had."""
    try:
        raw = json.loads(path.read_bytes()) if path is not None else {}
        return {parse_name(name): (int(until), int(rows)) for name, (until, rows) in raw.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
