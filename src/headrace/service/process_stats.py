"""Memory and CPU use of this process and its descendants, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM = 1, 11, 12, 13, 14
"""Fields of /proc/PID/stat after the name."""


def measure_usage(root: int) -> tuple[int, float]:
    """Return bytes of memory (shared memory counted once) and CPU seconds of a process and its descendants."""
    stats = {int(entry.name): found for entry in Path("/proc").iterdir() if entry.name.isdigit() and (found := _stat(entry))}
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    memory, ticks, todo = 0, 0, [root]
    while todo:
        pid = todo.pop()
        if pid in stats:
            todo += children.get(pid, [])
            memory += _memory(pid)
            # The CPU time of an ended process is counted with the parent that waited for it.
            ticks += sum(int(stats[pid][field]) for field in (_USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM))
    return memory, ticks / _TICKS


def _stat(entry: Path) -> list[str]:
    try:
        # The kernel cuts names to 15 bytes, perhaps within a UTF-8 character.
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        # The process has ended.
        return []


def _memory(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # The process has ended, or belongs to another user.
        return 0
    return 0
