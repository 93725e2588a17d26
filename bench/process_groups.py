"""CPU time of a pipe's processes by kind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bench.process_accounting import descendants

KINDS = (
    ("shells", "/bin/sh"),
    ("embedded ClickHouse", "headrace.embedded"),
    ("Java", "org.apache.spark"),
    ("sources", "streaming_source_runner"),
    ("workers", "headrace.spark.runtime.worker_daemon"),
)
"""Kinds of processes, each with a word of its command line. The process without such a word is the driver."""

CpuTimes = Mapping[int, tuple[str, float]]
"""Kind and CPU seconds so far of each process of a tree."""


def cpu_times(root: int) -> CpuTimes:
    found = {}
    for pid in (root, *descendants(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = (process_kind(pid, root), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


def cpu_shares(before: CpuTimes, after: CpuTimes, wall_s: float) -> dict[str, float]:
    """Return CPU seconds per second, by kind."""
    shares: dict[str, float] = {}
    for pid, (kind, spent) in after.items():
        # The difference is taken per process: Spark ends idle workers, and the total would lose what they spent before.
        shares[kind] = shares.get(kind, 0.0) + (spent - before.get(pid, (kind, spent))[1]) / wall_s
    return shares


def process_kind(pid: int, root: int) -> str:
    if pid == root:
        return "driver"
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone"
    return next((kind for kind, word in KINDS if word in line), "other")
