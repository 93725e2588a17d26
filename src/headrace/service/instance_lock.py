"""One process at a time runs on a state directory: a lock says so, and the kernel drops it when the process dies, however it dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError

_LOCK: Final = "run.lock"


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Be the process that runs on the directory, which is made if need be, and which only its owner may look into."""
    _make(directory)
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DefiniteError(
                "another headrace process runs on this state directory",
                place=str(directory),
                hint='ask that one (headrace status), stop it, or choose another: state = "DIR" under [headrace]',
            ) from None
        yield


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = 'choose another: state = "DIR" under [headrace]'
        raise DefiniteError(f"the state directory cannot be made: {error}", place=str(directory), hint=hint) from error
    # One that is another user's cannot be closed to others; what is inside of it is.
    with suppress(PermissionError):
        directory.chmod(0o700)
