"""The splits of log tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from headrace.sources.base import Json


class WindowRead(NamedTuple):
    """A window of a table's log, and the number of the read (see `position`)."""

    keyspace: str
    table: str
    generation: int
    after: int
    until: int
    read_number: int


@dataclass(frozen=True, slots=True)
class WindowSplit:
    """One task's share of the streams of some windows."""

    split_kind: ClassVar[str] = "log"
    once: ClassVar[bool] = False
    windows: tuple[WindowRead, ...]
    share: int
    of: int

    def to_json(self) -> Json:
        return {"windows": self.windows, "share": self.share, "of": self.of}

    @classmethod
    def from_json(cls, raw: Json) -> WindowSplit:
        return cls(tuple(WindowRead(*window) for window in raw["windows"]), raw["share"], raw["of"])
