"""Locks a directory for its server, with a small file that the server keeps locked while it runs.

The kernel releases the lock when the server dies in any way. The file's content (pid and port) only tells where to find the server that
holds the lock, so a stale file is never mistaken for a server.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError

_NAME: Final = "headrace-server.json"
_RETRY_SECONDS: Final = 0.05
_RECORD_BYTES: Final = 128
_ENGINE_FOLDERS: Final = frozenset({"data", "metadata", "metadata_dropped", "store", "tmp", "user_files", "headrace-scratch"})


class DirectoryInUse(DefiniteError):
    """Another running process serves the directory."""


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """The server that holds a directory; port 0 while it starts."""

    pid: int
    host: str
    port: int


class DirectoryLock:
    """This process's lock on a directory."""

    def __init__(self, path: Path, deadline: float) -> None:
        """Take the lock, waiting until `deadline` (monotonic) for a predecessor that is ending."""
        self._path = path
        self._fd = os.open(path / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while not _lock(self._fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                os.close(self._fd)
                raise in_use(path, read_serving_process(path))
            time.sleep(_RETRY_SECONDS)
        self._write(ServingProcess(os.getpid(), "", 0))

    def publish(self, host: str, port: int) -> None:
        self._write(ServingProcess(os.getpid(), host, port))

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _write(self, serving: ServingProcess) -> None:
        text = json.dumps({"pid": serving.pid, "host": serving.host, "port": serving.port}).encode() + b"\n"
        # Padded to a fixed length and written in one call, so a reader sees the old record or the new one.
        os.pwrite(self._fd, text.ljust(_RECORD_BYTES), 0)


def make_directory(path: Path) -> None:
    """Create the directory, accessible only to its owner, if it does not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = "choose a directory that you may write to"
        raise DefiniteError(f"the directory cannot be created: {error.strerror}", place=str(path), hint=hint) from error


def check_directory(path: Path) -> None:
    """Raise if the directory can be neither used nor created. Nothing is changed."""
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    reason = "" if nearest.is_dir() else f"{nearest} is a file"
    if not reason and not os.access(nearest, os.W_OK | os.X_OK):
        reason = f"this user may not write to {nearest}"
    if reason:
        hint = "choose a directory that you may write to"
        raise DefiniteError(f"the directory cannot be used: {reason}", place=f"chdb:{path}", hint=hint)


def restrict_permissions(path: Path) -> None:
    """Remove other users' access to the directory's content: earlier releases left it to the umask.

    The directory itself keeps its mode, because the user may have created it for other purposes too.
    """
    for entry in os.scandir(path):
        mode = entry.stat(follow_symlinks=False).st_mode
        if entry.is_dir(follow_symlinks=False) and entry.name in _ENGINE_FOLDERS and mode & 0o077:
            Path(entry.path).chmod(0o700)


def require_data(path: Path) -> None:
    """Raise unless the directory contains the data of an embedded server or of a ClickHouse server."""
    if any((path / name).exists() for name in (_NAME, "metadata", "store")):
        return
    what = "no embedded ClickHouse has used this directory yet" if path.is_dir() else "there is no such directory"
    hint = "check the path; headrace replicate and headrace serve create a directory that does not exist"
    raise DefiniteError(what, place=f"chdb:{path}", hint=hint)


def read_serving_process(path: Path) -> ServingProcess | None:
    """Return the running server of the directory; None if there is none."""
    try:
        fd = os.open(path / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise DefiniteError(
            "the directory belongs to another user", place=str(path), hint="run the command as the user who owns the directory"
        ) from error
    try:
        if _lock(fd, fcntl.LOCK_SH):
            return None
        text = os.pread(fd, 4096, 0)
    finally:
        os.close(fd)
    if not text.strip():
        return ServingProcess(0, "", 0)
    record = json.loads(text)
    return ServingProcess(int(record["pid"]), str(record["host"]), int(record["port"]))


def in_use(path: Path, serving: ServingProcess | None) -> DirectoryInUse:
    who = f"process {serving.pid} (port {serving.port})" if serving is not None and serving.pid else "another process"
    return DirectoryInUse(
        f"the directory is already served by {who}",
        place=str(path),
        hint="query that server over HTTP, stop it first, or choose another directory",
    )


def _lock(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
