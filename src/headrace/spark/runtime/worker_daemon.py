"""Spark's worker daemon, which imports Headrace's modules once, before it forks workers.

A plain worker imports numba, pyarrow and other modules after its fork, which costs a second or more of CPU and its own memory. This daemon
imports them, and every worker starts with them. Forking is safe because no module has started a thread (checked below). The daemon freezes
the garbage collector, so that collections in workers do not touch, and thereby copy, the loaded modules.

On a cluster (`SPARK_VARIABLE`), an executor may lack a module. Then the daemon does not preload it, and a task reports the error. Workers
exit with their daemon, so that no task keeps writing after its executor has ended.
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
    """Import a comma-separated list of modules, and freeze the garbage collector."""
    for name in filter(None, modules.split(",")):
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise RuntimeError(f"importing {modules} started {threads - 1} threads; a process with threads must not fork")
    gc.collect()
    gc.freeze()


def prefer_installed_spark(version: str = "") -> None:
    """Import the installed pyspark, if any: Spark puts a zip file first in the path, whose modules are compiled at every start.

    On a cluster, do so only if the installed version is the version of the cluster.
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
    """Rename the compiled kernels that the driver has sent to the name that numba looks for here."""
    from numba.core.caching import _CacheLocator

    for shipped in package.rglob(_SHIPPED_KERNELS):
        # Any file in the folder of the kernels' sources will do.
        name = _CacheLocator.get_suitable_cache_subpath(str(shipped.parents[2] / "kernels.py"))  # type: ignore[no-untyped-call]
        try:
            shipped.rename(shipped.with_name(name))
        except OSError as error:
            # Another daemon of the same executor has renamed them, or they are compiled again.
            print(f"headrace: kernels are not taken over: {error}", file=sys.stderr)


def end_with_parent() -> None:
    """Make every process that is forked from now on exit with this one."""
    libc = ctypes.CDLL(None)
    os.register_at_fork(after_in_child=lambda: libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL))


def prepare_executor() -> None:
    end_with_parent()
    try:
        rename_shipped_kernels(Path(__file__).resolve().parents[2])
        preload(os.environ.get(PRELOAD_VARIABLE, ""))
    except ImportError as error:
        # Tasks report it to the driver.
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
