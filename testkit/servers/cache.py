"""The directory of downloads and prepared data that are kept between runs.

A file with its final name is complete: it is written under another name and renamed while a lock is held.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """`$HEADRACE_CACHE`, or `headrace` in the user's cache directory."""
    named = os.environ.get("HEADRACE_CACHE")
    path = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextmanager
def hold_lock(name: str) -> Iterator[None]:
    """Let one process enter at a time; the kernel releases the lock when its holder ends."""
    with (cache_dir() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
