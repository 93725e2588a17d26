"""Compiles the kernels once: at set-up (`python -m headrace.kernels.compile`), or before the first pipe runs.

Spark gives its Python workers ten seconds to start, which is too short for a worker that has to compile first.
"""

from __future__ import annotations

import importlib
import logging
import shutil

from headrace.kernels.cache import KERNEL_MODULES, kernel_cache_dir
from headrace.stage_report import count_stage, report_stages

log = logging.getLogger("headrace")


def compile_kernels() -> None:
    """Compile all kernels, or load them from the cache, by importing their modules. Remove caches of older sources."""
    modules = [f"{package}.{name}" for package, names in KERNEL_MODULES.items() for name in names]
    for module in count_stage("compiling kernels", modules, "modules"):
        importlib.import_module(module)
    for package in KERNEL_MODULES:
        current = kernel_cache_dir(package)
        for other in current.parent.glob("kernels-*"):
            if other != current:
                shutil.rmtree(other, ignore_errors=True)


def ensure_compiled() -> None:
    """Compile kernels that are not cached yet, after telling the user."""
    if not all(kernel_cache_dir(package).exists() for package in KERNEL_MODULES):
        log.info("compiling, once for this installation: about a minute")
        with report_stages("compiling kernels"):
            compile_kernels()


if __name__ == "__main__":
    compile_kernels()
