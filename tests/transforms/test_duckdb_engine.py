"""DuckDB in a process with many threads that starts other processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.transforms import duckdb_engine

CODE = """
import subprocess, threading
from headrace.transforms import duckdb_engine
duckdb_engine.syntax_of("SELECT 1")
ended = []
def start():
    ended.append(subprocess.run(["true"], preexec_fn=lambda: None, check=False).returncode)
thread = threading.Thread(target=start)
thread.start()
thread.join()
assert ended == [0], ended
"""


def test_processes_are_started_by_other_threads_than_the_one_that_has_read_expressions() -> None:
    """As pyspark starts Java: a fork with a `preexec_fn`."""
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_a_connection_belongs_to_one_thread_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = duckdb_engine.connection()
    assert duckdb_engine.connection() is first
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert duckdb_engine.connection() is not first
