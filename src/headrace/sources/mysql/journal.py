"""A file of JSON lines that is only ever appended to, or replaced whole.

A line counts once it is complete: what a crash cut short did not happen, and is cut off when the file is read next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from headrace.errors import DefiniteError

MISSHAPEN: Final = (LookupError, TypeError, ValueError, AttributeError)
"""What reading JSON of another shape than expected may raise."""


class Journal:
    """One file. It need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """All entries, in order."""
        if not self._path.exists():
            return []
        content = self._path.read_bytes()
        whole, _, torn = content.rpartition(b"\n")
        if torn:
            os.truncate(self._path, len(content) - len(torn))
        entries = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise self.damaged(number, str(error)) from error
            if not isinstance(entry, dict):
                raise self.damaged(number, "no object")
            entries.append(entry)
        return entries

    def append(self, entry: dict[str, Any]) -> None:
        new = not self._path.exists()
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            self._sync_directory()

    def rewrite(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replace the file's content at once: a crash leaves the old content or the new."""
        temporary = self._path.with_suffix(".new")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600), "wb") as file:
            for entry in entries:
                file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        self._sync_directory()

    def _sync_directory(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def damaged(self, line: int, why: str) -> DefiniteError:
        return DefiniteError(
            f"a file of the state directory is damaged: {why}",
            place=f"{self._path}, line {line}",
            hint="to start over, remove the state directory and the target tables",
        )
