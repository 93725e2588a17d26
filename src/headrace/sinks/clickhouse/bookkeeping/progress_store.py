"""What a sink keeps of the pipes that fill it: how far each is (`headrace.positions`) and how each was begun (`headrace.pipes`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, OwnTables
from headrace.sinks.clickhouse.bookkeeping.positions import prepare_positions, read_progress, write_progress
from headrace.sinks.clickhouse.server.quoting import quote_text

PIPES = OwnTable(
    "pipes",
    (
        ("pipe", "String"),
        ("source", "String"),
        ("selection", "String"),
        ("options", "String"),
        ("state", "String"),
        ("host", "String"),
        ("statement", "String"),
        ("created", "DateTime64(6, 'UTC')"),
    ),
    ("pipe",),
)


@dataclass(frozen=True, slots=True)
class ClickHouseProgressStore:
    """Both, in our own tables."""

    own: OwnTables

    @property
    def is_in_sink(self) -> bool:
        return True

    def begin(self) -> None:
        prepare_positions(self.own)

    def progress(self, pipe: str) -> Progress | None:
        return read_progress(self.own, pipe)

    def tell(self, progress: Progress) -> None:
        write_progress(self.own, progress)

    def register(self, pipe: Mapping[str, str]) -> None:
        """Write a pipe's row; what an earlier row of the same pipe says of its making stays."""
        self.own.ensure(PIPES)
        row, names = dict(pipe), ("state", "host", "created", "statement")
        for state, host, created, statement in self.own.select(PIPES, names, f"pipe = {quote_text(pipe['pipe'])}"):
            if (state, host) == (row["state"], row["host"]):
                row |= {"created": created, "statement": row["statement"] or statement}
        self.own.insert(PIPES, [row])
