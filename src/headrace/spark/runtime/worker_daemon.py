"""Spark's worker daemon, with our imports done once, before it forks.

A plain worker imports numba, pyarrow and the rest after its fork: a second or more of CPU for each, and memory of its own. Here the daemon
imports them and every worker starts with them. Forking is safe because none of them has started a thread (checked below; if one ever does,
the daemon goes on without it being loaded). Freezing the collector keeps the workers' collection after each task from walking, and thereby
copying, all that was loaded.

On a cluster (`SPARK_VARIABLE`), an executor may lack something: then it is not loaded ahead, and a task says so in our words. Workers end
with their daemon whatever ends it, so that nothing writes on when an executor is gone.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Final

PRELOAD_VARIABLE: Final = "HEADRACE_PRELOAD"
SPARK_VARIABLE: Final = "HEADRACE_SPARK"
"""On a cluster, the version of Spark that runs there."""
_TASK_WORKER: Final = "pyspark.worker"
_SHIPPED_KERNELS: Final = "__pycache__/kernels-*/shipped"
_DIE_WITH_PARENT: Final = 1


def preload(modules: str) -> None:
    """Import a comma-separated list of modules, and put all that is loaded out of the collector's sight."""
    for name in filter(None, modules.split(",")):
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise RuntimeError(f"importing {modules} started {threads - 1} threads; a process with threads must not fork")
    gc.collect()
    gc.freeze()


def prefer_installed_spark(version: str = "") -> None:
    """Import pyspark from where it is installed, if it is: Spark puts a zip file first, whose modules are compiled at every start.

    On a cluster only if it is of the version that runs there.
    """
    if version and not _is_installed("pyspark", version):
        return
    zipped, others = [p for p in sys.path if p.endswith(".zip")], [p for p in sys.path if not p.endswith(".zip")]
    sys.path[:] = others
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path[:] = zipped + others


def _is_installed(name: str, version: str) -> bool:
    try:
        return importlib.metadata.version(name) == version
    except importlib.metadata.PackageNotFoundError:
        return False


def rename_shipped_kernels(package: Path) -> None:
    """Give the compiled kernels that came with the package the name by which numba looks for them here."""
    from numba.core.caching import _CacheLocator

    for shipped in package.rglob(_SHIPPED_KERNELS):
        # Any file beside the kernels' sources will do: only its folder counts.
        name = _CacheLocator.get_suitable_cache_subpath(str(shipped.parents[2] / "kernels.py"))  # type: ignore[no-untyped-call]
        try:
            shipped.rename(shipped.with_name(name))
        except OSError as error:
            # Another daemon of the same executor was quicker; else they are compiled anew.
            print(f"headrace: kernels are not taken over: {error}", file=sys.stderr)


def end_with_parent() -> None:
    """Have every process that is forked from now on end when this one does."""
    libc = ctypes.CDLL(None)
    os.register_at_fork(after_in_child=lambda: libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL))


def prepare_executor() -> None:
    """What a daemon on a cluster does before it forks."""
    end_with_parent()
    try:
        rename_shipped_kernels(Path(__file__).resolve().parents[2])
        preload(os.environ.get(PRELOAD_VARIABLE, ""))
    except ImportError as error:
        # Tasks will tell it to the driver.
        print(f"headrace: not loaded ahead: {error}", file=sys.stderr)


def main() -> None:
    spark = os.environ.get(SPARK_VARIABLE, "")
    prefer_installed_spark(spark)
    if sys.argv[1:2] == [_TASK_WORKER]:
        if spark:
            prepare_executor()
        else:
            preload(os.environ.get(PRELOAD_VARIABLE, ""))
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
