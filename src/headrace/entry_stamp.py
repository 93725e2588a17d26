"""The stamp of an entry in a state file: the id of the state, the generation of the file, the entry's number, and a checksum.

A file that is replaced as a whole is one entry, and each replacement is a new generation. In a journal the checksum of a line includes the
checksum of the line before it, so a line that is missing, exchanged or damaged breaks the chain. Invariant: an entry whose stamp is valid
holds exactly what Headrace wrote, at this place of this file of this state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

KEY: Final = "stamp"
_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Stamp:
    state: str
    generation: int
    line: int
    digest: str

    def __str__(self) -> str:
        return f"{self.state}/{self.generation}/{self.line}/{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        state, generation, line, digest = text.split("/")
        return cls(state, int(generation), int(line), digest)


class Seal(Protocol):
    """Records the newest stamp of each file of a state."""

    @property
    def state(self) -> str:
        """The id of the state that all files belong to."""

    @property
    def accepts_plain(self) -> bool:
        """Whether files without stamps are accepted. Headrace 0.9 wrote such files."""

    def last(self, path: Path) -> Stamp | None:
        """Return the newest known stamp of a file."""

    def check(self, path: Path, stamps: Sequence[Stamp]) -> None:
        """Raise `DefiniteError` if the entries belong to another state, or if newer entries of the file were recorded before."""

    def note(self, path: Path, stamp: Stamp) -> None:
        """Record that an entry was written. The record is durable on return."""


def stamped(entry: dict[str, Any], state: str, generation: int, line: int, previous: str = "") -> tuple[dict[str, Any], Stamp]:
    """Return the entry with its stamp. `previous` is the checksum of the line before it."""
    stamp = Stamp(state, generation, line, _digest(entry, state, generation, line, previous))
    return {**entry, KEY: str(stamp)}, stamp


def unstamped(raw: dict[str, Any], previous: str = "") -> tuple[dict[str, Any], Stamp | None]:
    """Return the entry without its stamp, and the stamp if there is one. Raise `ValueError` if the stamp does not match the entry."""
    if KEY not in raw:
        return raw, None
    entry = {key: value for key, value in raw.items() if key != KEY}
    stamp = Stamp.parse(str(raw[KEY]))
    if stamp.digest != _digest(entry, stamp.state, stamp.generation, stamp.line, previous):
        raise ValueError("the checksum does not match")
    return entry, stamp


def _digest(entry: dict[str, Any], state: str, generation: int, line: int, previous: str) -> str:
    # The checksum must be that of the parsed line, where every key is a string.
    plain = json.loads(json.dumps(entry))
    text = json.dumps([state, generation, line, previous, plain], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
