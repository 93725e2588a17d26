"""Commands that move no data start without compiled kernels, Spark and ClickHouse's engine, `--help` without Arrow too."""

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
print("LOADED", *(name for name in HEAVY.split() if name in sys.modules))
"""
HEAVY = "numba pyspark chdb duckdb confluent_kafka cassandra"


def loaded(heavy: str, command: list[str]) -> str:
    program = f"HEAVY = {heavy!r}\n{PROGRAM}"
    ran = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("command", [["--help"], ["replicate", "--help"], ["status", "--state", "nowhere"], ["init", "--yes"]])
def test_nothing_heavy_is_loaded(command: list[str]) -> None:
    assert loaded(HEAVY, command) == "LOADED"


@pytest.mark.parametrize("command", [["--help"], ["replicate", "--help"], ["verify", "--help"]])
def test_help_loads_no_arrow(command: list[str]) -> None:
    assert loaded("pyarrow numpy pymysql", command) == "LOADED"
