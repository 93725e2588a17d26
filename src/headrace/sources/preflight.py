"""What a check-up of a source finds, whatever the source.

A check looks at a server's answers and gives findings; it changes nothing on the server. An *error* would make replication wrong or
impossible. A *warning* is a risk or a burden that a person should know of. Every finding that is not ok says what it means and how to mend
it, by a statement wherever a statement can.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from headrace.errors import DefiniteError


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    value: str
    meaning: str = ""
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}

    def raise_for(self, address: object) -> None:
        """Stop here if it is an error."""
        if self.level is Level.ERROR:
            raise DefiniteError(self.meaning, place=str(address), hint=self.repair)


def ok(name: str, value: str, meaning: str = "") -> Finding:
    return Finding(name, Level.OK, value, meaning)


def warning(name: str, value: str, meaning: str, repair: str) -> Finding:
    return Finding(name, Level.WARNING, value, meaning, repair)


def failure(name: str, value: str, meaning: str, repair: str) -> Finding:
    return Finding(name, Level.ERROR, value, meaning, repair)
