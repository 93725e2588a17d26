"""Errors of a machine that lacks a resource: disk space, file descriptors, memory, processes.

Python reports a shortage as `OSError` or `MemoryError`; Java and ClickHouse report it as text. Each becomes one error with one remedy. A
`Shortage` is transient: no data is lost, and the same call succeeds once the resource is available. It is retried wherever transient errors
are retried (`headrace run`, a pipe that `CREATE DATABASE` started, writes to a sink).
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import DefiniteError, HeadraceError, TransientError

SPARK_FILES, SERVER_FILES, GOOD_FILES = 400, 128, 4096
"""Open files that Spark's Java process needs to start (measured: 256 are too few, 400 enough), that an embedded server needs, and a safe
number.
"""
_FULL_BYTES = 1 << 20
_AGAIN = "then start again: nothing is lost"


class Shortage(TransientError):
    """The machine, or a limit of this process, leaves no room."""


@dataclass(frozen=True, slots=True)
class _Kind:
    numbers: tuple[int, ...]
    words: re.Pattern[str]
    message: str
    hint: str

    def error(self, place: str) -> Shortage:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Shortage(self.message.format(files=limit), place=place, hint=self.hint.format(needed=GOOD_FILES))


_KINDS = (
    _Kind(
        (errno.ENOSPC, errno.EDQUOT),
        re.compile(r"No space left on device|Disk quota exceeded|Not enough space|NOT_ENOUGH_SPACE|There is not enough space"),
        "the file system is full",
        f"free space there (df -h shows how much is left), {_AGAIN}",
    ),
    _Kind(
        (errno.EFBIG,),
        re.compile(r"\bFile too large\b"),
        "a file has reached the largest size that this process may write",
        f"raise the limit (ulimit -f unlimited, LimitFSIZE=infinity in a systemd unit), {_AGAIN}",
    ),
    _Kind(
        (errno.EMFILE,),
        re.compile(r"Too many open files(?! in system)"),
        "too many open files: this process may have {files}",
        f"raise the limit (ulimit -n {{needed}} or more, LimitNOFILE= in a systemd unit), {_AGAIN}",
    ),
    _Kind(
        (errno.ENFILE,),
        re.compile(r"Too many open files in system"),
        "the machine has too many open files",
        f"raise the limit of the machine (sysctl fs.file-max), {_AGAIN}",
    ),
    _Kind(
        (),
        re.compile(r"Java heap space|GC overhead limit exceeded|INVALID_DRIVER_MEMORY|System memory \d+ must be at least"),
        "Spark's Java process has too little memory for its heap",
        f"give it more (--conf spark.driver.memory=2g; in a file: [headrace.spark]), {_AGAIN}",
    ),
    _Kind(
        (errno.EAGAIN,),
        re.compile(r"unable to create (?:new )?native thread|can't start new thread|[Rr]esource temporarily unavailable"),
        "no further process or thread can be started",
        f"raise the limit (ulimit -u, TasksMax= in a systemd unit, pids.max of the control group), {_AGAIN}",
    ),
    _Kind(
        (errno.ENOMEM,),
        re.compile(
            r"Cannot allocate memory|CANNOT_ALLOCATE_MEMORY|OutOfMemoryError|insufficient memory for the Java Runtime"
            r"|[Cc]ould not (?:reserve|allocate)|Unable to allocate|std::bad_alloc|MemoryError|failed to map|Failed to (?:map|reserve)"
        ),
        "there is not enough memory",
        f"free memory, or raise the limit (ulimit -v unlimited, MemoryMax= in a systemd unit, the container's limit), {_AGAIN}",
    ),
)


def shortage_of(error: BaseException, *directories: Path) -> HeadraceError | None:
    """Return the shortage that a Python error reports; `directories` are those being written to. None if it reports none."""
    if isinstance(error, MemoryError):
        return shortage_in("MemoryError")
    if not isinstance(error, OSError):
        return shortage_in(str(error)) if isinstance(error, RuntimeError) else None
    place = str(error.filename or full_directory(directories))
    for kind in _KINDS:
        if error.errno in kind.numbers:
            return kind.error(place)
    if error.filename is None or isinstance(error, ConnectionError):
        return None
    hint = "check that the file system is mounted and writable, and the rights of this user"
    return DefiniteError(f"a file cannot be used: {error.strerror}", place=place, hint=hint)


@contextmanager
def shortages_at(*directories: Path) -> Iterator[None]:
    """Raise shortages inside the block as errors with a remedy. The block writes to these directories."""
    try:
        yield
    except Shortage as error:
        error.place = error.place or full_directory(directories)
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        failure = shortage_of(error, *directories)
        if failure is None:
            raise
        raise failure from error


def shortage_in(text: str, place: str = "") -> Shortage | None:
    """Return the shortage that an error text of Java, ClickHouse or Python reports."""
    return next((kind.error(place) for kind in _KINDS if kind.words.search(text)), None)


def full_directory(directories: Iterable[Path]) -> str:
    """Return the first of these directories whose file system is full; empty if none is."""
    for directory in directories:
        there = next((path for path in (directory, *directory.parents) if path.exists()), None)
        if there is not None:
            found = os.statvfs(there)
            if found.f_bavail * found.f_frsize < _FULL_BYTES or (found.f_files and not found.f_favail):
                return str(directory)
    return ""


def check_file_limit(what: str, needed: int) -> None:
    """Raise the limit of open files as far as the system allows; raise `DefiniteError` if it stays too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise DefiniteError(
            f"{what} needs at least {needed} open files, and this process may have {hard}",
            place="the limit of open files (ulimit -n)",
            hint=f"raise it: ulimit -n {GOOD_FILES}, or LimitNOFILE={GOOD_FILES} in a systemd unit",
        )
