"""A real start on Spark prints a line at least every few seconds, and says which stage takes the time."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer

_LONGEST_GAP_S = 3.0


@pytest.mark.slow(because="test_two_seconds_never_pass_without_a_line, test_a_long_block_names_its_stages_and_counts")
def test_the_start_of_a_pipe_has_no_long_silence(mariadb_server: PrivateServer, tmp_path: Path) -> None:
    database = f"progress_{abs(hash(tmp_path)):x}"
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        for number in range(20):
            cursor.execute(f"CREATE TABLE {database}.t{number} (id INT PRIMARY KEY)")
    command = ["replicate", mariadb_server.url(database), f"chdb:{tmp_path / 'sink'}", "--state", str(tmp_path / "state"), "--once"]
    program = [sys.executable, "-m", "headrace", *command]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as pipe:
        assert pipe.stderr is not None
        lines = [(time.monotonic(), line) for line in pipe.stderr]
    assert pipe.returncode == 0, lines
    snapshot = next(number for number, (_, line) in enumerate(lines) if "snapshot: " in line)
    # The start of Python itself, before the first line, is no stage.
    gaps = [later - earlier for earlier, later in pairwise(at for at, _ in lines[: snapshot + 1])]
    assert max(gaps, default=0.0) <= _LONGEST_GAP_S, lines
    assert any("starting Spark" in line for _, line in lines), lines
