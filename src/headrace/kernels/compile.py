"""Compile the kernels once, at set-up: `python -m headrace.kernels.compile`."""

from __future__ import annotations

import importlib
import shutil

from headrace.kernels.cache import KERNEL_MODULES, kernel_cache_dir


def compile_kernels() -> None:
    """Importing a kernel module compiles it, or loads it from the cache. Caches of older sources are removed."""
    for package, names in KERNEL_MODULES.items():
        for name in names:
            importlib.import_module(f"{package}.{name}")
        current = kernel_cache_dir(package)
        for other in current.parent.glob("kernels-*"):
            if other != current:
                shutil.rmtree(other, ignore_errors=True)


if __name__ == "__main__":
    compile_kernels()
