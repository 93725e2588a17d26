"""Stores a pipe's progress in its state directory (`progress.json`), for sinks that cannot store it.

Invariant: the file is written after a batch's data and before the batch counts, so it is never ahead of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.entry_stamp import stamped, unstamped
from headrace.errors import DefiniteError
from headrace.jsonl import MISSHAPEN
from headrace.pipes.state.json_file import read_json, replace_json
from headrace.sinks.base import Progress

_FILE = "progress.json"


@dataclass(frozen=True, slots=True)
class FileProgressStore:
    """The store of one state directory; a no-op without a directory."""

    directory: Path | None = None

    @property
    def is_in_sink(self) -> bool:
        return False

    def begin(self) -> None:
        """Do nothing: the directory exists."""

    def progress(self, pipe: str) -> Progress | None:
        if self.directory is None or not (self.directory / _FILE).exists():
            return None
        path = self.directory / _FILE
        try:
            raw, stamp = unstamped(read_json(path))
            if stamp is None and "state" in raw:
                raise ValueError("it has no checksum")
            stored = Progress(**{**raw, "incomplete": tuple(raw["incomplete"])})
        except (DefiniteError, *MISSHAPEN) as error:
            why = error.message if isinstance(error, DefiniteError) else repr(error)
            hint = "remove the file: it is written again, and counts rows from 0"
            raise DefiniteError(f"the file that tells how far the pipe is cannot be read: {why}", place=str(path), hint=hint) from error
        return stored if stored.pipe == pipe else None

    def tell(self, progress: Progress) -> None:
        if self.directory is not None:
            replace_json(self.directory / _FILE, stamped(asdict(progress), progress.state, 1, 1)[0])

    def register(self, pipe: Mapping[str, str]) -> None:
        """Do nothing: `pipe.json` holds the pipe's settings."""
