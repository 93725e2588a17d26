"""Which tables are replicated: globs over `database.table`."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from headrace.model.schema import TableName


@dataclass(frozen=True, slots=True)
class Selection:
    """Tables that match one of `include` and none of `exclude`, and those that were added by name."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __call__(self, name: TableName) -> bool:
        return str(name) in self.added or (_matches(name, self.include) and not _matches(name, self.exclude))

    def __str__(self) -> str:
        return ", ".join(self.include) + (f" without {', '.join(self.exclude)}" if self.exclude else "")

    def to_json(self) -> dict[str, Any]:
        return {"include": list(self.include), "exclude": list(self.exclude), "added": list(self.added)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Selection:
        return cls(tuple(raw["include"]), tuple(raw["exclude"]), tuple(raw["added"]))


def _matches(name: TableName, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(str(name), glob) for glob in globs)
