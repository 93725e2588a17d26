"""The cache of compiled kernels.

numba checks only a function's own file before it trusts its cache, but a kernel is compiled from several files. So each package with
kernels has a cache folder whose name contains a digest of all their sources. A changed kernel is never run from an old cache, nothing has
to be cleared by hand, and a change in one package does not invalidate the others.
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
"""Per package, every module with kernels or with constants that are compiled into kernels. Each package may use the first one, and no
other.
"""

_ROOT = Path(__file__).parents[1]


def package_of(module: str) -> str | None:
    """Return the package of a module with kernels; None if it is not listed."""
    package, _, name = module.rpartition(".")
    return package if name in KERNEL_MODULES.get(package, ()) else None


@functools.cache
def kernel_cache_dir(package: str) -> Path:
    """Return the cache folder: next to the package if that is writable, otherwise in the user's cache directory."""
    here = _folder(package)
    digest = hashlib.sha256(f"{numba.__version__} {package}".encode())
    for other in dict.fromkeys((BASE, package)):
        for name in KERNEL_MODULES[other]:
            digest.update((_folder(other) / f"{name}.py").read_bytes())
    local_cache = here / "__pycache__"
    writable = os.access(local_cache if local_cache.exists() else here, os.W_OK)
    root = local_cache if writable else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / package
    return root / f"kernels-{digest.hexdigest()[:16]}"


def _folder(package: str) -> Path:
    return _ROOT.joinpath(*package.split(".")[1:])
