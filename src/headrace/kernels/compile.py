"""Compile the kernels once: at set-up (`python -m headrace.kernels.compile`), or before the first pipe runs.

Spark gives its Python processes ten seconds to start, which is too little for those that would have to compile first.
"""

from __future__ import annotations

import importlib
import logging
import shutil

from headrace.kernels.cache import KERNEL_MODULES, kernel_cache_dir

log = logging.getLogger("headrace")


def compile_kernels() -> None:
    """Importing a kernel module compiles it, or loads it from the cache. Caches of older sources are removed."""
    for package, names in KERNEL_MODULES.items():
        for name in names:
            importlib.import_module(f"{package}.{name}")
        current = kernel_cache_dir(package)
        for other in current.parent.glob("kernels-*"):
            if other != current:
                shutil.rmtree(other, ignore_errors=True)


def ensure_compiled() -> None:
    """Compile what nobody has compiled yet, after a word to whoever waits."""
    if not all(kernel_cache_dir(package).exists() for package in KERNEL_MODULES):
        log.info("compiling, once for this installation: about a minute")
        compile_kernels()


if __name__ == "__main__":
    compile_kernels()
