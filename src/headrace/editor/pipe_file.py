"""A pipe file on disk: read with its digest, and replaced as a whole.

Invariant: a reader sees the old file or the new one, never a part, also after a crash. The file keeps its mode and its owner. A file that
has changed since it was read is not replaced.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.config.document import Document, parse_document
from headrace.config.load import read_text
from headrace.errors import DefiniteError


@dataclass(frozen=True, slots=True)
class PipeFile:
    path: Path
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def document(self, text: str | None = None) -> Document:
        """Return the content of the file, or of a text that may replace it."""
        return parse_document(self.text if text is None else text, str(self.path), self.path.resolve().parent)


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        before = path.stat()
        with suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as written:
                with suppress(PermissionError):
                    os.fchown(written.fileno(), before.st_uid, before.st_gid)
                os.fchmod(written.fileno(), stat.S_IMODE(before.st_mode))
                written.write(text)
                written.flush()
                os.fsync(written.fileno())
            check_unchanged(file, file.digest)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise DefiniteError(
            f"the file cannot be written: {error.strerror}", place=str(path), hint="let this user write the file and its directory"
        ) from error


def check_unchanged(file: PipeFile, digest: str) -> None:
    """Raise `DefiniteError` if the file is not the one with this digest any more."""
    if read_pipe_file(file.path).digest != digest:
        raise DefiniteError(
            "the file has changed since it was read: nothing was written",
            place=str(file.path),
            hint="load the pipe again, and repeat the change",
        )
