"""Runs one command and reports its resource usage: `python -m bench.process_accounting`, request on stdin, usage on stdout.

Every process that the command starts is counted. This process is the subreaper of its descendants, so the kernel reports the CPU time of
every orphan to it. It starts no other process, so everything that it reaps belongs to the command. Memory is the sampled sum of the
proportional set sizes of the tree: pages that forked workers share count once.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHORTEST_PAUSE_S = 0.05
PAUSE_PER_SAMPLE = 20
"""A sample uses at most this share of one core: 1/20."""
ORPHAN_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a command and all its descendants used."""

    exit_code: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    killed: int
    """Descendants that were still running after the command had ended and had to be killed."""


def main() -> None:
    request = json.load(sys.stdin)
    usage = supervise(request["argv"], request["environment"], request["directory"], request["log"], request["timeout_s"])
    json.dump(asdict(usage), sys.stdout)


def supervise(argv: list[str], environment: dict[str, str], directory: str, log: str, timeout_s: float) -> Usage:
    """Run `argv` until it ends. Its stdout is discarded, its stderr goes to `log`."""
    _set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    _die_with_parent()
    sampler = _Sampler()
    with Path(log).open("wb") as errors:
        start = time.perf_counter()
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | environment, cwd=directory
        )
        watchdog = threading.Timer(timeout_s, child.kill)
        watchdog.start()
        sampler.start()
        _, status, spent = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
    watchdog.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, killed = _reap_orphans()
    sampler.stop()
    return Usage(child.returncode, wall_s, cpu_s + spent.ru_utime + spent.ru_stime, sampler.peak_bytes, killed)


def _set_process_option(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _die_with_parent() -> None:
    """End the command when the benchmark ends or receives Ctrl-C, so that no process stays behind."""
    signal.signal(signal.SIGTERM, _abandon)
    signal.signal(signal.SIGINT, _abandon)
    _set_process_option(PR_SET_PDEATHSIG, signal.SIGTERM)


def _abandon(number: int, frame: object) -> None:  # noqa: ARG001
    for pid in descendants(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    os._exit(128 + number)


def _reap_orphans() -> tuple[float, int]:
    """Return the CPU seconds of the processes that outlived the command, and how many of them had to be killed."""
    cpu_s, killed = 0.0, 0
    deadline = time.monotonic() + ORPHAN_GRACE_S
    while True:
        try:
            pid, _, spent = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu_s, killed
        cpu_s += spent.ru_utime + spent.ru_stime if pid else 0.0
        if pid == 0 and time.monotonic() > deadline:
            for orphan in descendants(os.getpid()):
                os.kill(orphan, signal.SIGKILL)
                killed += 1
            deadline = time.monotonic() + ORPHAN_GRACE_S
        if pid == 0:
            time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """Return all descendants of `root`."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _read(f"{entry}/stat")
            if stat:
                # The process name may contain spaces and brackets; the fields after the last bracket do not.
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: list[int] = []
    frontier = [root]
    while frontier:
        children = parents.get(frontier.pop(), [])
        found.extend(children)
        frontier.extend(children)
    return found


def tree_cpu_s(root: int | None = None) -> float:
    """Return the CPU seconds so far of a process (default: this one), its running descendants and all that they have reaped, to a
    hundredth."""
    top = os.getpid() if root is None else root
    ticks = sum(_cpu_ticks(pid) for pid in (top, *descendants(top)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int) -> int:
    stat = _read(f"/proc/{pid}/stat")
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))


def proportional_bytes(pid: int) -> int:
    """Return the process's proportional set size; 0 if the process has ended."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    """Return the content of a file in /proc, or an empty text if its process has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class _Sampler(threading.Thread):
    """Samples the memory of all descendants and retains the largest sum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            start = time.perf_counter()
            self.peak_bytes = max(self.peak_bytes, sum(proportional_bytes(pid) for pid in descendants(os.getpid())))
            self._stopped.wait(max(SHORTEST_PAUSE_S, PAUSE_PER_SAMPLE * (time.perf_counter() - start)))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


if __name__ == "__main__":
    main()
