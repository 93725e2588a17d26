"""An append-only file of JSON lines, which can also be replaced as a whole.

A line counts only if it is complete. A line that a crash cut short is removed at the next read. In a state directory each line has a stamp
(`entry_stamp`), so a damaged, missing or foreign line is an error, and so is an old copy of the file.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from headrace.entry_stamp import Seal, Stamp, stamped, unstamped
from headrace.errors import DefiniteError

MISSHAPEN: Final = (LookupError, TypeError, ValueError, AttributeError)
"""The exceptions that parsing JSON of an unexpected shape may raise."""
START_OVER: Final = (
    "restore the whole state directory from one backup, or start over: remove the state directory, and the target tables where they hold "
    "rows already"
)


class Journal:
    """One file, which need not exist yet. Threads may append to it."""

    def __init__(self, path: Path, seal: Seal | None = None, hint: str = START_OVER) -> None:
        """`seal`: the seal of the state that owns the journal. Without a seal, new lines get stamps only if the existing lines have stamps.

        `hint`: what the user should do about a damaged file.
        """
        self._path, self._seal, self._hint = path, seal, hint
        self._last: Stamp | None = None
        self._lock = threading.Lock()
        """Each line has the number and the checksum of the line before it: one thread writes at a time."""

    def read(self) -> list[dict[str, Any]]:
        """Return all entries, in order."""
        content = self._path.read_bytes() if self._path.exists() else b""
        whole, _, torn = content.rpartition(b"\n")
        entries, stamps = self._parse(whole)
        if self._seal is not None:
            if entries and not stamps:
                self._take_plain(entries)
                return entries
            self._seal.check(self._path, stamps)
        if torn:
            os.truncate(self._path, len(content) - len(torn))
        self._last = stamps[-1] if stamps else None
        return entries

    def append(self, entry: dict[str, Any]) -> None:
        with self._lock:
            new = not self._path.exists()
            last = self._newest()
            stamp = None
            if last is not None:
                entry, stamp = stamped(entry, last.state, last.generation, last.line + 1, last.digest)
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_directory(self._path.parent)
            self._note(stamp)

    def rewrite(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replace the content atomically: after a crash the file has the old content or the new content."""
        with self._lock:
            last = self._newest()
            if last is not None:
                last = Stamp(last.state, last.generation + 1, 0, "")
            temporary = self._path.with_suffix(".new")
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600), "wb") as file:
                for plain in entries:
                    entry = plain
                    if last is not None:
                        entry, last = stamped(plain, last.state, last.generation, last.line + 1, last.digest)
                    file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            sync_directory(self._path.parent)
            self._note(last)

    def _newest(self) -> Stamp | None:
        """Return the stamp of the last line; None if the lines have no stamps."""
        if self._seal is None:
            return self._last
        return self._seal.last(self._path) or Stamp(self._seal.state, 0, 0, "")

    def _note(self, stamp: Stamp | None) -> None:
        self._last = stamp
        if self._seal is not None and stamp is not None:
            self._seal.note(self._path, stamp)

    def _parse(self, whole: bytes) -> tuple[list[dict[str, Any]], list[Stamp]]:
        entries: list[dict[str, Any]] = []
        stamps: list[Stamp] = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                raw = json.loads(line)
                if not isinstance(raw, dict):
                    raise TypeError("no object")
                entry, stamp = unstamped(raw, stamps[-1].digest if stamps else "")
                if stamp is not None and (stamp.line != number or (stamps and stamp.generation != stamps[0].generation)):
                    raise ValueError("a line before it is missing")
            except MISSHAPEN as error:
                raise self.damaged(number, str(error)) from error
            if (stamp is None) != (not stamps) and number > 1:
                raise self.damaged(number, "some lines have checksums, and others have none")
            entries.append(entry)
            stamps += [stamp] if stamp is not None else []
        return entries, stamps

    def _take_plain(self, entries: list[dict[str, Any]]) -> None:
        """Add stamps to the lines of a journal that Headrace 0.9 wrote."""
        assert self._seal is not None
        if not self._seal.accepts_plain or self._seal.last(self._path) is not None:
            raise self.damaged(1, "its lines have no checksums")
        self.rewrite(entries)

    def damaged(self, line: int, why: str) -> DefiniteError:
        return DefiniteError(f"a file of the state directory is damaged: {why}", place=f"{self._path}, line {line}", hint=self._hint)


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that a new name survives a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(entry: dict[str, Any]) -> bytes:
    """Return an entry as readable JSON. Line breaks and unpaired surrogates are escaped."""
    return json.dumps(entry, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
