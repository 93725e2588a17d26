"""Compile the kernels once, at set-up: `python -m headrace.sources.mysql.compile`."""

from __future__ import annotations

import importlib

from headrace.sources.mysql.kernel_cache import KERNEL_MODULES


def compile_kernels() -> None:
    """Importing a kernel module compiles it, or loads it from the cache."""
    for name in KERNEL_MODULES:
        importlib.import_module(f"headrace.sources.mysql.{name}")


if __name__ == "__main__":
    compile_kernels()
