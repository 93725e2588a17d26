"""`seal.json` of a state directory: to which state its files belong, and how new each must be.

The seal is written after the file that it describes. After a crash, a file may be newer than the seal by one write. It is older only if it
was replaced by an old copy or truncated. The same holds for Spark's checkpoint, whose newest batch the seal records. A directory that was
restored as a whole is consistent: its seal is as old as its files.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.entry_stamp import Stamp, stamped, unstamped
from headrace.errors import DefiniteError
from headrace.jsonl import MISSHAPEN, START_OVER
from headrace.pipes.state.json_file import read_json, replace_json
from headrace.runtime.checkpoint import check_checkpoint, check_digests, digests, newest_batch, sync_batches

FILE: Final = "seal.json"


class StateSeal:
    """The seal of one state directory; safe for threads. Belongs to the process that owns the directory."""

    def __init__(self, directory: Path, state: str) -> None:
        self._directory, self.state = directory, state
        self.accepts_plain = False
        """Whether Headrace 0.9 wrote the state: its files have no stamps and get them now."""
        self._files: dict[str, Stamp] = {}
        self._batch = -1
        self.progress_name = ""
        """The name under which the pipe's progress was stored; empty if it was not stored yet."""
        self._spark: dict[str, str] = {}
        """Digests of the checkpoint's newest files."""
        self._generation = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, directory: Path) -> StateSeal | None:
        """Load a directory's seal; None if there is none."""
        path = directory / FILE
        if not path.exists():
            return None
        hint = f"remove {FILE}: it is written again, and the files are checked without it"
        try:
            raw, stamp = unstamped(read_json(path))
            if stamp is None:
                raise ValueError("it has no checksum")
            found = cls(directory, stamp.state)
            found._files = {name: Stamp.parse(text) for name, text in raw["files"].items()}
            found.progress_name, found._batch, found._spark = raw["told_as"], int(raw["batch"]), dict(raw["checkpoint"])
            found._generation = stamp.generation
        except DefiniteError as error:
            raise DefiniteError(error.message, place=error.place, hint=hint) from error
        except MISSHAPEN as error:
            raise DefiniteError(f"a file of the state directory is damaged: {error}", place=str(path), hint=hint) from error
        return found

    def knows(self, name: str) -> bool:
        """Whether a file was written."""
        return name in self._files

    def last(self, path: Path) -> Stamp | None:
        return self._files.get(path.name)

    def check(self, path: Path, stamps: Sequence[Stamp]) -> None:
        """Raise if a file is missing, belongs to another state, or is older than it was; otherwise record its last entry as the newest."""
        foreign = next((stamp for stamp in stamps if stamp.state != self.state), None)
        if foreign is not None:
            raise DefiniteError(
                f"the file belongs to another state ({foreign.state}) than the other files of the directory ({self.state})",
                place=str(path),
                hint=START_OVER,
            )
        known = self._files.get(path.name)
        if known is not None and not stamps:
            raise missing(path)
        if known is not None and not _is_newer(stamps, known):
            raise DefiniteError(
                "the file is older than the other files of the state: an old copy was put in its place, or its end was cut off",
                place=str(path),
                hint=START_OVER,
            )
        if stamps:
            self._files[path.name] = stamps[-1]

    def check_batches(self) -> None:
        """Raise if Spark's checkpoint is missing, damaged, of another pipe, or older than it was."""
        checkpoint = self._directory / "checkpoint"
        check_checkpoint(checkpoint)
        check_digests(checkpoint, self._spark)
        newest = newest_batch(checkpoint)
        if newest < self._batch:
            found = f"its newest batch is {newest}" if newest >= 0 else "it holds no batch"
            raise DefiniteError(
                f"Spark's checkpoint is older than the other files of the state: batch {self._batch} was planned, and {found}",
                place=str(checkpoint),
                hint=START_OVER,
            )

    def note(self, path: Path, stamp: Stamp) -> None:
        with self._lock:
            self._files[path.name] = stamp
            self._write()

    def note_progress_name(self, pipe: str) -> None:
        with self._lock:
            if pipe != self.progress_name:
                self.progress_name = pipe
                self._write()

    def note_batches(self) -> None:
        """Record the batches that Spark has planned."""
        with self._lock:
            checkpoint = self._directory / "checkpoint"
            if digests(checkpoint) != self._spark:
                self._write()

    def _write(self) -> None:
        checkpoint = self._directory / "checkpoint"
        newest = newest_batch(checkpoint)
        if newest > self._batch:
            # Spark does not sync its files: a power failure must not remove what the seal describes.
            sync_batches(checkpoint)
            self._batch = newest
        self._spark = digests(checkpoint)
        self._generation += 1
        files = {name: str(stamp) for name, stamp in sorted(self._files.items())}
        content: dict[str, Any] = {"files": files, "told_as": self.progress_name, "batch": self._batch, "checkpoint": self._spark}
        replace_json(self._directory / FILE, stamped(content, self.state, self._generation, 1)[0])


def missing(path: Path) -> DefiniteError:
    return DefiniteError("a file of the state is missing", place=str(path), hint=START_OVER)


def _is_newer(stamps: Sequence[Stamp], known: Stamp) -> bool:
    """Whether a file holds a known entry, or was replaced since."""
    generation = stamps[-1].generation
    if generation != known.generation:
        return generation > known.generation
    return len(stamps) >= known.line and stamps[known.line - 1] == known
