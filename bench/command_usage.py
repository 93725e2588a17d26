"""Measures a command in a fresh process tree, and reads the CPU time of other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.process_accounting import Usage
from headrace.errors import DefiniteError

LOG_LINES_SHOWN = 15


def measure_command(argv: list[str], *, directory: Path, environment: dict[str, str] | None = None, timeout_s: float = 1_800) -> Usage:
    """Run `argv` in `directory` under its own supervisor. An exit code other than 0 raises an error."""
    log = directory / "stderr.log"
    request = {"argv": argv, "environment": environment or {}, "directory": str(directory), "log": str(log), "timeout_s": timeout_s}
    supervisor = subprocess.run(
        [sys.executable, "-m", "bench.process_accounting"], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True
    )
    usage = Usage(**json.loads(supervisor.stdout))
    if usage.exit_code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
        raise DefiniteError(f"{Path(argv[0]).name} ended with {usage.exit_code}:\n{tail}", place=" ".join(argv))
    return usage


def read_cpu_s(pid: int) -> float:
    """Return the CPU seconds that another process has used so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
