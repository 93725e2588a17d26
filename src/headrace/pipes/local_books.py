"""How far a pipe is, told in its own state directory (`progress.json`): for sinks that have no place for it.

Invariant: as in a sink's books, the file is written after a batch's data and before the batch counts, so it is never ahead of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.pipes.state import read_json, replace_json
from headrace.sinks.base import Progress

_FILE = "progress.json"


@dataclass(frozen=True, slots=True)
class LocalBooks:
    """One pipe's, in its directory; without one, nowhere."""

    directory: Path | None = None

    def begin(self) -> None:
        """Nothing is missing: the directory is there."""

    def progress(self, pipe: str) -> Progress | None:
        if self.directory is None or not (self.directory / _FILE).exists():
            return None
        raw = read_json(self.directory / _FILE)
        try:
            told = Progress(**{**raw, "incomplete": tuple(raw["incomplete"])})
        except (TypeError, KeyError) as error:
            place = str(self.directory / _FILE)
            raise DefiniteError("the file is not one of this version", place=place, hint="remove it: it is made anew") from error
        return told if told.pipe == pipe else None

    def tell(self, progress: Progress) -> None:
        if self.directory is not None:
            replace_json(self.directory / _FILE, asdict(progress))

    def register(self, pipe: Mapping[str, str]) -> None:
        """The directory says how its pipe was begun (`pipe.json`)."""
