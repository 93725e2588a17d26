"""Compile the kernels once, at set-up: `python -m headrace.sources.mysql.compile`."""

from __future__ import annotations

import importlib
import shutil

from headrace.sources.mysql.kernel_cache import KERNEL_MODULES, kernel_cache_dir


def compile_kernels() -> None:
    """Importing a kernel module compiles it, or loads it from the cache. Caches of older sources are removed."""
    for name in KERNEL_MODULES:
        importlib.import_module(f"headrace.sources.mysql.{name}")
    current = kernel_cache_dir()
    for other in current.parent.glob("kernels-*"):
        if other != current:
            shutil.rmtree(other, ignore_errors=True)


if __name__ == "__main__":
    compile_kernels()
