"""Where compiled kernels are kept.

numba checks only a function's own file before it trusts its cache, but our kernels are linked from several. So the cache folder's name
holds a digest of all of them: a changed kernel is never run from an old cache, and nobody has to remember to clear it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import numba

KERNEL_MODULES: Final = (
    "pointers",
    "words",
    "arena",
    "values",
    "doubles",
    "jsonb_scalars",
    "jsonb",
    "images",
    "checksum",
    "framing",
    "heads",
    "scan",
    "resultset",
    "charset_kernels",
)
"""Every module with kernels, or with constants that are compiled into them."""


def kernel_cache_dir() -> Path:
    """Beside the package if that can be written, else in the user's cache."""
    here = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for name in KERNEL_MODULES:
        digest.update((here / f"{name}.py").read_bytes())
    beside = here / "__pycache__"
    writable = os.access(beside if beside.exists() else here, os.W_OK)
    root = beside if writable else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace"
    return root / f"kernels-{digest.hexdigest()[:16]}"


def use_kernel_cache() -> None:
    """Point numba at our folder, unless the user chose one; must run before the kernels are imported."""
    if not os.environ.get("NUMBA_CACHE_DIR"):
        numba.config.CACHE_DIR = str(kernel_cache_dir())  # type: ignore[attr-defined]
