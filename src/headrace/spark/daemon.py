"""Spark's worker daemon, with our imports done once, before it forks.

A plain worker imports numba, pyarrow and the rest after its fork: a second or more of CPU for each, and memory of its own. Here the daemon
imports them and every worker starts with them. Forking is safe because none of them has started a thread (checked below; if one ever does,
the daemon goes on without it being loaded). Freezing the collector keeps the workers' collection after each task from walking, and thereby
copying, all that was loaded.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

PRELOAD_VARIABLE: Final = "HEADRACE_PRELOAD"
_TASK_WORKER: Final = "pyspark.worker"


def preload(modules: str) -> None:
    """Import a comma-separated list of modules, and put all that is loaded out of the collector's sight."""
    for name in filter(None, modules.split(",")):
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise RuntimeError(f"importing {modules} started {threads - 1} threads; a process with threads must not fork")
    gc.collect()
    gc.freeze()


def prefer_installed_spark() -> None:
    """Import pyspark from where it is installed, if it is: Spark puts a zip file first, whose modules are compiled at every start."""
    zipped, others = [p for p in sys.path if p.endswith(".zip")], [p for p in sys.path if not p.endswith(".zip")]
    sys.path[:] = others
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path[:] = zipped + others


def main() -> None:
    prefer_installed_spark()
    if sys.argv[1:2] == [_TASK_WORKER]:
        preload(os.environ.get(PRELOAD_VARIABLE, ""))
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
