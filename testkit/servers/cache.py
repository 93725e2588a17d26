"""The directory of downloads and prepared data that are kept between runs.

A file with its final name is complete: it is written under another name and renamed while a lock is held.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
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


def class_data_options(name: str, run: Callable[[Path, Sequence[str]], None]) -> Sequence[str]:
    """Options for a class-data archive, which saves a second per start. A JVM ignores an archive that does not fit it.

    `run` runs the program once, in a directory and with the options that store the classes that it loads.
    """
    archive = cache_dir() / f"{name}.jsa"
    # On a machine that runs the tests once, making the archive takes longer than it saves.
    if not archive.exists() and os.environ.get("CI") != "true":
        with hold_lock(f"{name}-archive"):
            if not archive.exists():
                with tempfile.TemporaryDirectory(prefix=f"fetch-{name}-archive-", dir=cache_dir()) as scratch:
                    made = Path(scratch) / "made.jsa"
                    run(Path(scratch) / "server", (f"-XX:ArchiveClassesAtExit={made}",))
                    made.replace(archive)
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
