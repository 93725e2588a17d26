"""Compiles the kernels once: at set-up (`python -m headrace.kernels.compile`), or before the first pipe runs.

Spark gives its Python workers ten seconds to start, which is too short for a worker that has to compile first.
"""

from __future__ import annotations

import importlib
import logging
import shutil

from headrace.kernels.cache import KERNEL_MODULES, kernel_cache_dir

log = logging.getLogger("headrace")


def compile_kernels() -> None:
    """Compile all kernels, or load them from the cache, by importing their modules. Remove caches of older sources."""
    for package, names in KERNEL_MODULES.items():
        for name in names:
            importlib.import_module(f"{package}.{name}")
        current = kernel_cache_dir(package)
        for other in current.parent.glob("kernels-*"):
            if other != current:
                shutil.rmtree(other, ignore_errors=True)


def ensure_compiled() -> None:
    """Compile kernels that are not cached yet, after telling the user."""
    if not all(kernel_cache_dir(package).exists() for package in KERNEL_MODULES):
        log.info("compiling, once for this installation: about a minute")
        compile_kernels()


if __name__ == "__main__":
    compile_kernels()
