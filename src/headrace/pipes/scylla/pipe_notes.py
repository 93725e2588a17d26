"""A ScyllaDB pipe's notes on its tables (`scylla.json`): the schema when the log was last read, and the start position.

Invariant: the sink's tables have the schemas noted here, or are being altered to the server's schemas; the alteration may be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from headrace.cql.tables import CqlTable
from headrace.jsonl import MISSHAPEN
from headrace.model.schema import TableName
from headrace.pipes.state.json_file import damaged
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.sources.scylla.generations import LogStart
from headrace.sources.scylla.position import StreamPosition
from headrace.sources.scylla.read_times import ReadTimeRecord

FILE: Final = "scylla.json"


@dataclass(slots=True)
class LateNote:
    """Rows of a table's log that arrived too late to be read."""

    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Batches by position: the number of rows (0: repaired), and when they were written (seconds since 1970)."""
    more: int = 0
    """Rows that the last audit found at other positions."""

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.places.values()) + self.more


@dataclass(slots=True)
class TableNote:
    table: CqlTable
    id: UUID
    """The server's id of the table; a recreated table has another one."""
    start: LogStart
    read_times: ReadTimeRecord = field(default_factory=ReadTimeRecord)
    late: LateNote = field(default_factory=LateNote)
    snapshot: int = 0
    """The number of the current snapshot; a resync takes the next."""

    def to_json(self) -> dict[str, Any]:
        place = self.start.place
        return {
            "table": self.table.to_json(),
            "id": str(self.id),
            "place": [place.generation, place.time],
            "ttl": self.start.ttl,
            "promised": self.start.promised,
            "looks": self.read_times.to_json(),
            "late": {"places": self.late.places, "more": self.late.more},
            "snapshot": self.snapshot,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TableNote:
        found = cls(CqlTable.from_json(raw["table"]), UUID(raw["id"]), LogStart(StreamPosition(*raw["place"]), raw["ttl"], raw["promised"]))
        found.snapshot = int(raw.get("snapshot", 0))
        # A state of release 0.9 has neither.
        if "looks" in raw:
            found.read_times = ReadTimeRecord.from_json(raw["looks"])
            late = raw["late"]
            found.late = LateNote(
                {place: (int(rows), int(written)) for place, (rows, written) in late["places"].items()}, int(late["more"])
            )
        return found


@dataclass(slots=True)
class ScyllaPipeNotes:
    """The notes of one pipe, in one file that is replaced as a whole."""

    directory: StateDirectory
    tables: dict[TableName, TableNote] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: StateDirectory) -> ScyllaPipeNotes:
        raw = directory.read(FILE)
        try:
            found = [TableNote.from_json(one) for one in raw["tables"]] if raw is not None else []
        except MISSHAPEN as error:
            raise damaged(error, str(directory.path / FILE)) from error
        return cls(directory, {note.table.name: note for note in found})

    @property
    def starts(self) -> dict[TableName, LogStart]:
        return {name: note.start for name, note in self.tables.items()}

    def save(self) -> None:
        self.directory.replace(FILE, {"tables": [note.to_json() for _, note in sorted(self.tables.items())]})
