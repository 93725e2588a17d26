"""Stores how long each test of a run took: `build/test-durations.json`, the longest first."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

DURATIONS: Final = Path("build/test-durations.json")


def write_durations(reports: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Write the seconds of each test, set-up and tear-down included. `reports` are those of pytest's terminal reporter, by outcome."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in (report for group in reports.values() for report in group):
        if hasattr(report, "when") and report.when in ("setup", "call", "teardown"):
            seconds[report.nodeid] += report.duration
    if not seconds:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    path.write_text(json.dumps({test: round(duration, 2) for test, duration in ordered}, indent=0) + "\n")
