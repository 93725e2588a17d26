"""Damaged and hostile input of both servers gives a definite error or plausible rows, never a crash, a hang or a wrong row.

The recordings in tests/golden are damaged by seeds, each suite in its own process (see `testkit.faults.fuzz`). Seeds are fixed, so a run
repeats the one before; `make soak-suites` (HEADRACE_SOAK=1) takes other and more seeds each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.scaled

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
ROOT = Path(__file__).parents[1]
FLAVOURS = ("mariadb", "mysql")
FIRST = int(time.time()) * 1_000 if SOAK else 0
TIMES = 20 if SOAK else 1
MOST_BYTES = 2 << 30
PATIENCE_S = 900 * TIMES
"""For a busy machine; the process notices a hang much earlier."""


def fuzz(suite: str, flavour: str, first: int, count: int) -> dict[str, int]:
    """Run a suite; return the count of each outcome."""
    # In memory if possible: every trial writes a file.
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="headrace-damage-", dir=shared if shared.is_dir() else None) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "testkit.faults.fuzz", suite, flavour, str(first), str(count), scratch],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            timeout=PATIENCE_S,
        )
        seed = Path(scratch, "seed")
        last = int(np.fromfile(seed, dtype=np.int64)[0]) if seed.exists() else None
    assert done.returncode == 0, f"{suite} of {flavour} ended with {done.returncode} at seed {last}:\n{done.stderr[-3000:]}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["failures"] == [], f"{len(report['failures'])} failures, the first:\n{report['failures'][0]}"
    assert report["peak_bytes"] < MOST_BYTES
    outcomes: dict[str, int] = report["outcomes"]
    return outcomes


@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    "count", [3_000, pytest.param(100_000, marks=pytest.mark.slow(because="test_mutations_of_a_log has 3,000 for each server"))]
)
def test_mutations_of_a_log(flavour: str, count: int) -> None:
    outcomes = fuzz("logs", flavour, FIRST, count * TIMES)
    assert sum(outcomes.values()) == count * TIMES
    # Both parts were reached: damage found by checksums, and damage found by readers.
    assert outcomes["noticed"] > 0.5 * count
    assert outcomes["error"] > 0.03 * count
    assert outcomes["rows"] > 0.03 * count


@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_truncation(flavour: str) -> None:
    outcomes = fuzz("cuts", flavour, 0, 1 << 30)
    assert outcomes["a beginning"] > 20_000
    assert outcomes["error"] > 500


@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_damaged_packets_of_the_replication_stream(flavour: str) -> None:
    outcomes = fuzz("streams", flavour, FIRST, 5_000 * TIMES)
    assert min(outcomes["definite"], outcomes["transient"]) > 1_000


@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_damaged_packets_of_query_results(flavour: str) -> None:
    outcomes = fuzz("results", flavour, FIRST, 10_000 * TIMES)
    assert min(outcomes["definite"], outcomes["transient"], outcomes["rows"]) > 1_000


@pytest.mark.timeout(PATIENCE_S + 20)
def test_damaged_avro_bodies() -> None:
    """A hundred bodies per seed: read as fastavro reads them, or refused."""
    outcomes = fuzz("avro", "mariadb", FIRST, 300 * TIMES)
    assert min(outcomes["bad"], outcomes["read"]) > 10
