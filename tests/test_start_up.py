"""Commands that move no data start without compiled kernels, Spark and ClickHouse's engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from headrace.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("LOADED", *(name for name in ("numba", "pyspark", "chdb", "duckdb", "confluent_kafka", "cassandra") if name in sys.modules))
"""


@pytest.mark.parametrize("command", [["--help"], ["replicate", "--help"], ["status", "--state", "nowhere"]])
def test_nothing_heavy_is_loaded(command: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "LOADED"
