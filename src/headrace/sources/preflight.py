"""The findings of a preflight check, for any source.

A check evaluates a server's answers and returns findings. It changes nothing on the server. An *error* would make replication wrong or
impossible. A *warning* is a risk or a cost that the user should know about. Every finding that is not ok states its meaning and a remedy,
as a statement where possible.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from headrace.errors import DefiniteError


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    level: Level
    value: str
    meaning: str = ""
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}

    def raise_for(self, address: object) -> None:
        """Raise if the finding is an error."""
        if self.level is Level.ERROR:
            raise DefiniteError(self.meaning, place=str(address), hint=self.repair)


def ok(name: str, value: str, meaning: str = "") -> Finding:
    return Finding(name, Level.OK, value, meaning)


def warning(name: str, value: str, meaning: str, repair: str) -> Finding:
    return Finding(name, Level.WARNING, value, meaning, repair)


def failure(name: str, value: str, meaning: str, repair: str) -> Finding:
    return Finding(name, Level.ERROR, value, meaning, repair)
