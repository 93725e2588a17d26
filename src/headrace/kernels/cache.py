"""Where compiled kernels are kept.

numba checks only a function's own file before it trusts its cache, but our kernels are linked from several. So each package with kernels
has a cache folder whose name holds a digest of all their sources: a changed kernel is never run from an old cache, nobody has to remember
to clear it, and a change in one package leaves the others' alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Final

import numba

BASE: Final = "headrace.kernels"
KERNEL_MODULES: Final = {
    BASE: ("pointers", "memory", "utf8"),
    "headrace.sources.debezium.kernels": ("json_grammar", "json_scan", "json_values", "values"),
    "headrace.sources.mysql.kernels": (
        "arrow_arena",
        "values",
        "doubles",
        "jsonb_scalars",
        "jsonb",
        "row_images",
        "crc32",
        "packets",
        "event_headers",
        "scan",
        "resultset",
        "charsets",
    ),
    "headrace.kafka": ("message_kernels",),
    "headrace.cql.decode": ("split_kernels", "scalar_kernels", "text_kernels", "page_kernel"),
    "headrace.kafka.avro": ("opcodes", "decode_kernel", "encode_kernel", "wire_header_kernel"),
    "headrace.sinks.kafka.debezium": ("json_kernels",),
    "headrace.sinks.clickhouse.cells": ("cell_kernels", "order_kernels"),
}
"""By package, every module with kernels, or with constants that are compiled into them. All may use those of the first, none another's."""

_ROOT = Path(__file__).parents[1]


def package_of(module: str) -> str | None:
    """The package of a module with kernels; None if it is not listed."""
    package, _, name = module.rpartition(".")
    return package if name in KERNEL_MODULES.get(package, ()) else None


@functools.cache
def kernel_cache_dir(package: str) -> Path:
    """Beside the package if that can be written, else in the user's cache."""
    here = _folder(package)
    digest = hashlib.sha256(f"{numba.__version__} {package}".encode())
    for other in dict.fromkeys((BASE, package)):
        for name in KERNEL_MODULES[other]:
            digest.update((_folder(other) / f"{name}.py").read_bytes())
    beside = here / "__pycache__"
    writable = os.access(beside if beside.exists() else here, os.W_OK)
    root = beside if writable else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace" / package
    return root / f"kernels-{digest.hexdigest()[:16]}"


def _folder(package: str) -> Path:
    return _ROOT.joinpath(*package.split(".")[1:])
