"""What a pipe from ScyllaDB remembers of its tables (`scylla.json`): how each was defined when its log was last read, and where it began.

Invariant: the sink's tables are as the definitions here say, or an alteration to what the server says is under way, which may be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.state import read_json, replace_json
from headrace.sources.scylla.generations import Start
from headrace.sources.scylla.position import Place

FILE: Final = "scylla.json"


@dataclass(slots=True)
class TableNote:
    """One table."""

    table: CqlTable
    id: UUID
    """The server's own name for it: another one after it was dropped and made anew."""
    start: Start

    def to_json(self) -> dict[str, Any]:
        place = self.start.place
        return {
            "table": self.table.to_json(),
            "id": str(self.id),
            "place": [place.generation, place.time],
            "ttl": self.start.ttl,
            "promised": self.start.promised,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TableNote:
        return cls(CqlTable.from_json(raw["table"]), UUID(raw["id"]), Start(Place(*raw["place"]), raw["ttl"], raw["promised"]))


@dataclass(slots=True)
class Notes:
    """Kept in one file, replaced as a whole."""

    path: Path
    tables: dict[TableName, TableNote] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path) -> Notes:
        path = directory / FILE
        if not path.exists():
            return cls(path)
        try:
            found = [TableNote.from_json(one) for one in read_json(path)["tables"]]
        except (KeyError, TypeError, ValueError) as error:
            hint = "restore the file, or start over: remove the state directory and the target tables"
            raise DefiniteError(f"a file of the state directory is damaged: {error!r}", place=str(path), hint=hint) from error
        return cls(path, {note.table.name: note for note in found})

    @property
    def starts(self) -> dict[TableName, Start]:
        return {name: note.start for name, note in self.tables.items()}

    def save(self) -> None:
        replace_json(self.path, {"tables": [note.to_json() for _, note in sorted(self.tables.items())]})
