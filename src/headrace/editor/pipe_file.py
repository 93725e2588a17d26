"""A pipe file on disk: read with its digest, and replaced as a whole.

Invariant: a reader sees the old file or the new one, never a part, also after a crash. The file keeps its mode and its owner. A file that
has changed since it was read is not replaced.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.config.document import Document, parse_document
from headrace.config.load import read_text
from headrace.errors import DefiniteError
from headrace.jsonl import sync_directory


@dataclass(frozen=True, slots=True)
class PipeFile:
    path: Path
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def directory(self) -> Path:
        """The base of relative paths."""
        return self.path.resolve().parent

    def document(self, text: str | None = None, new_files: Mapping[str, str] | None = None) -> Document:
        """Return the content of the file, or of a text that may replace it; with files of secrets that are not written yet."""
        return parse_document(self.text if text is None else text, str(self.path), self.directory, new_files=new_files)


def read_pipe_file(path: Path) -> PipeFile:
    if path.suffix != ".toml":
        raise DefiniteError(
            "this is the file of another tool, which is not changed here",
            place=str(path),
            hint=f"run headrace convert {path} -o headrace.toml, and run that",
        )
    return PipeFile(path, read_text(path))


def replace_pipe_file(file: PipeFile, text: str) -> None:
    """Replace the file by a text, unless it differs from what was read."""
    # A link stays a link.
    path = file.path.resolve()
    try:
        before = path.stat()
        write_file(path, text, before, stat.S_IMODE(before.st_mode), lambda: check_unchanged(file, file.digest))
    except OSError as error:
        raise DefiniteError(
            f"the file cannot be written: {error.strerror}", place=str(path), hint="let this user write the file and its directory"
        ) from error


def write_file(path: Path, text: str, owner: os.stat_result, mode: int, check: Callable[[], None] = lambda: None) -> None:
    """Write a file as a whole, with the owner of another one if this user may give it away. The check runs last before the rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as written:
            with suppress(PermissionError):
                os.fchown(written.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(written.fileno(), mode)
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        check()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def check_unchanged(file: PipeFile, digest: str) -> None:
    """Raise `DefiniteError` if the file is not the one with this digest any more."""
    if read_pipe_file(file.path).digest != digest:
        raise DefiniteError(
            "the file has changed since it was read: nothing was written",
            place=str(file.path),
            hint="load the pipe again, and repeat the change",
        )
