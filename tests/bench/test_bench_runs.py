"""`python -m bench` runs, on few rows. Rates are not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


PARTS = ("floor", "clickhouse-own", "headrace-decode", "headrace-snapshot", "transforms", "cascades")
"""Those that need few changes, and no peer in Java."""


@pytest.mark.slow(because="test_resume_after_ctrl_c copies what the benchmark measures")
def test_parts_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench", "--changes", "2000", "--output", str(output), "--only", *PARTS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(output.read_text())
    assert figures["reference"].keys() == {"server", "workload", *PARTS[:4]}
    assert all(figures[part] for part in PARTS[4:])
