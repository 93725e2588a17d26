"""A file lock that allows one process per state directory; the kernel releases it when the process dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError

_LOCK: Final = "run.lock"


@contextmanager
def hold_instance_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of a state directory; create the directory with owner-only access if it does not exist."""
    _create_directory(directory)
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DefiniteError(
                "another headrace process runs on this state directory",
                place=str(directory),
                hint='use that one (headrace status), stop it, or choose another: state = "DIR" under [headrace]',
            ) from None
        yield


def _create_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = 'choose another: state = "DIR" under [headrace]'
        raise DefiniteError(f"the state directory cannot be made: {error}", place=str(directory), hint=hint) from error
    # chmod fails on a directory of another user; the files inside are owner-only anyway.
    with suppress(PermissionError):
        directory.chmod(0o700)
