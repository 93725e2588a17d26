"""Spark's worker daemon, with our imports done once, before it forks.

A plain worker imports numba, pyarrow and the rest after its fork: a second or more of CPU for each, and memory of its own. Here the daemon
imports them and every worker starts with them. Forking is safe because none of them has started a thread (checked below; if one ever does,
the daemon goes on without it being loaded). Freezing the collector keeps the workers' collection after each task from walking, and thereby
copying, all that was loaded.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Final

from pyspark import daemon

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


if __name__ == "__main__":
    if sys.argv[1:2] == [_TASK_WORKER]:
        preload(os.environ.get(PRELOAD_VARIABLE, ""))
    daemon.manager()
